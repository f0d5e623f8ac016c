"""Stall: silence of open streams, with a way back, and never for an engine that is cold."""

import pytest

from router.core import stall
from router.core.leg import Leg
from router.core.pace import Pace
from router.core.stall import CLEAR, MUCH_LONGER, REPRIEVE_SECONDS, Stall


def heard(gap: float = 0.02, streams: int = 1, at: float = 10.0) -> Pace:
    """An engine that has just given a token to its streams."""
    pace = Pace()
    pace.per_token = gap
    for _ in range(streams):
        Leg(pace, None, 10, at, is_heard=True).first(at)
    return pace


def judged(
    pace: Pace, now: float, before: Stall = CLEAR, pending: int = 0, seconds: float = 2.0
) -> Stall:
    """After a tick."""
    return stall.after(before, pace, 0.02, pending, now, seconds)


@pytest.mark.parametrize(("now", "is_stalled"), [(12.0, False), (12.1, True)])
def test_silence_beyond_the_time_out_is_a_stall(now: float, is_stalled: bool) -> None:
    assert (judged(heard(), now).since is not None) == is_stalled


def test_it_takes_much_longer_than_the_usual_gap() -> None:
    pace = heard()
    usual = 1.0
    assert stall.after(CLEAR, pace, usual, 0, 10 + MUCH_LONGER * usual, 2.0) is CLEAR
    assert stall.after(CLEAR, pace, usual, 0, 10.1 + MUCH_LONGER * usual, 2.0).since is not None


def test_with_nothing_open_there_is_no_stall() -> None:
    pace = Pace()
    pace.per_token = 0.02
    assert judged(pace, 1000.0) is CLEAR


def test_a_cold_engine_is_never_stalled() -> None:
    pace = Pace()
    Leg(pace, None, 10, 0.0, is_heard=True)
    assert judged(pace, 42.0) is CLEAR


def test_zero_switches_it_off() -> None:
    assert judged(heard(), 1000.0, seconds=0.0) is CLEAR


def test_who_waits_for_a_long_prompt_waits_longer() -> None:
    pace = Pace()
    pace.per_prompt_token = 0.001
    Leg(pace, None, 60_000, 10.0, is_heard=True)
    assert judged(pace, 200.0, pending=60_000) is CLEAR
    assert judged(pace, 251.0, pending=60_000).since == 251.0


def test_it_is_over_when_the_engine_speaks() -> None:
    pace = heard()
    stalled = judged(pace, 20.0)
    assert judged(pace, 21.0, stalled) is stalled
    pace.tokens += 1
    pace.tick(22.0)
    assert judged(pace, 22.0, stalled) is CLEAR


def test_it_is_over_when_nobody_has_been_there_for_long() -> None:
    pace = Pace()
    stalled = Stall(10.0)
    assert judged(pace, 10.0 + REPRIEVE_SECONDS, stalled) is stalled
    assert judged(pace, 10.1 + REPRIEVE_SECONDS, stalled) is CLEAR


def test_open_streams_hold_it() -> None:
    assert judged(heard(), 1000.0, Stall(20.0)).since == 20.0


def test_a_question_is_no_answer() -> None:
    """The router's own probe of an engine that everybody left must not end its stall."""
    pace = Pace()
    pace.per_token = 0.02
    Leg(pace, None, 10, 30.0, is_heard=True)
    stalled = Stall(20.0)
    assert judged(pace, 31.0, stalled) is stalled
    pace.tokens += 1
    pace.tick(32.0)
    assert judged(pace, 32.0, stalled) is CLEAR


def test_silence_begins_with_the_question() -> None:
    pace = heard(at=10.0, streams=0)
    Leg(pace, None, 10, 100.0, is_heard=True)
    assert judged(pace, 102.0) is CLEAR
    assert judged(pace, 102.1).since == 102.1
