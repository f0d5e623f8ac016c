"""Slow against the pool: the lower median, a band in which engines are alike, bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.judge.rules import median_of, prompt_slowdown, recovered_below, slowdown
from router.core.judge.tuning import (
    MIN_SLOWDOWN,
    MOST_RECOVERED,
    NOISE_SECONDS,
    RECOVERED,
    SAME_PROMPTS,
    SLOW,
)
from router.core.judge.verdict import SlowdownHistory

gaps = st.floats(0.001, 100)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [([], None), ([3.0], 3.0), ([1.0, 8.0], 1.0), ([8.0, 1.0, 2.0], 2.0), ([1, 1, 2, 2], 1)],
)
def test_usual_is_the_lower_median(measured: list[float], expected: float | None) -> None:
    assert median_of(measured) == expected


@given(st.lists(gaps, min_size=1))
def test_at_least_half_of_the_engines_are_as_fast_as_usual(measured: list[float]) -> None:
    middle = median_of(measured)
    assert middle is not None
    assert sum(gap <= middle for gap in measured) * 2 >= len(measured)


@pytest.mark.parametrize(("measured", "of"), [(None, 1.0), (1.0, None), (1.0, 0.0)])
def test_unknown_values_are_defaults(measured: float | None, of: float | None) -> None:
    assert slowdown(measured, of) == 1.0


@pytest.mark.parametrize(
    ("measured", "expected"), [(1.0, 1.0), (1.2, 1.0), (0.85, 1.0), (8.0, 8.0), (0.1, MIN_SLOWDOWN)]
)
def test_engines_that_are_alike_count_as_equal(measured: float, expected: float) -> None:
    assert slowdown(measured, 1.0, noise=0.0) == expected


@pytest.mark.parametrize(
    ("measured", "slow", "expected"),
    [
        (0.2, 1.0, 1.0),
        (SAME_PROMPTS, 1.0, 1.0),
        (8.0, 1.0, 8.0),
        (8.0, 8.0, 1.0),
        (8.0, 2.0, 4.0),
        (8.0, 0.5, 8.0),
        (None, 8.0, 1.0),
    ],
)
def test_an_engine_is_slower_with_prompts_than_with_tokens_or_counts_as_no_slower(
    measured: float | None, slow: float, expected: float
) -> None:
    assert prompt_slowdown(measured, 1.0, slow) == expected


def test_below_the_noise_no_engine_is_slow() -> None:
    assert slowdown(NOISE_SECONDS, NOISE_SECONDS / 10) < SLOW
    assert slowdown(0.16, 0.02) > SLOW


@given(gaps, gaps)
def test_slower_is_never_a_smaller_ratio(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert slowdown(low, 1.0) <= slowdown(high, 1.0)


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
def test_an_engine_has_recovered_near_its_best_speed(best: float | None, limit: float) -> None:
    history = None if best is None else SlowdownHistory(8.0, best)
    assert recovered_below(history) == pytest.approx(limit)
