"""Scenarios whose prompts have prefixes in common."""

from dataclasses import replace
from statistics import fmean

import pytest

from router.simulator.virtual import EngineSpec, Scenario, Size, scenario, simulate
from router.simulator.virtual.scenarios.prefixes import LOADS


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
    return simulate(scenario(name, Size(engines=4, requests=250)), policy, seed=1).prefix_hit_rate


@pytest.mark.parametrize("name", ["synthetic", "multi-turn"])
def test_an_oracle_of_caches_finds_more_than_round_robin(name):
    assert hits(name, "prefill_oracle") > 1.1 * hits(name, "round_robin")


@pytest.mark.parametrize("seed", [2, 3])
def test_behind_long_prompts_it_is_as_good_as_knowing_what_is_left_of_them(seed):
    made = scenario("conversation", Size(engines=4, requests=300, seed=seed))
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
    made = scenario("shared-prefixes", Size(engines=4))
    result = simulate(made, "shortest_expected_delay", seed=1)
    assert result.prefix_hit_rate >= 0.65


def test_an_engine_with_a_smaller_cache_is_asked_for_what_that_still_holds():
    made = scenario("shared-prefixes", Size(engines=4))
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
