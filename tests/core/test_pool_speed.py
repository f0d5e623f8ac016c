"""Slow against the pool: the lower median, a band in which engines are alike, bounds."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.pool_speed import (
    LEAST_SECONDS,
    MIN_SLOWDOWN,
    MOST_RECOVERED,
    MOST_SAME,
    NOISE_SECONDS,
    RECOVERED,
    SAME_SPEED,
    SLOW,
    Fluctuation,
    SlowdownHistory,
    SteadySeconds,
    counted_as,
    pool_median,
    recovered_below,
    slowdown,
)

gaps = st.floats(0.001, 100)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [([], None), ([3.0], 3.0), ([1.0, 8.0], 1.0), ([8.0, 1.0, 2.0], 2.0), ([1, 1, 2, 2], 1)],
)
def test_usual_is_the_lower_median(measured: list[float], expected: float | None) -> None:
    assert pool_median(measured) == expected


@given(st.lists(gaps, min_size=1))
def test_at_least_half_of_the_engines_are_as_fast_as_usual(measured: list[float]) -> None:
    middle = pool_median(measured)
    assert middle is not None
    assert sum(gap <= middle for gap in measured) * 2 >= len(measured)


@pytest.mark.parametrize(("measured", "of"), [(None, 1.0), (1.0, None), (1.0, 0.0)])
def test_what_is_not_known_is_no_slowdown(measured: float | None, of: float | None) -> None:
    assert slowdown(measured, of) is None


@pytest.mark.parametrize(
    ("measured", "expected"), [(1.0, 1.0), (1.2, 1.0), (0.85, 1.0), (8.0, 8.0), (0.1, MIN_SLOWDOWN)]
)
def test_engines_that_are_alike_count_as_equal(measured: float, expected: float) -> None:
    assert counted_as(measured) == expected


def test_below_the_noise_no_engine_is_slow() -> None:
    assert slowdown(NOISE_SECONDS, NOISE_SECONDS / 10) == pytest.approx(1.8, rel=0.02)
    assert slowdown(0.16, 0.02) == pytest.approx(7.4, rel=0.02)


@given(gaps, gaps, st.floats(SAME_SPEED, MOST_SAME))
def test_slower_never_counts_as_faster(one: float, other: float, same: float) -> None:
    low, high = sorted((one, other))
    assert counted_as(low, same) <= counted_as(high, same)


def fluctuating(deviation: float, *, engines: int = 8, ticks: int = 200) -> Fluctuation:
    """A pool whose engines' measurements have this standard deviation, in logarithms."""
    chance, pool = Random(1), Fluctuation()
    steady = [SteadySeconds() for _ in range(engines)]
    for _ in range(ticks):
        for each in steady:
            each.measured(0.02 * math.exp(chance.gauss(0, deviation)), pool)
        pool.tick()
    return pool


def test_a_pool_that_does_not_fluctuate_believes_what_is_measured() -> None:
    pool, steady = Fluctuation(), SteadySeconds()
    for seconds in (0.02, 0.02, 0.16, 0.02):
        steady.measured(seconds, pool)
        assert steady.value == pytest.approx(seconds)
    assert pool.same == SAME_SPEED


@pytest.mark.parametrize("deviation", [0.3, 0.6])
def test_a_pool_knows_how_much_its_engines_fluctuate(deviation: float) -> None:
    found = math.sqrt(fluctuating(deviation).variance)
    assert found == pytest.approx(deviation, rel=0.25)


def test_the_more_engines_fluctuate_the_more_counts_as_the_same() -> None:
    found = [fluctuating(deviation).same for deviation in (0.01, 0.5, 0.8, 2.0)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (SAME_SPEED, MOST_SAME)


def test_one_engine_that_changes_is_no_fluctuation() -> None:
    pool = Fluctuation()
    steady = [SteadySeconds() for _ in range(3)]
    for tick in range(100):
        for each, seconds in zip(steady, (0.02, 0.02, 0.16 if tick % 8 < 4 else 0.02), strict=True):
            each.measured(seconds, pool)
        pool.tick()
    assert pool.variance == 0.0


def test_where_engines_fluctuate_one_measurement_is_not_believed_and_many_are() -> None:
    pool, steady = fluctuating(0.6), SteadySeconds()
    steady.measured(0.02, pool)
    steady.measured(0.16, pool)
    assert steady.value is not None
    assert steady.value < SLOW * 0.02
    for _ in range(12):
        steady.measured(0.16, pool)
    assert steady.value > SLOW * 0.02


def test_what_is_forgotten_is_not_known() -> None:
    steady = SteadySeconds()
    steady.measured(0.02, Fluctuation())
    steady.reset()
    assert steady.value is None


def test_a_clock_that_stands_still_is_no_infinite_speed() -> None:
    steady = SteadySeconds()
    steady.measured(0.0, Fluctuation())
    assert steady.value == pytest.approx(LEAST_SECONDS)


@pytest.mark.parametrize(
    ("best", "limit"),
    [
        (None, RECOVERED),
        (1.0, RECOVERED),
        (1.6, 2.0),
        (2.2, MOST_RECOVERED),
        (MOST_RECOVERED, RECOVERED),  # it has been slow, or nearly, since it joined
        (8.0, RECOVERED),
    ],
)
def test_an_engine_has_recovered_when_it_is_about_what_it_was_at_its_best(
    best: float | None, limit: float
) -> None:
    history = None if best is None else SlowdownHistory(8.0, best)
    assert recovered_below(history) == pytest.approx(limit)
