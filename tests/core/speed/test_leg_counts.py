"""LegCounts: what an endpoint has generated, as the relay counts it."""

import pytest

from router.core.speed.leg_counts import EventCounts
from router.core.speed.speed_estimator import TICK_SECONDS, SpeedEstimator
from tests.core.speed.test_speed_estimator import open_leg


def test_a_clock_that_goes_back_does_no_harm() -> None:
    speed = SpeedEstimator()
    open_leg(speed, 100.0)
    speed.tokens += 5
    speed.tick(50.0)
    speed.tokens += 5
    speed.tick(51.0)
    assert speed.per_token == pytest.approx(0.1)


def test_all_that_was_counted_is_told_with_what_came_since_the_last_tick() -> None:
    speed = SpeedEstimator()
    open_leg(speed)
    speed.tokens += 3
    speed.on_unary_answer(50, 1.0)
    speed.tick(TICK_SECONDS)
    speed.tokens += 2
    speed.on_unary_answer(7, 0.1)
    assert speed.counted == EventCounts(events=5, begun=1, untracked=0, whole_tokens=57)


def test_a_probes_tokens_count_as_tokens_whatever_events_carry() -> None:
    speed = SpeedEstimator()
    speed.calibration.learn(2000, 100, by_usage=False)
    leg = open_leg(speed)
    speed.on_probe_tokens(7)
    leg.end(0.7)
    speed.tick(0.75)
    assert speed.per_token == pytest.approx(0.1)
    assert speed.was_reliable
