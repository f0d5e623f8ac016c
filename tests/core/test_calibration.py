"""Tokens, not events: what an event is worth, by an engine's own words."""

import pytest

from router.core.calibration import MAX_TOKENS_PER_EVENT
from router.core.pace import Pace
from tests.core.test_pace import open_leg, run


def test_an_event_is_worth_the_tokens_that_the_engine_says_of_its_answers() -> None:
    """--stream-interval 8: the first token comes alone, then eight at a time."""
    pace = Pace()
    leg = open_leg(pace)
    leg.used(1 + 8 * 20, 21)
    run(pace, 4.0, gap=0.16)
    assert pace.calibration.tokens_per_event == pytest.approx(8)
    assert pace.per_token == pytest.approx(0.02, rel=0.15)


def test_a_few_tokens_tell_nothing() -> None:
    pace = Pace()
    open_leg(pace).used(12, 4)
    assert pace.calibration.tokens_per_event == 1.0


@pytest.mark.parametrize(
    ("tokens", "events"), [(0, 0), (1, 1), (0, 50), (50, 0), (1, 90), (30, 90)]
)
def test_usage_that_cannot_be_is_not_believed(tokens: int, events: int) -> None:
    pace = Pace()
    for _ in range(3):
        open_leg(pace).used(tokens, events)
    assert pace.calibration.tokens_per_event == 1.0


def test_an_engine_cannot_claim_any_speed() -> None:
    pace = Pace()
    open_leg(pace).used(10**9, 50)
    assert pace.calibration.tokens_per_event == MAX_TOKENS_PER_EVENT


def test_what_answers_say_counts_for_more_than_the_engines_counter() -> None:
    pace = Pace()
    pace.calibration.learn(4000, 1000, by_usage=False)
    assert pace.calibration.tokens_per_event == 4.0
    open_leg(pace).used(41, 21)
    assert pace.calibration.tokens_per_event == 2.0
    pace.calibration.learn(9000, 1000, by_usage=False)
    assert pace.calibration.tokens_per_event == 2.0


def test_a_change_of_the_engine_is_learned() -> None:
    pace = Pace()
    for tokens in (100, 400):
        for _ in range(400):
            pace.calibration.learn(tokens, 100, by_usage=True)
    assert pace.calibration.tokens_per_event == pytest.approx(4, rel=0.01)
    pace.forget()
    assert pace.calibration.tokens_per_event == 1.0
