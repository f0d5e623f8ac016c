"""Keeps the pods of one label selector in step with the API server: list, then watch.

A watch is short and the next one goes on where it ended. Whatever fails is followed by a new list,
so nothing depends on having seen every event; and there is a new list every few minutes anyway.
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
"""How long a watch lasts. One that is silent for longer is dead, so this is also how long the
router may be wrong behind a connection that was cut without a word."""

SHORTEST_SECONDS = 1.0
"""A watch that ends sooner and has told nothing was refused by something on the way."""

RESYNC_SECONDS = 300.0
"""Between two lists while all is well: what an event did not tell is put right after that."""


class PodWatch:
    """The pods that a selector takes. `on_change` is called when they may have changed."""

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
        """Up to where events are known: where the next watch begins."""
        self.store = PodStore()
        self.has_listed = False
        """Whether the store tells anything yet."""

    async def run(self) -> None:
        """Run until cancelled. Raises WrongConfiguration."""
        while True:
            try:
                await self._list()
                await self._watch_until_resync()
            except Expired:  # nothing is wrong; but lists that expire at once must not be a flood
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
        """Only now: a server whose lists succeed and whose watches fail is in trouble all along."""
        self._backoff.reset()
        self._outage.succeeded(self._selector)
