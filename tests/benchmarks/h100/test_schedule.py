"""A run that breaks, hangs or is late costs only itself."""

import asyncio
import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from benchmarks.h100 import schedule
from benchmarks.h100.schedule import DONE, SKIPPED, Outcome, TimeLimit, carry_out, time_limit

FOREVER = 1000.0


def done() -> Mapping[str, Any]:
    return {"tokens": 1}


def broken() -> Mapping[str, Any]:
    raise RuntimeError("no engine")


def late() -> Mapping[str, Any]:
    signal.raise_signal(signal.SIGALRM)
    raise AssertionError("the alarm was not heard")


def outcomes(*runs: Callable[[], Mapping[str, Any]], total: float = FOREVER) -> list[Outcome]:
    named = [(run.__name__, run) for run in runs]
    kept: list[Outcome] = []
    found = carry_out(named, {name: FOREVER for name, _ in named}, total, kept.append)
    assert kept == found
    return found


def test_a_run_that_fails_is_followed_by_the_next() -> None:
    first, second = outcomes(broken, done)
    assert first.outcome == "failed: RuntimeError: no engine"
    assert (second.outcome, second.figures) == (DONE, {"tokens": 1})


def test_a_run_at_its_limit_is_followed_by_the_next() -> None:
    first, second = outcomes(late, done)
    assert first.outcome == "stopped at its time limit of 1000 s"
    assert second.outcome == DONE


def test_a_run_without_time_is_not_begun() -> None:
    (only,) = outcomes(broken, total=schedule.LEAST - 1)
    assert only.outcome == SKIPPED


def test_a_run_has_no_more_than_what_is_left() -> None:
    ticks = iter(range(0, 1000, 30))

    def measured() -> Mapping[str, Any]:
        seconds, _ = signal.getitimer(signal.ITIMER_REAL)
        return {"limit": seconds}

    clock = lambda: float(next(ticks))  # noqa: E731
    found = carry_out([("measured", measured)], {"measured": 500.0}, 100.0, print, clock)
    assert found[0].figures["limit"] == pytest.approx(70, abs=1)


def test_ctrl_c_ends_all() -> None:
    def interrupted() -> Mapping[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outcomes(interrupted, done)


def test_a_limit_ends_an_event_loop_and_cleans_up() -> None:
    cleaned = []

    async def waits() -> None:
        task = asyncio.create_task(asyncio.Event().wait())
        try:
            asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGALRM)
            await task
        finally:
            cleaned.append(True)

    with pytest.raises(TimeLimit), time_limit(FOREVER):
        asyncio.run(waits())
    assert cleaned


def test_no_alarm_outlives_its_run() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(FOREVER):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is before
