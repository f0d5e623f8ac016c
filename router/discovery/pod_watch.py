"""Keeps the pods of one label selector in sync with the API server: list, then watch.

A watch is short, and the next one continues where it ended. After any failure there is a new list,
so nothing depends on seeing all events; there is also a new list every few minutes.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from random import Random

from router.discovery.api_server import ApiServer, Expired, Trouble
from router.discovery.backoff import Backoff
from router.discovery.outage import Outage
from router.discovery.pod_store import PodStore
from router.discovery.watch_event import Bookmark, Change

__all__ = ["RESYNC_SECONDS", "WATCH_SECONDS", "PodWatch"]

WATCH_SECONDS = 60
"""Duration of a watch in seconds. A connection that is silent for longer is dead, so this is also
how long the router may be outdated behind a connection that was cut silently."""

SHORTEST_SECONDS = 1.0
"""Seconds. A watch without events that ends sooner was refused by something in between."""

RESYNC_SECONDS = 300.0
"""Seconds between lists while there are no failures, to correct for missed events."""


class PodWatch:
    """The pods that match a selector. `on_change` is called when they may have changed."""

    def __init__(
        self,
        api: ApiServer,
        selector: str,
        outage: Outage,
        on_change: Callable[[], None],
        chance: Random,
    ) -> None:
        self._api = api
        self._selector = selector
        self._outage = outage
        self._on_change = on_change
        self._chance = chance
        self._backoff = Backoff(chance)
        self._version = 0
        """The resourceVersion up to which events are known; the next watch starts there."""
        self.store = PodStore()
        self.has_listed = False
        """Whether the store has been filled."""

    async def run(self) -> None:
        """Run until cancelled. Raises WrongConfiguration."""
        while True:
            try:
                await self._list()
                await self._watch_until_resync()
            except Expired:  # not an error, but must not become a flood
                await asyncio.sleep(self._backoff.next())
            except Trouble as trouble:
                self._outage.failed(self._selector, trouble.kind, str(trouble))
                await asyncio.sleep(self._backoff.next())

    async def _list(self) -> None:
        found = await self._api.list_pods(self._selector)
        self._version = found.version
        self.store.replace(found.pods, found.version)
        self.has_listed = True
        self._outage.answered(self._selector)
        self._on_change()

    async def _watch_until_resync(self) -> None:
        due = time.monotonic() + RESYNC_SECONDS * self._chance.uniform(0.9, 1.1)
        while (began := time.monotonic()) < due:
            seconds = round(WATCH_SECONDS * self._chance.uniform(0.9, 1.1))
            seen = self._version
            await self._api.watch_pods(self._selector, seen, seconds, self._on_events)
            if self._version == seen and time.monotonic() - began < SHORTEST_SECONDS:
                raise Trouble("server", "the API server ends watches as soon as they begin")
            self._works()

    def _on_events(self, events: Sequence[Change | Bookmark]) -> None:
        for event in events:
            if isinstance(event, Bookmark):
                self._version = event.version
            else:
                self._version = event.pod.version
                (self.store.put if event.is_there else self.store.remove)(event.pod)
        self._works()
        self._on_change()

    def _works(self) -> None:
        """Report success. Only now, because a server whose lists succeed and whose watches fail has
        a lasting problem."""
        self._backoff.reset()
        self._outage.succeeded(self._selector)
