"""What an engine did lately: where rates fluctuate it is judged by more of it, and only there."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.fleet.leg_timer import LegTimer
from router.core.speed.speed_buckets import window_for
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.speed.tuning import MAX_BUCKETS, MIN_BUCKETS, TICK_SECONDS
from tests.core.judge.judged_pool import Pool

STEP = 0.01
"""Seconds between two tokens of an engine's stream on an average."""


def after(*tokens: int) -> SpeedEstimator:
    """An engine with four streams that gave so many tokens, tick by tick."""
    speed = SpeedEstimator()
    for _ in range(4):
        leg = LegTimer(speed.counts, None, 10, 0.0, tracks_first_token=True)
        leg.first_token(0.0)
    for number, count in enumerate(tokens, 1):
        speed.counts.counter.tokens += count
        speed.tick(number * TICK_SECONDS)
    return speed


def test_a_steady_rate_has_no_variance() -> None:
    assert after(*[10] * 16).buckets.rate_variance(0.0) == pytest.approx(0.0)


def test_a_rate_that_is_zero_every_other_tick_has_a_relative_variance_of_one() -> None:
    assert after(*[20, 0] * 8).buckets.rate_variance(0.0) == pytest.approx(1.0)


def test_a_pause_is_no_variance() -> None:
    assert after(*[10] * 12, *[0] * 4, *[10] * 4).buckets.rate_variance(0.0) == pytest.approx(0.0)


def test_one_second_gives_no_variance() -> None:
    assert after(*[20, 0] * 2).buckets.rate_variance(0.0) is None


def test_an_engine_without_tokens_has_none() -> None:
    assert after(*[0] * 16).buckets.rate_variance(0.0) is None


@given(st.floats(0.0, 1e9), st.floats(0.0, 1e9))
def test_more_variance_takes_a_window_that_is_no_shorter(one: float, other: float) -> None:
    least, most = sorted((one, other))
    assert MIN_BUCKETS <= window_for(least) <= window_for(most) <= MAX_BUCKETS


def play(pool: Pool, rates: Sequence[float], rng: Random, seconds: float) -> list[list[bool]]:
    """Every engine has one stream, and gives few tokens in most ticks, many in some, so that its
    rate is what `rates` says on an average. Returns which are slow, tick by tick."""
    seen = []
    for _ in range(round(seconds / TICK_SECONDS)):
        pool.now += TICK_SECONDS
        for member, rate in zip(pool.members, rates, strict=True):
            member.speed.counts.counter.tokens += round(rate * TICK_SECONDS * rng.expovariate(1.0))
        pool.judge.tick(pool.now)
        seen.append([member.view.is_slow for member in pool.members])
    return seen


def fluctuating(engines: int) -> tuple[Pool, Random]:
    """A pool that has fluctuated for so long that it is known."""
    pool, rng = Pool(*[None] * engines), Random(1)
    pool.streams(1)
    play(pool, [1 / STEP] * engines, rng, 8.0)
    return pool, rng


def test_equal_engines_that_fluctuate_are_hardly_ever_taken_for_slow() -> None:
    pool, rng = fluctuating(8)
    seen = play(pool, [1 / STEP] * 8, rng, 120.0)
    are_slow = [is_slow for tick in seen for is_slow in tick]
    assert sum(are_slow) < 0.005 * len(are_slow)


def test_one_of_them_that_becomes_slow_is_found_all_the_same() -> None:
    pool, rng = fluctuating(3)
    seen = play(pool, [1 / STEP, 1 / STEP, 0.125 / STEP], rng, 20.0)
    found = [tick[2] for tick in seen[MAX_BUCKETS:]]
    assert sum(found) > 0.95 * len(found)


def test_one_that_fluctuates_among_steady_ones_is_judged_as_they_are() -> None:
    pool = Pool(STEP, STEP, None)
    pool.streams(1)
    rng = Random(1)
    for _ in range(64):
        if rng.random() < 0.4:
            pool.members[2].speed.counts.counter.tokens += round(TICK_SECONDS / STEP / 0.4)
        pool.run(TICK_SECONDS)
    assert {member.speed.buckets.window for member in pool.members} == {MIN_BUCKETS}
