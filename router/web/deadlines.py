"""Client time-outs: one timer checks the deadlines of all connections."""

import asyncio
from collections.abc import Collection
from typing import Final, Protocol

__all__ = ["DeadlineSweep"]

SWEEP_SECONDS: Final = 1.0
"""Longest time in seconds between two sweeps; time-outs are tens of seconds."""


class Waiting(Protocol):
    """A connection. `deadline` is infinite while nothing is awaited from its client."""

    deadline: float

    def on_deadline(self) -> None:
        """The deadline has passed."""


class DeadlineSweep:
    """Checks all connections at intervals. Ten thousand take half a millisecond."""

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
