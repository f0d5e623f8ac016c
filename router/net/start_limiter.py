"""Spreads work that comes all at once over turns of the event loop.

Two thousand requests that arrive together would be begun in one turn, and every stream would stand
still for a tenth of a second; then their engine connections would all come in another.
"""

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["StartLimiter"]


class StartLimiter:
    """Does `most` pieces of work at once, and so many in each turn of those that come beyond that,
    first come first served, until `refill` says that time has passed.

    To count anew in each turn would take a callback, and with it a system call, per turn.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False

    def submit(self, loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
        """Do it now or soon."""
        if self._left:
            self._left -= 1
            work()
        else:
            self._waiting.append(work)
            self._go_on(loop)

    def refill(self) -> None:
        """What comes next is done at once again, unless somebody waits."""
        if not self._waiting:
            self._left = self._most

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_due = False
        waiting = self._waiting
        try:
            for _ in range(min(len(waiting), self._most)):
                waiting.popleft()()
        finally:
            if waiting:
                self._go_on(loop)
