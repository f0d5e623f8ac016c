"""Spreads work that comes all at once over turns of the event loop.

Two thousand requests that arrive together would be begun in one turn, and every stream would stand
still for a tenth of a second; then their engine connections would all come in another.
"""

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["Turns"]


class Turns:
    """Does at most about `most` pieces of work in a turn; the others wait, first come first served.

    One that comes alone is done at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._done = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
        """Do it now or soon."""
        if self._waiting or self._done == self._most:
            self._waiting.append(work)
            return
        if not self._done:
            loop.call_soon(self._next, loop)
        self._done += 1
        work()

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting
        self._done = min(len(waiting), self._most)
        if self._done:
            loop.call_soon(self._next, loop)
        for _ in range(self._done):
            waiting.popleft()()
