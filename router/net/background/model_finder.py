"""Asks the engines for their models when a client names one that none has listed: an adapter may
have been loaded since the last probe."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from router.core.fleet.fleet import Fleet
from router.core.judge.member import Member

__all__ = ["ModelFinder"]

SECONDS_BETWEEN = 1.0
"""Least time between two rounds, because clients can send any name."""

ENGINES_PER_SECOND = 100
"""Most engines that are asked in a second: in larger fleets rounds are rarer."""

WAIT_SECONDS = 2.0
"""Longest time that a request waits for a round."""


class ModelFinder:
    """Lists the models of all engines anew, for the requests of one process. `list_models` asks
    one engine."""

    def __init__(self, fleet: Fleet, list_models: Callable[[Member], Awaitable[None]]) -> None:
        self._fleet = fleet
        self._list_models = list_models
        self._lock = asyncio.Lock()
        self._began_at = -SECONDS_BETWEEN
        """When the last round began."""

    async def find(self) -> None:
        """Wait for a round that begins now or later. Requests that wait at the same time share
        one."""
        asked_at = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS), self._lock:
                if self._began_at >= asked_at:  # another request's round
                    return
                members = [member for member in self._fleet if member.health.is_up]
                pause = max(SECONDS_BETWEEN, len(members) / ENGINES_PER_SECOND)
                await asyncio.sleep(self._began_at + pause - time.monotonic())
                self._began_at = time.monotonic()
                await asyncio.gather(*map(self._list_models, members))
