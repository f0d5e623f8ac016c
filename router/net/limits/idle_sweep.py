"""Idle time-outs for engines' answers and for clients that wait, with one timer for all of them.

A timer per stream costs a few microseconds per request; a sweep over two thousand streams takes
less than a millisecond, once a second.
"""

import asyncio
from typing import Protocol

__all__ = ["IdleTimeoutSweep", "Watched"]

SWEEP_SECONDS = 1.0
"""Seconds between two sweeps. Time-outs are tens of seconds, so one more does not matter."""


class Watched(Protocol):
    """Something with an idle time-out."""

    def check_idle(self, now: float) -> None:
        """Act if it has been idle for too long. `now` is the event loop's clock, in seconds."""


class IdleTimeoutSweep:
    """Calls `check_idle` of everything that is watched, about once a second."""

    def __init__(self, shortest_seconds: float) -> None:
        self._interval = min(SWEEP_SECONDS, shortest_seconds / 4)
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None

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
