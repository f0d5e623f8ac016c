"""SpeedEstimator: seconds per token from counts; each leg is counted once."""

import pytest

from router.core.fleet.leg_timer import LegTimer
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.speed.tuning import (
    FORGET_SECONDS,
    PROMPT_OVERHEAD,
    RELIABLE_TOKENS,
    SILENT_SECONDS,
    TICK_SECONDS,
)


def run(speed: SpeedEstimator, seconds: float, *, gap: float | None, at: float = 0.0) -> float:
    """Let its streams get a token every `gap` seconds (None: never), with ticks; the time then."""
    now, due = at, at + (gap or 0.0)
    for number in range(1, round(seconds / TICK_SECONDS) + 1):
        now = at + number * TICK_SECONDS
        while gap is not None and due <= now + 1e-9:
            speed.counts.counter.tokens += speed.counts.streams
            due += gap
        speed.tick(now)
    return now


def open_leg(speed: SpeedEstimator, now: float = 0.0, work: int = 10) -> LegTimer:
    """A stream that has had its first token."""
    leg = LegTimer(speed.counts, None, work, now, tracks_first_token=True)
    leg.first_token(now)
    return leg


@pytest.mark.parametrize("gap", [0.01, 0.05, 0.25])
@pytest.mark.parametrize("streams", [1, 48])
def test_the_gap_does_not_depend_on_how_many_streams_there_are(gap: float, streams: int) -> None:
    speed = SpeedEstimator()
    for _ in range(streams):
        open_leg(speed)
    run(speed, 4.0, gap=gap)
    assert speed.per_token == pytest.approx(gap, rel=0.05)


def test_nothing_is_known_of_an_engine_that_has_not_spoken() -> None:
    speed = SpeedEstimator()
    run(speed, 2.0, gap=None)
    assert (speed.per_token, speed.per_prompt_token, speed.counts.is_warm) == (None, None, False)


def test_silence_counts_for_as_long_as_it_has_lasted() -> None:
    speed = SpeedEstimator()
    open_leg(speed)
    now = run(speed, 2.0, gap=0.05)
    run(speed, 4.0, gap=None, at=now)
    assert speed.per_token is not None
    assert speed.per_token >= 3.0


@pytest.mark.parametrize("pause", [0.25, 0.5, 1.0])
def test_a_pause_of_up_to_a_second_is_no_slowness(pause: float) -> None:
    speed = SpeedEstimator()
    open_leg(speed)
    now = run(speed, 2.0, gap=0.02)
    seen = []
    for seconds, gap in ((pause, None), (2.0, 0.02)):
        until = now + seconds
        while now < until:
            now = run(speed, TICK_SECONDS, gap=gap, at=now)
            seen.append(speed.per_token)
    assert seen == [pytest.approx(0.02, rel=0.1)] * len(seen)


def test_a_longer_silence_does_not_slow_the_estimate() -> None:
    speed = SpeedEstimator()
    open_leg(speed)
    now = run(speed, 2.0, gap=0.02)
    now = run(speed, 1.5, gap=None, at=now)
    assert speed.per_token is not None
    assert speed.per_token >= 0.1
    run(speed, 2 * TICK_SECONDS, gap=0.02, at=now)
    assert speed.per_token == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("gap", [0.3, 0.4, 0.6, 0.8, 1.2])
@pytest.mark.parametrize("streams", [1, 8])
def test_long_steps_are_no_pauses(gap: float, streams: int) -> None:
    speed = SpeedEstimator()
    for _ in range(streams):
        open_leg(speed)
    now = run(speed, 2.0, gap=0.02)
    now = run(speed, 5.0, gap=gap, at=now)
    measured = []
    for _ in range(24):
        now = run(speed, TICK_SECONDS, gap=gap, at=now)
        measured.append(speed.per_token)
    assert min(each for each in measured if each is not None) > 0.5 * gap


def test_a_recovery_shows_within_two_seconds() -> None:
    speed = SpeedEstimator()
    open_leg(speed)
    now = run(speed, 8.0, gap=0.5)
    assert speed.per_token == pytest.approx(0.5, rel=0.1)
    run(speed, 2.0, gap=0.05, at=now)
    assert speed.per_token == pytest.approx(0.05, rel=0.2)


def test_a_few_tokens_move_the_measure_only_a_little() -> None:
    speed = SpeedEstimator()
    leg = open_leg(speed)
    now = run(speed, 4.0, gap=0.1)
    leg.end(now)
    now = run(speed, 5.0, gap=None, at=now)
    before = speed.per_token
    assert before is not None
    speed.counts.on_unary_answer(RELIABLE_TOKENS // 4, 0.0001)
    speed.tick(now + TICK_SECONDS)
    assert speed.per_token == pytest.approx(before * 0.75, rel=0.05)


def test_old_values_are_dropped() -> None:
    speed = SpeedEstimator()
    leg = open_leg(speed)
    now = run(speed, 2.0, gap=0.1)
    leg.end(now)
    speed.tick(now + FORGET_SECONDS - 1)
    assert speed.per_token is not None
    speed.tick(now + FORGET_SECONDS + 1)
    assert speed.per_token is None


def test_an_engine_that_was_idle_for_long_has_still_produced_tokens() -> None:
    """So that its silence is a stall, after a time that its prompts may take."""
    speed = SpeedEstimator()
    leg = LegTimer(speed.counts, None, 936, 0.0, tracks_first_token=True)
    leg.unary_answer(1.0)
    leg.end(1.0)
    speed.tick(1.0)
    speed.tick(FORGET_SECONDS + 2)
    assert (speed.per_prompt_token, speed.last_per_prompt_token) == (None, 0.001)
    assert speed.counts.is_warm
    speed.reset()
    assert (speed.counts.is_warm, speed.last_per_prompt_token) == (False, 0.0)


@pytest.mark.parametrize(
    ("seconds", "is_known"), [(SILENT_SECONDS + 9, True), (SILENT_SECONDS / 2, False)]
)
def test_vain_waits_measure_speed_unless_refused(seconds: float, is_known: bool) -> None:
    speed = SpeedEstimator()
    leg = open_leg(speed)
    now = run(speed, 2.0, gap=0.1)
    leg.end(now)
    for _ in range(8):
        probe = LegTimer(speed.counts, None, 2, now, tracks_first_token=True)
        speed.tick(now + seconds)
        probe.end(now + seconds)
        now += 11.0
    assert (speed.per_token is not None) == is_known


def test_prompts_are_measured_by_the_work_ahead_of_them() -> None:
    speed = SpeedEstimator()
    leg = LegTimer(speed.counts, None, 1000, 0.0, tracks_first_token=True)
    leg.first_token(2.0)
    speed.tick(2.25)
    assert speed.per_prompt_token == pytest.approx(2.0 / (1000 + PROMPT_OVERHEAD))


def test_prompt_measurements_age_without_prompts() -> None:
    speed = SpeedEstimator()
    open_leg(speed, work=1000)
    now = run(speed, 2.0, gap=0.1)
    age = speed.per_prompt_token_age
    assert 0 < age <= 8  # the buckets in which it was measured do not count
    now = run(speed, 1.0, gap=0.1, at=now)
    assert speed.per_prompt_token_age == age + 4
    waiting = LegTimer(speed.counts, None, 1000, now, tracks_first_token=True)
    now = run(speed, 1.0, gap=0.1, at=now)
    assert speed.per_prompt_token_age == 0
    waiting.first_token(now)
    speed.tick(now + TICK_SECONDS)
    assert speed.per_prompt_token_age == 0
