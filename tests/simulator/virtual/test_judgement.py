"""Loads that once misled the judgement of engines, measured by their users' waits."""

import math
from dataclasses import replace
from statistics import fmean

import pytest

from router.core.routing.engine_timeouts import EngineTimeouts
from router.simulator.virtual.values import (
    EngineModel,
    EngineSpec,
    Freeze,
    Lengths,
    Restart,
    Scenario,
    Speed,
    Workload,
)
from tests.simulator.virtual.cluster import run

POOL = 8


def test_users_wait_for_no_slot_that_an_engine_of_unknown_limit_does_not_have():
    """Engines with four slots each, and bursts of five times as many requests: in the first ones
    the router sees the limits of some engines and not those of others."""
    work = Workload(
        2500,
        0,
        Lengths(200, 0.8, 4000),
        Lengths(5),
        burst_seconds=2.0,
        burst_requests=20 * POOL,
        rate=10.0 * POOL,
    )
    asked = Scenario("bursts", POOL, EngineModel(max_num_seqs=4), work)
    least_loaded = run(asked, "least_loaded")
    result = run(asked)
    assert result.ttft_p99 < 1.2 * least_loaded.ttft_p99
    assert result.requests_per_second > 0.98 * least_loaded.requests_per_second


def test_bursts_between_two_scrapes_are_spread_as_evenly_as_by_their_number():
    """The gauges, read before a burst, show no queue."""
    work = Workload(
        3000,
        0,
        Lengths(32),
        Lengths(50, 0.5, 512),
        burst_seconds=2.0,
        burst_requests=20 * POOL,
        rate=20.0,
    )
    asked = Scenario("bursts", POOL, EngineModel(max_num_seqs=16), work)
    least_loaded = run(asked, "least_loaded")
    result = run(asked)
    assert result.ttft_p99 < 1.1 * least_loaded.ttft_p99
    assert result.requests_per_second > 0.99 * least_loaded.requests_per_second


def test_an_engine_that_returns_with_fewer_slots_is_not_overloaded():
    """A quarter: it looks like the others until requests have waited there."""
    work = Workload(9000, 48 * POOL, Lengths(32), Lengths(50))
    returns = Restart(4.0, 0, 5.0, max_num_seqs=16)
    result = run(Scenario("fewer", POOL, EngineModel(), work, changes=(returns,)))
    since = [sample.loads[0] for sample in result.samples if 14.0 < sample.at < 24.0]
    assert 0.9 * 16 < fmean(since) < 1.1 * 16
    assert result.ttft_p99 < 0.1
    assert result.engines[0].longest_starved < 5.0


def test_an_engine_that_is_slow_every_other_second_delays_few_first_tokens():
    """It has a small share when it is taken back, for it turns slow again before it has all."""
    changes = tuple(Speed(float(n), 0, 8.0 if n % 2 else 1.0) for n in range(1, 60))
    work = Workload(3000, 0, Lengths(32), Lengths(50), rate=32.0 * POOL)
    result = run(Scenario("alternating", POOL, EngineModel(), work, changes=changes))
    assert result.ttft_p99 < 0.1
    assert 0.005 < result.engines[0].share < 0.03


@pytest.mark.parametrize(("at", "seed"), [(1.6, 21), (1.72, 37)])
def test_prompts_are_not_blamed_where_all_engines_become_slow(at: float, seed: int) -> None:
    """Streams stay open for longer, so more of them run beside each prompt: the engine that had
    fewest prompts looked slow, and had half of its share."""
    changes = tuple(Speed(at, place, 5.0) for place in range(6))
    model = EngineModel(step_seconds=0.04, jitter=0.0)
    work = Workload(240, 0, Lengths(16), Lengths(12), rate=40.0)
    asked = Scenario("all slow", 6, model, work, changes=changes)
    shares = [engine.share for engine in run(asked, seed=seed).engines]
    assert max(shares) < 1.2 * min(shares)


def test_pausing_engines_serve_as_many_as_least_loaded() -> None:
    """Each for a second in every five: it keeps its streams, and continues at full speed."""
    turns = (Freeze(2.0 + 5.0 * n / POOL, n % POOL, 1.0) for n in range(10 * POOL))
    work = Workload(2500, 24 * POOL, Lengths(32), Lengths(50, 0.5, 512))
    asked = Scenario("pauses", POOL, EngineModel(), work, changes=tuple(turns))
    least_loaded = run(asked, "least_loaded")
    result = run(asked)
    assert result.requests_per_second > 0.99 * least_loaded.requests_per_second
    assert result.ttft_p99 < 1.1 * least_loaded.ttft_p99


TOOL_CALLS = Workload(
    300,
    24,
    Lengths(800, 1.0, 16_000),
    Lengths(100, 0.5, 600),
    held_share=1 / 3,
    held_output=Lengths(800, 0.5, 2000),
)
"""A third of the requests are tool calls, whose tokens a parser holds back for 16 s."""


@pytest.mark.parametrize("shows_first", [True, False])
def test_engines_whose_parsers_hold_tokens_back_get_their_share(shows_first: bool) -> None:
    work = replace(TOOL_CALLS, shows_first=shows_first)
    result = run(Scenario("tool-calls", POOL, EngineModel(), work))
    assert result.failed == 0
    assert sum(engine.starved_seconds for engine in result.engines) < 5.0 * POOL


def test_an_engine_that_hangs_behind_a_parser_that_holds_tokens_back_is_found() -> None:
    work = replace(TOOL_CALLS, requests=200, held_share=1.0, shows_first=False)
    change = Freeze(20.0, 0, math.inf)
    timeouts = EngineTimeouts(60.0, 30.0)
    result = run(Scenario("hang", POOL, EngineModel(), work, changes=(change,), timeouts=timeouts))
    assert result.failed <= 4  # those that it had


SHORT = Workload(
    2400, 0, Lengths(300, 0.6, 2000), Lengths(2, 0.5, 4), rate=25.0 * POOL, is_unary=True
)
"""Answers of one to four tokens, which come whole."""


def test_a_slow_engine_is_avoided_where_answers_are_short_and_no_streams():
    model = EngineModel()
    healthy = run(Scenario("short", POOL, model, SHORT))
    result = run(Scenario("short", POOL, model, SHORT, changes=(Speed(0.0, 0, 8.0),)))
    assert healthy.max_over_mean_served < 1.05
    assert result.slowest_share < 0.01
    assert result.ttft_p99 < 1.3 * healthy.ttft_p99


def test_an_engine_that_is_slow_with_prompts_only_delays_few_first_tokens():
    """It computes a prompt in a tenth of a second, and has one at a time."""
    model = EngineModel()
    slow = replace(model, prefill_tokens_per_second=model.prefill_tokens_per_second / 20)
    specs = (EngineSpec(slow), *[EngineSpec(model)] * (POOL - 1))
    work = Workload(4000, 0, Lengths(200, 0.8, 16_000), Lengths(50, 0.5, 512), rate=90.0)
    asked = Scenario("prompts", POOL, model, work, specs=specs)
    least_loaded = run(asked, "least_loaded")
    result = run(asked)
    assert result.ttft_p99 < 0.8 * least_loaded.ttft_p99
    assert result.e2e_p99 < least_loaded.e2e_p99
    assert result.slowest_share > 0.02


LONG_PROMPTS = EngineModel(prefill_tokens_per_second=8000.0, max_num_batched_tokens=2048)
"""A step that computes prompts takes up to fourteen times as long as one that does not."""


@pytest.mark.parametrize("prompt", [Lengths(1500, 0.5, 16_000), Lengths(8000, 0.6, 30_000)])
def test_engines_that_compute_prompts_are_not_slow(prompt: Lengths) -> None:
    """Half of their time, or nearly all of it, they compute prompts, and streams wait meanwhile."""
    streams = 100 if prompt.median < 5000 else 40
    work = Workload(14 * streams, streams, prompt, Lengths(60, 0.5, 600))
    asked = Scenario("prompts", POOL, LONG_PROMPTS, work)
    least_loaded = run(asked, "least_loaded")
    result = run(asked)
    assert result.ttft_p50 < 1.1 * least_loaded.ttft_p50
    assert result.e2e_p99 < 1.1 * least_loaded.e2e_p99
    assert max(engine.longest_starved for engine in result.engines) < 5.0
    if prompt.median < 5000:  # as many streams on an engine that chance is small
        assert max(engine.oscillation for engine in result.engines) < 0.1


def test_a_slow_engine_that_computes_prompts_is_avoided() -> None:
    work = Workload(1400, 100, Lengths(1500, 0.5, 16_000), Lengths(60, 0.5, 600))
    result = run(Scenario("prompts", POOL, LONG_PROMPTS, work, changes=(Speed(10.0, 0, 8.0),)))
    since = [sample.loads[0] for sample in result.samples if 40.0 < sample.at < 55.0]
    assert max(since) <= 2


UNARY = Workload(7000, 300, Lengths(100, 0.8, 16_000), Lengths(60, 0.6, 2000), is_unary=True)
"""Answers of a second or more, which come whole: only the engines' counters measure their speed."""


def test_a_slow_engine_is_avoided_where_answers_come_whole() -> None:
    """The router's own probes, with a prompt of a few letters, are the only streams."""
    result = run(Scenario("unary", POOL, EngineModel(), UNARY, changes=(Speed(5.0, 0, 8.0),)))
    since = [sample.loads[0] for sample in result.samples if 25.0 < sample.at < 35.0]
    assert max(since) <= 8


def test_a_slow_engine_is_avoided_where_streams_have_one_token_only() -> None:
    work = Workload(2400, 0, Lengths(300, 0.8, 4000), Lengths(1), rate=19.0 * POOL)
    made = Scenario("one token", POOL, EngineModel(), work, changes=(Speed(0.0, 0, 8.0),))
    result = run(made)
    without = run(replace(made, engines=POOL - 1, changes=()))
    assert result.engines[0].share < 0.01
    assert result.ttft_p99 < 1.3 * without.ttft_p99


def test_engines_that_give_short_answers_of_unequal_length_are_not_slow():
    """Half of them have one token or two, and one in ten has thirty: what eight of them take
    differs by a factor of three by chance."""
    work = replace(SHORT, requests=6000, prompt=Lengths(300), output=Lengths(2, 1.8, 31))
    asked = Scenario("short", POOL, EngineModel(), work)
    least_loaded = run(asked, "least_loaded")
    result = run(asked)
    assert max(engine.longest_starved for engine in result.engines) < 5.0
    assert result.ttft_p99 < 1.1 * least_loaded.ttft_p99


def test_users_do_not_wait_where_few_slots_serve_a_queue():
    """More users than slots, and an engine with a quarter of the others' slots: a place in its
    queue takes four times as long."""
    small, large = EngineModel(max_num_seqs=4), EngineModel(max_num_seqs=16)
    specs = (EngineSpec(small), *[EngineSpec(large)] * (POOL - 1))
    work = Workload(2000, 174, Lengths(300, 0.8, 4000), Lengths(50, 0.5, 300))
    result = run(Scenario("small", POOL, large, work, specs=specs))
    assert result.ttft_p99 < 2.8 * result.ttft_mean  # by places alone 3.3 times


def test_an_engine_that_looks_slow_at_times_gets_no_queue_each_time_it_has_recovered():
    """It computes prompts ten times as slowly, and all engines are full. Each time that it no
    longer looked slow its limit was unknown, and three times as many as it runs were allowed."""
    slots = 4
    model = EngineModel(max_num_seqs=slots)
    slow = replace(model, prefill_tokens_per_second=model.prefill_tokens_per_second / 10)
    specs = (EngineSpec(slow), *[EngineSpec(model)] * (POOL - 1))
    work = Workload(2400, 12 * slots, Lengths(1500, 0.8, 16_000), Lengths(50, 0.5, 300))
    result = run(Scenario("over", POOL, model, work, specs=specs))
    assert result.ttft_p99 < 3.0 * result.ttft_mean  # 3.5 times before
