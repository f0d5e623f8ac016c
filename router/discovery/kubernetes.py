"""Finds engines as pods, by their labels: list, then watch.

A watch is short, and the next one continues where it ended. After any failure there is a new list,
so nothing depends on seeing all events; there is also a new list every few minutes.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from random import Random

from router.core.membership.entry import Target
from router.core.values import Endpoint, Role
from router.discovery.api_server import ApiFailure, ApiServer, Bookmark, Change, Expired
from router.discovery.pods import (
    INIT_PORTS,
    Annotations,
    Pod,
    PodEngine,
    PodTargets,
    in_several_roles,
)
from router.discovery.source import Backoff, OnAnswer, OnTargets, Outage

__all__ = ["RESYNC_SECONDS", "WATCH_SECONDS", "KubernetesSource", "PodStore", "PodWatch"]

log = logging.getLogger(__name__)

WATCH_SECONDS = 60
"""Duration of a watch in seconds. A connection that is silent for longer is dead, so this is also
how long the router may be outdated behind a connection that was cut silently."""

SHORTEST_SECONDS = 1.0
"""Seconds. A watch without events that ends sooner was refused by something in between."""

RESYNC_SECONDS = 300.0
"""Seconds between lists while there are no failures, to correct for missed events."""


class KubernetesSource:
    """The pods that match `selectors`, each with all of `ports` (numbers or names).

    `login` opens the connection to the API server. With `needs_receivers` a decode engine is
    ignored if its pod has no annotation with its KV receiver.
    """

    name = "kubernetes"

    def __init__(
        self,
        login: Callable[[], Awaitable[ApiServer]],
        selectors: Mapping[Role, str],
        ports: Iterable[int | str],
        *,
        needs_receivers: bool = False,
        on_answer: OnAnswer = lambda server: None,
        chance: Random | None = None,
    ) -> None:
        self._login = login
        self._selectors = selectors
        self._targets = PodTargets(ports)
        self._needs_receivers = needs_receivers
        self._on_answer = on_answer
        self._chance = chance or Random()
        self._watches: dict[Role, PodWatch] = {}
        self._on_targets: OnTargets = lambda targets: None
        self._listed: tuple[tuple[Target, Annotations], ...] | None = None
        self._problems: frozenset[str] = frozenset()

    @property
    def servers(self) -> tuple[str, ...]:
        """The API server."""
        return (self.name,)

    @property
    def annotations(self) -> Mapping[Endpoint, Annotations]:
        """The annotations of the pods behind the targets, as of the latest call of `on_targets`,
        before which they are updated."""
        return {target.endpoint: annotations for target, annotations in self._listed or ()}

    async def watch(self, on_targets: OnTargets) -> None:
        """See `Source`. The first set is passed on when the pods of all selectors are known."""
        self._on_targets, self._listed = on_targets, None
        api = await self._login()
        outage = Outage("the Kubernetes API", on_answer=partial(self._on_answer, self.name))
        self._watches = {
            role: PodWatch(api, selector, outage, self._changed, self._chance)
            for role, selector in self._selectors.items()
        }
        try:
            async with asyncio.TaskGroup() as group:
                for watch in self._watches.values():
                    group.create_task(watch.run())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await api.close()

    def _changed(self) -> None:
        if not all(watch.has_listed for watch in self._watches.values()):
            return
        pods = {role: watch.store.pods for role, watch in self._watches.items()}
        found = self._targets.find(pods)
        self._report({*self._problems_of(pods), *self._without_receiver(found.values())})
        now = tuple((each.target, each.pod.annotations) for each in self._usable(found.values()))
        if now != self._listed:
            self._listed = now
            self._on_targets(tuple(target for target, _ in now))

    def _usable(self, found: Iterable[PodEngine]) -> Iterable[PodEngine]:
        if not self._needs_receivers:
            return found
        return [each for each in found if not self._lacks_receiver(each)]

    def _lacks_receiver(self, found: PodEngine) -> bool:
        is_decode = found.target.endpoint.role is Role.DECODE
        return is_decode and found.target.receiver is None

    # Problems of single pods, which are ignored or used without the affected detail. Each is logged
    # once.

    def _problems_of(self, pods: Mapping[Role, Iterable[Pod]]) -> Iterator[str]:
        for name, role in in_several_roles(pods):
            yield f"pod {name} is taken by several selectors: it is used as a {role} engine"
        yield from self._targets.problems

    def _without_receiver(self, found: Iterable[PodEngine]) -> Iterator[str]:
        for each in found if self._needs_receivers else ():
            if self._lacks_receiver(each):
                yield f"pod {each.pod.name} is not used: LMCache needs its annotation {INIT_PORTS}"

    def _report(self, problems: Iterable[str]) -> None:
        found = frozenset(problems)
        for text in sorted(found - self._problems):
            log.warning("discovery by Kubernetes: %s", text)
        self._problems = found


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
            except ApiFailure as failure:
                self._outage.failed(self._selector, failure.kind, str(failure))
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
                raise ApiFailure("server", "the API server ends watches as soon as they begin")
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


class PodStore:
    """The pods that match one selector, from a list and the events after it.

    An event counts only if it is newer than the known state of its pod, so that events that arrive
    twice, late or out of order give the same set as a new list.
    """

    def __init__(self) -> None:
        self._listed_at = 0
        """The resourceVersion of the last list, which includes everything up to it."""
        self._known: dict[str, tuple[int, Pod | None]] = {}
        """By UID: the latest version seen, and the pod; None if it was deleted. Deleted pods are
        only dropped by the next list."""

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The existing pods, in no particular order."""
        return tuple(pod for _, pod in self._known.values() if pod is not None)

    def replace(self, pods: Iterable[Pod], version: int) -> None:
        """Apply a list. Pods that are not in it are gone, whether or not there was an event."""
        self._listed_at = version
        self._known = {pod.uid: (pod.version, pod) for pod in pods}

    def put(self, pod: Pod) -> None:
        """Add or replace a pod."""
        self._take(pod, pod)

    def remove(self, pod: Pod) -> None:
        """Remove a pod that was deleted or no longer matches the selector."""
        self._take(pod, None)

    def _take(self, pod: Pod, now: Pod | None) -> None:
        known, _ = self._known.get(pod.uid, (self._listed_at, None))
        if pod.version > max(known, self._listed_at):
            self._known[pod.uid] = (pod.version, now)
