"""Tokens per event, by an engine's usage."""

import pytest

from router.core.speed.speed_estimator import SpeedEstimator
from router.core.speed.tuning import MAX_TOKENS_PER_EVENT
from tests.core.speed.test_speed_estimator import open_leg, run


def test_tokens_per_event_follow_the_engines_usage() -> None:
    """--stream-interval 8: the first token comes alone, then eight at a time."""
    speed = SpeedEstimator()
    leg = open_leg(speed)
    leg.calibrate(1 + 8 * 20, 21, 9.0)
    run(speed, 4.0, gap=0.16)
    assert speed.counts.calibration.tokens_per_event == pytest.approx(8)
    assert speed.per_token == pytest.approx(0.02, rel=0.15)


def test_few_tokens_are_no_evidence() -> None:
    speed = SpeedEstimator()
    open_leg(speed).calibrate(12, 4, 9.0)
    assert speed.counts.calibration.tokens_per_event == 1.0


@pytest.mark.parametrize(
    ("tokens", "events"), [(0, 0), (1, 1), (0, 50), (50, 0), (1, 90), (30, 90)]
)
def test_usage_that_cannot_be_is_not_believed(tokens: int, events: int) -> None:
    speed = SpeedEstimator()
    for _ in range(3):
        open_leg(speed).calibrate(tokens, events, 9.0)
    assert speed.counts.calibration.tokens_per_event == 1.0


def test_an_engine_cannot_claim_any_speed() -> None:
    speed = SpeedEstimator()
    open_leg(speed).calibrate(10**9, 50, 9.0)
    assert speed.counts.calibration.tokens_per_event == MAX_TOKENS_PER_EVENT


def test_cached_tokens_of_answers_outweigh_the_engines_counter() -> None:
    speed = SpeedEstimator()
    speed.counts.calibration.learn(4000, 1000, by_usage=False)
    assert speed.counts.calibration.tokens_per_event == 4.0
    open_leg(speed).calibrate(41, 21, 9.0)
    assert speed.counts.calibration.tokens_per_event == 2.0
    speed.counts.calibration.learn(9000, 1000, by_usage=False)
    assert speed.counts.calibration.tokens_per_event == 2.0


def test_a_change_of_the_engine_is_learned() -> None:
    speed = SpeedEstimator()
    for tokens in (100, 400):
        for _ in range(400):
            speed.counts.calibration.learn(tokens, 100, by_usage=True)
    assert speed.counts.calibration.tokens_per_event == pytest.approx(4, rel=0.01)
    speed.reset()
    assert speed.counts.calibration.tokens_per_event == 1.0


def test_held_back_tokens_do_not_change_tokens_per_event_of_others() -> None:
    """Every third answer is a tool call of 600 tokens that a parser sends as one event."""
    speed = SpeedEstimator()
    open_leg(speed).calibrate(100, 100, 9.0)
    for _ in range(20):
        open_leg(speed).calibrate(100, 100, 9.0)
        open_leg(speed).calibrate(100, 100, 9.0)
        open_leg(speed).calibrate(600, 2, 9.0)
    assert speed.counts.calibration.tokens_per_event == pytest.approx(1.0, abs=0.02)


def test_where_all_answers_are_held_back_an_event_is_worth_many_tokens() -> None:
    speed = SpeedEstimator()
    for _ in range(200):
        open_leg(speed).calibrate(600, 2, 9.0)
    assert speed.counts.calibration.tokens_per_event == MAX_TOKENS_PER_EVENT
