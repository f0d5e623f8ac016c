"""Timers of a whole process: a sweep for idle time-outs once a second, and a measurement of the
event loop's lag a hundred times a second."""

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

__all__ = ["INTERVAL_SECONDS", "SWEEP_SECONDS", "IdleTimeoutSweep", "LoopLagMonitor", "Watched"]

SWEEP_SECONDS = 1.0
"""Seconds between two sweeps. Time-outs are tens of seconds, so one more does not matter."""


class Watched(Protocol):
    """Something with an idle time-out."""

    def check_idle(self, now: float) -> None:
        """Act if it has been idle for too long. `now` is the event loop's clock, in seconds."""


class IdleTimeoutSweep:
    """Calls `check_idle` of everything that is watched, about once a second.

    A timer per stream costs a few microseconds per request; a sweep over two thousand streams takes
    less than a millisecond.
    """

    def __init__(self, shortest_seconds: float = math.inf) -> None:
        self.configure(shortest_seconds)
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None

    def configure(self, shortest_seconds: float) -> None:
        """Sweep often enough for a time-out of so many seconds, from the next sweep on."""
        self._interval = min(SWEEP_SECONDS, shortest_seconds / 4)

    def watch(self, one: Watched) -> None:
        """Start to check it."""
        self._watched.add(one)
        if self._timer is None:
            self._arm()

    def forget(self, one: Watched) -> None:
        """Stop checking it. Idempotent."""
        self._watched.discard(one)

    def close(self) -> None:
        """Stop the timer."""
        self._watched.clear()
        self._disarm()

    def _sweep(self) -> None:
        self._disarm()
        now = asyncio.get_running_loop().time()
        for one in list(self._watched):
            one.check_idle(now)  # it may be retried, and be watched again
        if self._watched and self._timer is None:  # a second timer would never end
            self._arm()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._sweep)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


INTERVAL_SECONDS = 0.01
"""Seconds between measurements, and their resolution. A hundred timers a second take 0.5 % of a
core of a process that is idle otherwise."""


class LoopLagMonitor:
    """Measures how long all streams wait while one callback runs. Calls `observe` with the lag in
    seconds, every INTERVAL_SECONDS."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Start. Needs a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._wait(self._loop.time())

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, now: float) -> None:
        self._due = now + INTERVAL_SECONDS
        self._timer = self._loop.call_at(self._due, self._measure)

    def _measure(self) -> None:
        now = self._loop.time()
        late = max(0.0, now - self._due)
        self._wait(now)  # even if `observe` raises
        self._observe(late)
