"""What a run gave."""

import math

import pytest

from router.simulator.virtual.request import Request
from router.simulator.virtual.results import Sample, percentile, result_of


def ended(number: int, engine: int, issued: float, first: float, at: float, *, is_good=True):
    request = Request(number, 0, 10, 5, issued, lambda *_: None)
    request.first, request.ended, request.engine, request.is_good = first, at, engine, is_good
    return request


def test_percentiles_are_nearest_rank():
    assert [percentile([1.0, 2.0, 3.0, 4.0], share) for share in (0.0, 0.5, 0.99)] == [1, 2, 4]
    assert math.isnan(percentile([], 0.5))


def test_a_result_tells_what_went_well_and_what_did_not():
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
    assert (result.ttft_p50, result.e2e_p99) == (0.5, 3.0)
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
