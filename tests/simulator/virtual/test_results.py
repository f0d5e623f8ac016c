"""What a run gave."""

import math

import pytest

from router.simulator.virtual.requests import VirtualRequest
from router.simulator.virtual.results import (
    EngineResult,
    Sample,
    Totals,
    percentile,
    result_of,
)


def ended(number: int, engine: int, issued: float, first: float, at: float, *, is_good=True):
    request = VirtualRequest(number, 0, 10, 5, issued, lambda *_: None)
    request.first, request.ended, request.engine, request.is_good = first, at, engine, is_good
    return request


def test_percentiles_are_linear_between_ranks():
    found = [percentile([1.0, 2.0, 3.0, 4.0], share) for share in (0.0, 0.5, 0.99, 1.0)]
    assert found == pytest.approx([1, 2.5, 3.97, 4])
    assert math.isnan(percentile([], 0.5))


def test_a_result_has_successes_and_failures():
    requests = [
        ended(0, 0, 0.0, 0.5, 1.0),
        ended(1, 1, 0.0, 0.5, 1.0),
        ended(2, 1, 1.0, 1.1, 2.0, is_good=False),
        ended(3, 1, 1.0, 1.1, 4.0),
    ]
    samples = [Sample(1.0, 2, (3, 1)), Sample(9.0, 4, (0, 8))]
    result = result_of(
        ("s", "p", 1),
        requests,
        samples,
        probes=0,
        leases_left=0,
        most_running=2,
        events=9,
    )
    assert (result.requests, result.failed, result.seconds) == (4, 1, 4.0)
    assert result.requests_per_second == 0.75
    assert result.tokens_per_second == 3.75
    assert (result.ttft_p50, result.e2e_p99) == pytest.approx((0.5, 2.96))
    assert result.ttft_mean == pytest.approx(1.1 / 3)
    assert math.isnan(result.prefix_hit_rate)
    assert result.slowest_share == pytest.approx(1 / 3)
    assert result.max_over_mean_load == 1.5
    assert "samples" not in result.row()


def test_a_run_in_which_nothing_went_well_has_no_percentiles():
    result = result_of(
        ("s", "p", 1),
        [ended(0, 0, 0.0, 0.0, 1.0, is_good=False)],
        [],
        probes=0,
        leases_left=0,
        most_running=0,
        events=1,
    )
    assert math.isnan(result.ttft_p99)
    assert math.isnan(result.max_over_mean_load)
    assert math.isnan(result.ttft_mean)
    assert math.isnan(result.max_over_mean_served)


# Engines.

ROOM = (64, 64)

SAME_SPEED = [Totals("decode", "g", served, 0.5, 0) for served in (30, 10)]


def engines_of(
    samples: list[Sample], totals: list[Totals] = SAME_SPEED
) -> tuple[EngineResult, ...]:
    requests = [ended(n, 0, 0.0, 0.1, float(at)) for n, at in enumerate((0, 9))]
    result = result_of(
        ("s", "p", 1),
        requests,
        samples,
        probes=0,
        leases_left=0,
        most_running=0,
        events=0,
        totals=totals,
    )
    assert result.row()["engines"][0]["served"] == totals[0].served
    return result.engines


def test_an_engines_share_is_that_of_its_role():
    prefill = Totals("prefill", "p", 7, 0.0, 2)
    fit, none = (True,) * 3, (False,) * 3
    engines = engines_of(
        [Sample(0.0, 1, (4, 4, 0), fit, none, (*ROOM, 64))], [*SAME_SPEED, prefill]
    )
    assert [engine.share for engine in engines] == [0.75, 0.25, 1.0]
    assert (engines[2].misdirected, engines[0].longest_wait) == (2, 0.5)


def test_an_engines_load_and_its_oscillation_are_those_of_the_steady_middle():
    fit, none = (True, True), (False, False)
    loads = [(4, 2), (4, 6), (4, 2), (4, 6)]
    samples = [Sample(float(at), 1, both, fit, none, ROOM) for at, both in enumerate(loads)]
    # The steady middle of two requests is the time up to the first one's end.
    first, second = engines_of([replaced._replace(at=0.0) for replaced in samples])
    assert (first.mean_in_flight, first.oscillation) == (4.0, 0.0)
    assert (second.mean_in_flight, second.oscillation) == (4.0, 0.5)


def test_an_engine_with_less_than_half_of_its_peers_requests_is_starved():
    none = (False, False)
    samples = [Sample(float(at), 1, (8, 1), (True, True), none, ROOM) for at in range(5)]
    engines = engines_of(samples)
    assert [engine.starved_seconds for engine in engines] == [0.0, 5.0]
    assert engines[1].longest_starved == 5.0
    assert engines[1].is_fit


def test_an_engine_that_is_not_well_or_not_like_the_others_is_not_starved():
    none = (False, False)
    ill = [Sample(float(at), 1, (8, 1), (True, at % 2 == 0), none, ROOM) for at in range(5)]
    assert engines_of(ill)[1].longest_starved == 1.0
    assert not engines_of(ill)[1].is_fit
    other = [SAME_SPEED[0], Totals("decode", "h", 10, 0.0, 0)]
    fit = [Sample(float(at), 1, (8, 1), (True, True), none, ROOM) for at in range(5)]
    assert engines_of(fit, other)[1].starved_seconds == 0.0


def test_an_engine_with_fewer_slots_is_starved_with_less_than_half_of_those():
    none = (False, False)

    def starved(load: int) -> float:
        full = [Sample(float(at), 1, (40, load), (True, True), none, (64, 8)) for at in range(5)]
        return engines_of(full)[1].starved_seconds

    assert [starved(load) for load in (3, 4, 8)] == [5.0, 0.0, 0.0]


def test_seconds_of_queueing_in_vain_are_counted():
    samples = [Sample(float(at), 1, (8, 1), (True, True), (at < 3, False), ROOM) for at in range(5)]
    assert [engine.queueing_seconds for engine in engines_of(samples)] == [3.0, 0.0]


def test_prefix_hits_and_the_spread_are_those_of_all_engines():
    totals = [
        Totals("decode", "g", 30, 0.0, 0, prefix_queries=300, prefix_hits=100),
        Totals("decode", "g", 10, 0.0, 0, prefix_queries=100, prefix_hits=0),
        Totals("prefill", "p", 99, 0.0, 0),
    ]
    result = result_of(
        ("s", "p", 1),
        [ended(0, 0, 0.0, 0.1, 1.0)],
        [],
        probes=0,
        leases_left=0,
        most_running=0,
        events=0,
        totals=totals,
    )
    assert (result.prefix_hit_rate, result.max_over_mean_served) == (0.25, 1.5)
    assert (result.engines[0].prefix_queries, result.engines[0].prefix_hits) == (300, 100)


def test_gaps_are_those_after_the_first_token_and_remote_are_those_that_were_to_be():
    requests = [ended(0, 0, 0.0, 1.0, 3.0), ended(1, 0, 0.0, 1.0, 1.4), ended(2, 0, 0.0, 1.0, 1.0)]
    requests[1].is_remote = True
    requests[2].output = 1  # there is no gap
    result = result_of(
        ("s", "p", 1),
        requests,
        [],
        probes=0,
        leases_left=0,
        most_running=2,
        events=9,
        threshold="auto",
    )
    assert result.itl_mean == pytest.approx(0.3)
    assert result.itl_p99 == pytest.approx(0.5, rel=0.01)
    assert result.remote_share == pytest.approx(1 / 3)
    assert result.threshold == "auto"
