"""Limits how many requests start in one turn of the event loop.

Starting two thousand requests that arrive together takes 0.1 s, in which no stream would continue.
After a long turn more requests start, in proportion to its length: with a thousand streams turns
take 10 ms and more, and two thousand requests would wait for 64 of them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["LONG_TURN", "MAX_TURNS", "StartLimiter"]

LONG_TURN: Final = 0.01
"""Length of a turn in seconds above which more than the limit starts in the next one. 32 starts
take 2 to 3 ms, and with their connections and first answers 5 ms, or 8 ms over TLS: less than this,
so that turns do not grow by what they start."""

MAX_TURNS: Final = 8.0
"""At most this multiple of the limit starts in one turn."""


class StartLimiter:
    """Runs up to `limit` pieces of work at once, and the others in later turns, in order: `limit`
    per turn, and after a turn of more than `LONG_TURN` seconds as many for each `LONG_TURN` of it.

    `refill` restores the limit; call it a hundred times a second. (Counting per turn would take a
    callback, and thus a system call, in each turn.)
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._is_due = False
        self._turn_began = 0.0

    def submit(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[], None], cost: int = 1
    ) -> None:
        """Run `work` now or in one of the next turns. `cost`: how many pieces of work it counts
        for."""
        if self._left > 0:
            self._left -= cost
            work()
        else:
            self._waiting.append((work, cost))
            self._go_on(loop)

    def refill(self) -> None:
        """Restore the limit, unless work is queued."""
        if not self._waiting:
            self._left = self._limit

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_due:
            self._is_due = True
            self._turn_began = loop.time()
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_due = False
        waiting = self._waiting
        turns = (loop.time() - self._turn_began) / LONG_TURN
        left, last = int(self._limit * min(max(1.0, turns), MAX_TURNS)), len(waiting)
        try:
            while left > 0 and last > 0:
                work, cost = waiting.popleft()
                left -= cost
                last -= 1  # work that it adds is for a later turn
                work()
        finally:
            # With an empty queue the rest of the limit stays usable, so that requests rarely have
            # to wait.
            self._left = 0 if waiting else left
            if waiting:
                self._go_on(loop)
