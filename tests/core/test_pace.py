"""Pace: seconds per token from counts, whatever comes when; legs are counted once."""

import pytest

from router.core.leg import Leg
from router.core.pace import ENOUGH, FORGET_SECONDS, PROMPT_OVERHEAD, TICK_SECONDS, Pace


def run(pace: Pace, seconds: float, *, gap: float | None, at: float = 0.0) -> float:
    """Let its streams get a token every `gap` seconds (None: never), with ticks; the time then."""
    now, due = at, at + (gap or 0.0)
    for number in range(1, round(seconds / TICK_SECONDS) + 1):
        now = at + number * TICK_SECONDS
        while gap is not None and due <= now + 1e-9:
            pace.tokens += pace.streams
            due += gap
        pace.tick(now)
    return now


def open_leg(pace: Pace, now: float = 0.0, work: int = 10) -> Leg:
    """A stream that has had its first token."""
    leg = Leg(pace, None, work, now, is_heard=True)
    leg.first(now)
    return leg


@pytest.mark.parametrize("gap", [0.01, 0.05, 0.25])
@pytest.mark.parametrize("streams", [1, 48])
def test_the_gap_does_not_depend_on_how_many_streams_there_are(gap: float, streams: int) -> None:
    pace = Pace()
    for _ in range(streams):
        open_leg(pace)
    run(pace, 4.0, gap=gap)
    assert pace.per_token == pytest.approx(gap, rel=0.05)


def test_nothing_is_known_of_an_engine_that_has_not_spoken() -> None:
    pace = Pace()
    run(pace, 2.0, gap=None)
    assert (pace.per_token, pace.per_prompt_token, pace.is_warm) == (None, None, False)


def test_silence_counts_for_as_long_as_it_has_lasted() -> None:
    pace = Pace()
    open_leg(pace)
    now = run(pace, 2.0, gap=0.05)
    run(pace, 4.0, gap=None, at=now)
    assert pace.per_token is not None
    assert pace.per_token >= 3.0


def test_a_recovery_shows_within_two_seconds() -> None:
    pace = Pace()
    open_leg(pace)
    now = run(pace, 8.0, gap=0.5)
    assert pace.per_token == pytest.approx(0.5, rel=0.1)
    run(pace, 2.0, gap=0.05, at=now)
    assert pace.per_token == pytest.approx(0.05, rel=0.2)


def test_a_few_tokens_move_the_measure_only_a_little() -> None:
    pace = Pace()
    leg = open_leg(pace)
    now = run(pace, 4.0, gap=0.1)
    leg.end(now)
    now = run(pace, 5.0, gap=None, at=now)
    before = pace.per_token
    assert before is not None
    pace.computed(ENOUGH // 4, 0.0001)
    pace.tick(now + TICK_SECONDS)
    assert pace.per_token == pytest.approx(before * 0.75, rel=0.05)


def test_what_is_old_is_forgotten() -> None:
    pace = Pace()
    leg = open_leg(pace)
    now = run(pace, 2.0, gap=0.1)
    leg.end(now)
    pace.tick(now + FORGET_SECONDS - 1)
    assert pace.is_warm
    pace.tick(now + FORGET_SECONDS + 1)
    assert not pace.is_warm


def test_prompts_are_measured_by_the_work_ahead_of_them() -> None:
    pace = Pace()
    leg = Leg(pace, None, 1000, 0.0, is_heard=True)
    leg.first(2.0)
    pace.tick(2.25)
    assert pace.per_prompt_token == pytest.approx(2.0 / (1000 + PROMPT_OVERHEAD))


def test_a_clock_that_goes_back_does_no_harm() -> None:
    pace = Pace()
    open_leg(pace, 100.0)
    pace.tokens += 5
    pace.tick(50.0)
    pace.tokens += 5
    pace.tick(51.0)
    assert pace.per_token == pytest.approx(0.1)
