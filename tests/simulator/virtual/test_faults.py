"""Scenarios in which engines and routers fail: what users notice, and which engines work."""

from functools import cache

import pytest

from router.simulator.virtual import EngineResult, Result, Size, scenario
from tests.simulator.virtual.cluster import SED, run


@cache
def result_of(name: str, policy: str = SED) -> Result:
    """A run in its usual size."""
    return run(scenario(name, Size()), policy)


def spread(engines: list[EngineResult]) -> float:
    """The largest share over the smallest."""
    shares = [engine.share for engine in engines]
    return max(shares) / min(shares)


def test_waves_stay_as_fast_as_without_the_slow_engine():
    result = result_of("waves")
    assert result.failed == 0
    assert result.ttft_p50 == pytest.approx(0.04)
    assert result.ttft_p99 <= 0.06  # no request waits for a slot
    assert result.engines[0].share < 0.04
    assert spread(list(result.engines[1:])) < 1.15


def test_a_wave_ends_in_one_step_and_its_tokens_are_on_the_grid():
    healthy = scenario("waves", Size(requests=384 * 3))
    result = run(type(healthy)(healthy.name, 8, healthy.model, healthy.workload))
    # 50 tokens from the first step that is 40 ms after arrival: three waves without a gap.
    wave = 0.04 + 49 * 0.02
    assert result.seconds == pytest.approx(3 * wave)
    assert result.e2e_p50 == result.e2e_p99 == pytest.approx(wave)
    assert [engine.served for engine in result.engines] == [144] * 8


def test_an_engine_that_breaks_every_stream_is_ejected():
    result = result_of("every-stream-breaks")
    # Those that were there, which are one failure, those who came back together a second later,
    # and none within the 30 s of its ejection.
    assert result.failed <= 2 * 48 + 16
    assert result.engines[0].share < 0.05


def test_an_engine_that_fails_a_fifth_of_its_requests_is_ejected():
    result = result_of("fails-20-percent")
    # Until 5 failures in a row or the first interval of 10 s is over: a fifth of its share.
    assert result.failed <= 0.2 * 361 / 8 * 12


def test_requests_that_are_refused_go_elsewhere():
    result = result_of("refuses")
    assert result.failed == 0
    assert result.engines[0].share < 0.06


def test_a_hung_core_costs_only_the_streams_that_it_had():
    result = result_of("hung-core")
    assert result.failed <= 48
    assert result.ttft_p99 < 0.1
    assert result.steady_requests_per_second == pytest.approx(360, rel=0.05)


def test_an_engine_that_restarts_comes_back_to_its_share():
    result = run(scenario("restart", Size(requests=9000)))
    assert 0 < result.failed <= 48
    # It is back after 5 s, is seen within 1 s, and slow start takes 5 s.
    late = [sample.loads[0] for sample in result.samples if 17 < sample.at < 23]
    assert sum(late) / len(late) == pytest.approx(48, rel=0.15)


def test_a_router_that_restarts_loses_its_streams_and_learns_again():
    result = result_of("router-restart")
    assert 0 < result.failed <= 384 / 3 + 8
    assert result.leases_left == 0
    assert all(engine.longest_starved < 10 for engine in result.engines)


def test_where_all_are_slow_none_is_excluded():
    result = result_of("all-slow")
    assert result.probes == 0
    assert spread(list(result.engines)) < 1.1


def test_an_engine_that_is_slow_now_and_then_has_its_share_when_it_is_fast():
    result = result_of("alternating")
    assert result.engines[0].longest_starved < 5.0
    assert result.ttft_p99 < 0.2


@pytest.mark.parametrize("policy", [SED, "least_loaded"])
def test_two_models_use_all_of_their_engines(policy):
    assert spread(list(result_of("two-models", policy).engines)) < 1.1


def test_three_models_on_overlapping_engines_use_all_of_them():
    result = result_of("three-models")
    assert spread(list(result.engines)) < 1.6
    assert result.ttft_p99 < 0.15


def test_engines_of_two_generations_work_by_their_speed():
    result = result_of("two-speeds")
    slow, fast = result.engines[0::2], result.engines[1::2]
    assert result.failed == 0
    assert sum(e.share for e in fast) > 2 * sum(e.share for e in slow)
    assert all(engine.share > 0 for engine in slow)


def test_engines_with_few_slots_have_no_queue_while_others_have_room():
    result = result_of("mixed-slots")
    # All streams begin at once, when nobody knows of slots: some wait for one wave, no one for two.
    assert all(engine.longest_wait <= 1.1 for engine in result.engines)
    assert result.steady_requests_per_second > 350


def test_an_open_loop_is_served_at_its_rate():
    result = result_of("open-loop")
    assert result.requests_per_second == pytest.approx(0.75 * 8 * 64, rel=0.1)
    assert spread(list(result.engines)) < 1.1
