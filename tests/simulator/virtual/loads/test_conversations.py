"""Made-up traces have the statistics of those that they stand for."""

from random import Random

import pytest

from router.simulator.virtual.loads.conversations import (
    CONVERSATION,
    SYNTHETIC,
    Statistics,
    conversations,
)
from router.simulator.virtual.loads.mooncake import BLOCK_SIZE
from router.simulator.virtual.values import Session


def reusable(sessions: list[Session]) -> float:
    """The share of prompt blocks that an endless cache would have."""
    seen: set[int] = set()
    found = blocks = 0
    for session in sessions:
        (turn,) = session.turns
        contents = turn.contents[: turn.prompt // BLOCK_SIZE]
        blocks += len(contents)
        found += sum(content in seen for content in contents)
        seen.update(contents)
    return found / blocks


@pytest.mark.parametrize(
    ("statistics", "requests", "share", "prompts"),
    [
        (CONVERSATION, 12_031, 0.366, (6909, 27_367, 85_401)),
        (SYNTHETIC, 3993, 0.64, (11_587, 38_615, 66_458)),
    ],
    ids=["conversation", "synthetic"],
)
def test_blocks_are_reused_and_prompts_are_long_as_in_the_trace(
    statistics: Statistics, requests: int, share: float, prompts: tuple[int, ...]
) -> None:
    sessions = conversations(Random(1), statistics, requests)
    lengths = sorted(session.turns[0].prompt for session in sessions)
    assert len(sessions) == requests
    assert reusable(sessions) == pytest.approx(share, abs=0.02)
    for part, tokens in zip((0.5, 0.9, 0.99), prompts, strict=True):
        assert lengths[int(part * requests)] == pytest.approx(tokens, rel=0.2)


def test_all_prompts_of_conversation_begin_with_one_block_and_come_every_three_seconds():
    sessions = conversations(Random(2), CONVERSATION, 300)
    firsts = {s.turns[0].contents[0] for s in sessions if s.turns[0].prompt >= BLOCK_SIZE}
    assert firsts == {0}
    assert {session.at % 3 for session in sessions} == {0.0}
    assert [s.at for s in sessions] == sorted(s.at for s in sessions)


def test_those_of_synthetic_do_neither():
    sessions = conversations(Random(2), SYNTHETIC, 300)
    assert len({s.turns[0].contents[0] for s in sessions if s.turns[0].contents}) > 50
    assert len({session.at for session in sessions}) == 300
