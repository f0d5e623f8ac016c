"""Measures event loop lag: how long all streams wait while one callback runs."""

import asyncio
from collections.abc import Callable

__all__ = ["INTERVAL_SECONDS", "LoopLagMonitor"]

INTERVAL_SECONDS = 0.01
"""Seconds between measurements, and their resolution. A hundred timers a second take 0.5 % of a
core of a process that is idle otherwise."""


class LoopLagMonitor:
    """Calls `observe` with the lag in seconds, every INTERVAL_SECONDS."""

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
