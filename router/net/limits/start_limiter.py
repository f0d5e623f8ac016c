"""Limits how many requests start in one turn of the event loop.

Starting two thousand requests that arrive together takes 0.1 s, in which no stream would continue.
After a long turn more requests start, in proportion to its length: with a thousand streams turns
take 10 ms and more, and two thousand requests would wait for 64 of them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["LATE_SECONDS", "LATE_TURN", "LONG_TURN", "MAX_TURNS", "StartLimiter"]

LONG_TURN: Final = 0.005
"""Length of a turn in seconds, without its starts, above which more than the limit starts in the
next one. 32 starts take 2 ms and make 2 to 3 ms of work in later turns: not more than this, so that
turns do not grow by what they start."""

LATE_TURN: Final = 0.01
LATE_SECONDS: Final = 0.02
"""Requests start late if they have waited for so many seconds and a turn takes so long, without its
starts. In a burst of new requests alone it takes less."""

MAX_TURNS: Final = 8.0
"""At most this multiple of the limit starts in one turn."""


class StartLimiter:
    """Runs up to `limit` pieces of work at once, and the others in later turns, in order: `limit`
    per turn, and after a turn of more than `LONG_TURN` seconds as many for each `LONG_TURN` of it.

    `refill` restores the limit; call it a hundred times a second. (Counting per turn would take a
    callback, and thus a system call, in each turn.) `on_late` is called after each turn of more
    than LATE_TURN in which work has waited for more than LATE_SECONDS.
    """

    def __init__(self, limit: int, on_late: Callable[[], None] = lambda: None) -> None:
        self._limit = limit
        self._on_late = on_late
        self._left = limit
        self._turn_left = 0
        """What is left for waiting work in this turn; `_left` is 0 or less then, so that new work
        waits."""
        self._charged = 0
        """What was charged since waiting work was run last."""
        self._waiting: deque[tuple[Callable[[], None], int, float]] = deque()
        """With what each costs, and since when it waits, in seconds on the event loop's clock."""
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
            self._waiting.append((work, cost, loop.time()))
            self._go_on(loop)

    def charge(self, cost: int) -> None:
        """Count so many more pieces of work, because what was begun takes as long in later
        turns."""
        self._left -= cost
        self._turn_left -= cost
        if self._waiting:
            self._charged += cost

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
        now = loop.time()
        turn = now - self._turn_began
        turns = min(max(1.0, turn / LONG_TURN), MAX_TURNS)
        left, last = int(self._limit * turns), len(waiting)
        self._turn_left = max(min(1, left), left - self._charged)
        try:
            if turn > LATE_TURN and now > waiting[0][2] + LATE_SECONDS:
                self._on_late()
            while self._turn_left > 0 and last > 0:
                work, cost, _ = waiting.popleft()
                self._turn_left -= cost
                last -= 1  # work that it adds is for a later turn
                work()
        finally:
            # With an empty queue the rest of the limit stays usable, so that requests rarely have
            # to wait.
            self._left = 0 if waiting else self._turn_left
            self._charged = 0
            if waiting:
                self._go_on(loop)
