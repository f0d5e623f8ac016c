"""Sessions, agents and prompts with a beginning in common."""

import math
from itertools import islice
from random import Random

import pytest

from router.simulator.virtual.loads import shared
from router.simulator.virtual.loads.shared import BLOCK_SIZE
from router.simulator.virtual.values import Session


def common(one: Session, other: Session) -> int:
    """Tokens in whole blocks that the first prompts of two sessions have in common."""
    pairs = zip(one.turns[0].contents, other.turns[0].contents, strict=False)
    return BLOCK_SIZE * sum(a == b for a, b in pairs)


def test_sessions_are_taken_up_to_the_number_of_requests():
    taken = shared.take(shared.multi_turn(Random(1), 1.0), 8)
    assert [len(session.turns) for session in taken] == [6, 2]


@pytest.mark.parametrize(
    ("load", "system", "turns"), [(shared.multi_turn, 992, 6), (shared.agents, 4000, 15)]
)
def test_each_turn_begins_with_all_that_was_said_before(load, system, turns):
    first, second, *more = islice(load(Random(1), 1.0), 20)
    assert max(common(first, other) for other in (second, *more)) == system
    assert len(first.turns) == turns
    assert first.turns[0].pause == 0.0
    for before, after in zip(first.turns, first.turns[1:], strict=False):
        said = before.prompt + before.output
        assert after.prompt > said
        assert after.contents[: said // BLOCK_SIZE] == before.contents
        assert after.pause > 0.0


def test_each_client_has_one_chat_after_the_other():
    first, second = shared.chats_in_a_row(Random(1), clients=2, requests=14)
    assert (len(first.turns), len(second.turns)) == (7, 7)
    assert first.at == second.at == 0.0
    prompts = [turn.prompt for turn in first.turns]
    assert prompts[:5] == sorted(prompts[:5])
    assert prompts[5] < prompts[1]
    assert first.turns[5].contents[0] not in first.turns[4].contents
    assert common(first, second) == 0


def test_agents_are_of_four_kinds():
    sessions = [*islice(shared.agents(Random(1), 1.0), 50)]
    assert len({session.turns[0].contents[0] for session in sessions}) == 4


def test_prompts_of_a_group_share_its_prefix_and_rates_go_up():
    load = shared.shared_prefixes(Random(1), 5, (1.0, 10.0), 200)
    sessions = [*islice(load, 600)]
    groups = {session.turns[0].contents[0] for session in sessions}
    assert len(groups) == 5
    same = [s for s in sessions if s.turns[0].contents[0] == 0]
    assert {common(same[0], other) for other in same[1:]} == {6000}
    assert sessions[199].at == pytest.approx(200, rel=0.2)
    assert sessions[-1].at - sessions[199].at == pytest.approx(40, rel=0.2)


def test_one_prefix_is_that_of_all():
    first, *others = islice(shared.one_prefix(Random(1), 1.0), 5)
    assert {common(first, other) for other in others} == {6000}


def test_siblings_come_at_once_and_the_next_burst_is_about_something_else():
    sessions = [*islice(shared.siblings(4, 2.0), 8)]
    assert [session.at for session in sessions] == [0.0] * 4 + [2.0] * 4
    assert common(sessions[0], sessions[3]) == 2992
    assert common(sessions[0], sessions[4]) == 0


def test_where_nothing_is_reused_nothing_is_common():
    first, *others = islice(shared.no_reuse(Random(1), 1.0), 50)
    assert {common(first, other) for other in others} == {0}
    mean = sum(session.turns[0].prompt for session in others) / len(others)
    assert mean == pytest.approx(3000 * math.exp(0.32), rel=0.5)
