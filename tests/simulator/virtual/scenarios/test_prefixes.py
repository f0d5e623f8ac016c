"""Scenarios whose prompts have prefixes in common, and the sessions that they consist of."""

import math
from dataclasses import replace
from itertools import islice
from random import Random
from statistics import fmean

import pytest

from router.simulator.virtual.cluster import simulate
from router.simulator.virtual.scenarios import prefixes
from router.simulator.virtual.scenarios.catalogue import scenario
from router.simulator.virtual.scenarios.pools import Size
from router.simulator.virtual.scenarios.prefixes import BLOCK_SIZE, LOADS
from router.simulator.virtual.values import EngineSpec, Scenario, Session


def common(one: Session, other: Session) -> int:
    """Tokens in whole blocks that the first prompts of two sessions have in common."""
    pairs = zip(one.turns[0].contents, other.turns[0].contents, strict=False)
    return BLOCK_SIZE * sum(a == b for a, b in pairs)


def test_sessions_are_taken_up_to_the_number_of_requests():
    taken = prefixes.take(prefixes.multi_turn(Random(1), 1.0), 8)
    assert [len(session.turns) for session in taken] == [6, 2]


@pytest.mark.parametrize(
    ("load", "system", "turns"), [(prefixes.multi_turn, 992, 6), (prefixes.agents, 4000, 15)]
)
def test_each_turn_begins_with_the_whole_conversation(load, system, turns):
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
    first, second = prefixes.chats_in_a_row(Random(1), clients=2, requests=14)
    assert (len(first.turns), len(second.turns)) == (7, 7)
    assert first.at == second.at == 0.0
    prompts = [turn.prompt for turn in first.turns]
    assert prompts[:5] == sorted(prompts[:5])
    assert prompts[5] < prompts[1]
    assert first.turns[5].contents[0] not in first.turns[4].contents
    assert common(first, second) == 0


def test_agents_are_of_four_kinds():
    sessions = [*islice(prefixes.agents(Random(1), 1.0), 50)]
    assert len({session.turns[0].contents[0] for session in sessions}) == 4


def test_prompts_of_a_group_share_its_prefix_and_rates_go_up():
    load = prefixes.shared_prefixes(Random(1), 5, (1.0, 10.0), 200)
    sessions = [*islice(load, 600)]
    groups = {session.turns[0].contents[0] for session in sessions}
    assert len(groups) == 5
    same = [s for s in sessions if s.turns[0].contents[0] == 0]
    assert {common(same[0], other) for other in same[1:]} == {6000}
    assert sessions[199].at == pytest.approx(200, rel=0.2)
    assert sessions[-1].at - sessions[199].at == pytest.approx(40, rel=0.2)


def test_one_prefix_is_that_of_all():
    first, *others = islice(prefixes.one_prefix(Random(1), 1.0), 5)
    assert {common(first, other) for other in others} == {6000}


def test_siblings_come_at_once_and_the_next_burst_is_about_something_else():
    sessions = [*islice(prefixes.siblings(4, 2.0), 8)]
    assert [session.at for session in sessions] == [0.0] * 4 + [2.0] * 4
    assert common(sessions[0], sessions[3]) == 2992
    assert common(sessions[0], sessions[4]) == 0


def test_where_nothing_is_reused_nothing_is_common():
    first, *others = islice(prefixes.no_reuse(Random(1), 1.0), 50)
    assert {common(first, other) for other in others} == {0}
    mean = sum(session.turns[0].prompt for session in others) / len(others)
    assert mean == pytest.approx(3000 * math.exp(0.32), rel=0.5)


@pytest.mark.parametrize("name", LOADS)
def test_requests_are_as_many_as_wanted_or_grow_with_the_engines(name):
    made = scenario(name, Size(engines=2, requests=70))
    assert made.workload.requests == 70
    assert sum(len(session.turns) for session in made.sessions) == 70
    assert scenario(name, Size(engines=2)).workload.requests == 2 * LOADS[name].requests


@pytest.mark.parametrize("name", [name for name in LOADS if name != "siblings"])
def test_a_load_is_drawn_by_the_seed(name):
    made = [scenario(name, Size(requests=50, seed=seed)).sessions for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


def hits(name: str, policy: str) -> float:
    """The hit rate of a short run on four engines."""
    return simulate(scenario(name, Size(engines=4, requests=100)), policy, seed=1).prefix_hit_rate


@pytest.mark.parametrize("name", ["synthetic", "multi-turn"])
def test_an_oracle_of_caches_finds_more_than_round_robin(name):
    assert hits(name, "prefill_oracle") > 1.1 * hits(name, "round_robin")


@pytest.mark.parametrize("seed", [2, 3])
def test_behind_long_prompts_it_equals_an_oracle_of_remaining_tokens(seed):
    made = scenario("conversation", Size(engines=4, requests=200, seed=seed))
    ours, knowing = (
        simulate(made, policy, seed=seed).ttft_mean
        for policy in ("shortest_expected_delay", "prefill_oracle")
    )
    assert ours <= 1.05 * knowing


def test_engines_whose_speed_varies_keep_their_conversations():
    made = scenario("unsteady-chats", Size(engines=3))
    steady = replace(made, model=replace(made.model, drift=0.0))

    def hit_rate(one: Scenario) -> float:
        runs = [simulate(one, "shortest_expected_delay", seed=seed) for seed in range(1, 6)]
        return fmean(run.prefix_hit_rate for run in runs)

    assert hit_rate(made) >= 0.97 * hit_rate(steady)


def test_where_prefixes_fill_the_caches_copies_do_not_evict_the_others():
    made = scenario("shared-prefixes", Size(engines=2))
    result = simulate(made, "shortest_expected_delay", seed=1)
    assert result.prefix_hit_rate >= 0.65


def test_a_smaller_cache_counts_only_with_its_remaining_blocks():
    made = scenario("shared-prefixes", Size(engines=4, requests=300))
    small = replace(made.model, kv_tokens=made.model.kv_tokens // 4)
    mixed = replace(made, specs=(EngineSpec(small), *[EngineSpec(made.model)] * 3))
    ours, knowing = (
        simulate(mixed, policy, seed=1)
        for policy in ("shortest_expected_delay", "prefix_cache_oracle")
    )
    assert ours.prefix_hit_rate >= 0.95 * knowing.prefix_hit_rate


def test_siblings_are_computed_once_on_each_engine_at_most():
    result = simulate(scenario("siblings", Size(engines=4, requests=64)), "round_robin", seed=1)
    computed = sum(engine.prefix_queries - engine.prefix_hits for engine in result.engines)
    assert computed <= 2 * 4 * 3000 + 64 * (50 + 16)


def test_bursts_of_siblings_are_shared_evenly():
    result = simulate(scenario("siblings", Size()), "shortest_expected_delay", seed=1)
    assert result.max_over_mean_served <= 1.3


def test_where_nothing_is_reused_nothing_is_found():
    assert hits("no-reuse", "round_robin") == 0.0
