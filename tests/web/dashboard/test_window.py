"""Rates, shares and quantiles of the last minute."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.values import Endpoint, Role
from router.telemetry.sums import Totals
from router.web.dashboard.window import EndpointCounts, Reading, Window, quantile

D0, D1 = (Endpoint(f"http://d{n}:8000", Role.DECODE) for n in range(2))
INF = math.inf


def window(*readings: Reading) -> Window:
    """The window after these readings."""
    found = Window()
    for reading in readings:
        found.add(reading)
    return found


NOTHING = Totals()


def reading(at: float, totals: Totals = NOTHING, **counts: Any) -> Reading:
    """A reading with these counts of D0."""
    return Reading(at, totals, {D0: EndpointCounts(**counts)})


def test_a_first_reading_gives_no_rate() -> None:
    first = window(reading(10.0, Totals(requests={"ok": 5}), events=7, cache_queries=3))
    assert first.requests_per_second() is None
    assert first.tokens_per_second(D0) is None
    assert first.prompt_tokens_per_second(D0) is None
    assert first.hit_ratio(D0) is None
    assert first.seconds == 0


def test_rates_are_of_the_last_five_seconds() -> None:
    found = window(
        *(reading(at, Totals(requests={"ok": at * at})) for at in (0.0, 1.0, 2.0, 4.0, 8.0))
    )
    assert found.requests_per_second() == (64 - 16) / 4


def test_an_event_counts_as_the_tokens_that_it_is_known_to_carry_by_now() -> None:
    before = reading(0.0, events=100, other_tokens=5)
    after = Reading(2.0, Totals(), {D0: EndpointCounts(110, 4.0, 7)})
    assert window(before, after).tokens_per_second(D0) == (10 * 4 + 2) / 2


def test_an_engine_that_has_joined_has_no_rate_yet() -> None:
    found = window(Reading(0.0, Totals(), {}), reading(1.0, events=100, cache_queries=5))
    assert found.tokens_per_second(D0) is None
    assert found.prompt_tokens_per_second(D0) is None


def test_cache_hits_are_a_share_of_the_tokens_that_were_looked_up_in_the_window() -> None:
    before = reading(0.0, cache_queries=1000, cache_hits=1000)
    after = reading(1.0, cache_queries=1100, cache_hits=1025)
    assert window(before, after).hit_ratio(D0) == 0.25
    assert window(before, after).prompt_tokens_per_second(D0) == 100


@pytest.mark.parametrize("counts", [{}, {"cache_queries": 10}, {"cache_hits": 10}])
def test_without_both_counters_there_is_no_share(counts: dict[str, int]) -> None:
    some = Reading(0.0, NOTHING, {D0: EndpointCounts(**counts)})
    whole = reading(0.0, cache_queries=20, cache_hits=20)
    assert window(some, whole).hit_ratio(D0) is None
    assert window(whole, some).hit_ratio(D0) is None


def test_an_engine_that_was_restarted_has_no_negative_figures() -> None:
    before = reading(0.0, events=50, cache_queries=50, cache_hits=50)
    after = reading(1.0, events=1, cache_queries=1, cache_hits=0)
    found = window(before, after)
    assert found.tokens_per_second(D0) == 0
    assert found.prompt_tokens_per_second(D0) == 0
    assert found.hit_ratio(D0) is None


def test_the_window_is_a_minute() -> None:
    totals = [
        Totals(
            requests={"error": 3 * at, "broken": at, "client_left": at, "ok": at},
            failures=2.0 * at,
            answers={D0: 2.0 * at, D1: 0.0},
            decisions={("direct", "below_threshold"): 3.0 * at},
            fallbacks={("decode", "reset"): 4.0 * at},
            ttft={1.0: at, INF: at},
            endpoint_ttft={D0: {1.0: at, INF: at}},
        )
        for at in range(100)
    ]
    found = window(*(reading(float(at), each) for at, each in enumerate(totals)))
    assert found.seconds == 60
    assert found.failures() == 2 * 60
    assert found.answers() == {D0: 2 * 60, D1: 0}
    assert found.decisions() == {("direct", "below_threshold"): 3 * 60}
    assert found.fallbacks() == {("decode", "reset"): 4 * 60}
    assert found.ttft() == found.ttft(D0) == {1.0: 60, INF: 60}
    assert found.ttft(D1) == {}


def test_with_rare_readings_no_part_of_the_minute_is_missed() -> None:
    times = (0.0, 9.0, 20.0, 50.0, 80.0)
    found = window(*(reading(at, Totals(failures=at)) for at in times))
    assert found.seconds == found.failures() == 60
    found.add(reading(85.0, Totals(failures=85.0)))
    assert found.seconds == found.failures() == 65


def test_quantiles_are_interpolated_as_prometheus_does() -> None:
    buckets = {0.1: 10.0, 0.5: 30.0, 1.0: 40.0, INF: 40.0}
    assert quantile(0.5, buckets) == pytest.approx(0.1 + 0.4 * (20 - 10) / 20)
    assert quantile(0.25, buckets) == pytest.approx(0.1)
    assert quantile(1.0, buckets) == 1.0


def test_values_beyond_the_last_bound_count_as_it() -> None:
    assert quantile(0.99, {0.1: 0.0, 1.0: 1.0, INF: 10.0}) == 1.0


@pytest.mark.parametrize("buckets", [{}, {1.0: 0.0, INF: 0.0}])
def test_nothing_has_no_quantile(buckets: Mapping[float, float]) -> None:
    assert quantile(0.5, buckets) is None


@given(st.lists(st.floats(0.001, 9.0), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_in_the_bucket_of_its_value(values: list[float], share: float) -> None:
    bounds = (0.01, 0.1, 1.0, 10.0)
    buckets = {bound: float(sum(v <= bound for v in values)) for bound in (*bounds, INF)}
    rank = min(len(values), max(1, math.ceil(round(share * len(values), 9))))
    true = sorted(values)[rank - 1]
    upper = next(bound for bound in bounds if true <= bound)
    lower = max((bound for bound in (0.0, *bounds) if bound < upper), default=0.0)
    found = quantile(share, buckets)
    assert found is not None
    assert lower <= found <= upper + 1e-9
