"""Stall: open streams without tokens, its end, and the patience with a cold engine."""

import pytest

from router.core.fleet.leg_timer import LegTimer
from router.core.judge.rules import stall_after
from router.core.judge.tuning import COLD_SECONDS, GAP_FACTOR, RETRY_SECONDS, TRANSFER_SECONDS
from router.core.judge.verdict import CLEAR, Stall
from router.core.speed.scrapes import has_generated, is_warm
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.values import Gauges


def heard(gap: float = 0.02, streams: int = 1, at: float = 10.0) -> SpeedEstimator:
    """An engine that has just given a token to its streams."""
    speed = SpeedEstimator()
    speed.counts.is_warm, speed.per_token = True, gap
    for _ in range(streams):
        LegTimer(speed.counts, None, 10, at, tracks_first_token=True).first_token(at)
    return speed


def judged(
    speed: SpeedEstimator, now: float, before: Stall = CLEAR, pending: int = 0, seconds: float = 2.0
) -> Stall:
    """After a tick."""
    return stall_after(before, speed, 0.02, pending, now, seconds)


@pytest.mark.parametrize(("now", "is_stalled"), [(12.0, False), (12.1, True)])
def test_silence_beyond_the_time_out_is_a_stall(now: float, is_stalled: bool) -> None:
    assert (judged(heard(), now).since is not None) == is_stalled


def test_it_takes_much_longer_than_the_usual_gap() -> None:
    speed = heard()
    usual = 1.0
    assert stall_after(CLEAR, speed, usual, 0, 10 + GAP_FACTOR * usual, 2.0) is CLEAR
    assert stall_after(CLEAR, speed, usual, 0, 10.1 + GAP_FACTOR * usual, 2.0).since is not None


def test_events_of_many_tokens_are_further_apart() -> None:
    speed = heard()
    speed.counts.calibration.learn(320, 32, by_usage=True)
    assert judged(speed, 14.0) is CLEAR  # 20 times 10 tokens of 0.02 s
    assert judged(speed, 14.1).since is not None


@pytest.mark.parametrize(
    ("before", "now", "is_alive"),
    [
        (Gauges(generated=5), Gauges(generated=6), True),
        (Gauges(generated=5), Gauges(generated=5), False),
        (Gauges(generated=5), Gauges(generated=0), False),
        (Gauges(), Gauges(generated=6), False),
        (Gauges(generated=5), Gauges(), False),
        (None, Gauges(generated=6), False),
        (Gauges(generated=5), None, False),
    ],
)
def test_a_counter_that_grows_is_a_sign_of_life(
    before: Gauges | None, now: Gauges | None, is_alive: bool
) -> None:
    assert has_generated(before, now) == is_alive


def test_with_nothing_open_there_is_no_stall() -> None:
    assert judged(heard(streams=0), 1000.0) is CLEAR


def test_a_cold_engine_has_minutes_for_its_first_token() -> None:
    """42 s were seen while CUDA graphs were captured."""
    speed = SpeedEstimator()
    LegTimer(speed.counts, None, 10, 0.0, tracks_first_token=True)
    assert COLD_SECONDS >= 4 * 42
    assert judged(speed, COLD_SECONDS) is CLEAR
    assert judged(speed, COLD_SECONDS + 0.1).since is not None


@pytest.mark.parametrize(
    ("before", "now", "was_warm", "expected"),
    [
        (None, 0, False, False),
        (None, 500_000, False, True),  # it was warm before the router started
        (0, 1, False, True),
        (5, 0, True, False),  # it was restarted
        (5, 3, True, True),  # it was, and has had requests since
        (None, 0, True, True),  # its first token came after the scrape
        (5, None, True, True),
        (5, None, False, False),
    ],
)
def test_an_engine_is_warm_from_the_first_token_since_its_start(
    before: int | None, now: int | None, was_warm: bool, expected: bool
) -> None:
    gauges = Gauges(generated=before), Gauges(generated=now)
    assert is_warm(*gauges, was_warm=was_warm) is expected
    assert is_warm(None, None, was_warm=was_warm) is was_warm


@pytest.mark.parametrize("before", [CLEAR, Stall(20.0)])
def test_zero_switches_it_off(before: Stall) -> None:
    assert judged(heard(), 1000.0, before, seconds=0.0) is CLEAR


def test_requests_behind_a_long_prompt_wait_longer() -> None:
    speed = SpeedEstimator()
    speed.counts.is_warm, speed.last_per_prompt_token = True, 0.001
    LegTimer(speed.counts, None, 60_000, 10.0, tracks_first_token=True)
    assert judged(speed, 200.0, pending=60_000) is CLEAR
    assert judged(speed, 251.0, pending=60_000).since == 251.0


def test_how_fast_it_computes_prompts_may_not_be_known_though_it_has_produced_tokens() -> None:
    """A decode engine whose prompts were all computed elsewhere, until the prefill pool failed."""
    speed = heard(streams=0)
    LegTimer(speed.counts, None, 60_000, 20.0, tracks_first_token=True)
    assert judged(speed, 20.0 + 60_000 * 0.004, pending=60_000) is CLEAR
    assert judged(speed, 20.1 + 60_000 * 0.004, pending=60_000).since is not None


@pytest.mark.parametrize(("seconds", "limit"), [(2.0, TRANSFER_SECONDS), (60.0, 60.0)])
def test_a_kv_cache_may_take_longer_to_load_than_a_token(seconds: float, limit: float) -> None:
    speed = heard(at=10.0, streams=0)
    LegTimer(speed.counts, None, 0, 100.0, tracks_first_token=True)
    assert judged(speed, 100.0 + limit, seconds=seconds) is CLEAR
    assert judged(speed, 100.1 + limit, seconds=seconds).since is not None


def test_an_engine_that_streams_is_silent_whatever_is_loaded_there() -> None:
    speed = heard(at=10.0)
    LegTimer(speed.counts, None, 0, 10.0, tracks_first_token=True)
    assert judged(speed, 12.1).since == 12.1


def test_it_is_over_when_the_engine_speaks() -> None:
    speed = heard()
    stalled = judged(speed, 20.0)
    assert judged(speed, 21.0, stalled).since == 20.0
    speed.counts.counter.tokens += 1
    speed.counts.sync(22.0)
    speed.tick(22.0)
    assert judged(speed, 22.0, stalled) is CLEAR


def test_it_ends_after_a_long_time_without_requests() -> None:
    speed = SpeedEstimator()
    stalled = Stall(10.0)
    assert judged(speed, 10.0 + RETRY_SECONDS, stalled) is stalled
    assert judged(speed, 10.1 + RETRY_SECONDS, stalled) is CLEAR


@pytest.mark.parametrize("seconds", [2.0, 12.0, 60.0])
def test_it_lasts_while_probes_wait_in_vain(seconds: float) -> None:
    """Also where the setting is longer than a probe waits."""
    speed, stalled = heard(streams=0), Stall(20.0)
    for start in range(21, 321, 11):
        probe = LegTimer(speed.counts, None, 2, float(start), tracks_first_token=True)
        stalled = judged(speed, start + 10.0, stalled, seconds=seconds)
        probe.end(start + 10.0)
        stalled = judged(speed, start + 10.5, stalled, seconds=seconds)
    assert stalled == Stall(20.0, silent_at=328.0)
    assert judged(speed, 328.0 + RETRY_SECONDS, stalled) is stalled
    assert judged(speed, 328.1 + RETRY_SECONDS, stalled) is CLEAR


def test_probes_that_are_refused_at_once_do_not_prolong_it() -> None:
    speed, stalled = heard(streams=0), Stall(20.0)
    LegTimer(speed.counts, None, 2, 49.0, tracks_first_token=True).end(50.0)
    assert judged(speed, 51.0, stalled) is CLEAR
    LegTimer(speed.counts, None, 2, 49.0, tracks_first_token=True)
    assert judged(speed, 51.0, stalled) is stalled  # one is open just now


def test_open_streams_hold_it() -> None:
    assert judged(heard(), 1000.0, Stall(20.0)) == Stall(20.0, silent_at=1000.0)


def test_a_probe_beside_a_stream_that_hangs_ends_it_by_its_token_only() -> None:
    speed, stalled = heard(at=10.0), Stall(20.0)
    probe = LegTimer(speed.counts, None, 2, 21.0, tracks_first_token=True)
    assert judged(speed, 40.0, stalled).since == 20.0
    probe.first_token(40.0)
    assert judged(speed, 40.1, stalled) is CLEAR


def test_a_question_is_no_answer() -> None:
    """The router's own probe of an engine that everybody left must not end its stall."""
    speed = heard(streams=0)
    LegTimer(speed.counts, None, 10, 30.0, tracks_first_token=True)
    stalled = Stall(20.0)
    assert judged(speed, 31.0, stalled) is stalled
    speed.counts.counter.tokens += 1
    speed.counts.sync(32.0)
    speed.tick(32.0)
    assert judged(speed, 32.0, stalled) is CLEAR


def test_silence_begins_with_the_question() -> None:
    speed = heard(at=10.0, streams=0)
    LegTimer(speed.counts, None, 10, 100.0, tracks_first_token=True)
    assert judged(speed, 102.0, pending=10) is CLEAR
    assert judged(speed, 102.1, pending=10).since == 102.1
