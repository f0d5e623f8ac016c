"""How late the event loop is: what every stream waits while something else is computed."""

import asyncio
from collections.abc import Callable

__all__ = ["INTERVAL_SECONDS", "LoopLagMonitor"]

INTERVAL_SECONDS = 0.01
"""Between two looks: a stall is seen but for so much of it. A hundred timers a second cost a
thousandth of a core."""


class LoopLagMonitor:
    """Calls `late` with the seconds by which each beat came late."""

    def __init__(self, late: Callable[[float], None]) -> None:
        self._late = late
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Begin. Needs a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._wait(self._loop.time())

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, now: float) -> None:
        self._due = now + INTERVAL_SECONDS
        self._timer = self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        now = self._loop.time()
        self._late(max(0.0, now - self._due))
        self._wait(now)
