"""Notices answers that have gone silent, with one timer for all of them.

A timer per stream costs a few microseconds per request; a sweep over two thousand streams costs
less than a millisecond, once in a while.
"""

import asyncio
from typing import Protocol

__all__ = ["IdleTimeoutSweep", "Watched"]

SWEEP_SECONDS = 1.0
"""Time-outs are tens of seconds; a second late is no matter."""


class Watched(Protocol):
    """Something that may wait too long."""

    def check_idle(self, now: float) -> None:
        """Give up if it has waited too long. `now` is the event loop's clock."""


class IdleTimeoutSweep:
    """Sweeps over what is watched, while there is anything to watch."""

    def __init__(self, shortest_seconds: float) -> None:
        self._interval = min(SWEEP_SECONDS, shortest_seconds / 4)
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, one: Watched) -> None:
        """Check it from now on."""
        self._watched.add(one)
        self._arm()

    def forget(self, one: Watched) -> None:
        """Check it no more; doing it again changes nothing."""
        self._watched.discard(one)

    def close(self) -> None:
        """Stop."""
        self._watched.clear()
        self._disarm()

    def _sweep(self) -> None:
        self._disarm()
        now = asyncio.get_running_loop().time()
        for one in list(self._watched):
            one.check_idle(now)  # what is given up on may begin elsewhere, and be watched there
        if self._watched:
            self._arm()

    def _arm(self) -> None:
        """There is at most one timer: two would each arm the next for ever."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._sweep)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
