"""Finds engines as pods, by their labels."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from random import Random

from router.core.membership.entry import Target
from router.core.values import Endpoint, Role
from router.discovery.annotations import INIT_PORTS, Annotations
from router.discovery.api_server import ApiServer
from router.discovery.outage import Outage
from router.discovery.pod import Pod
from router.discovery.pod_targets import Found, PodTargets, in_both_roles
from router.discovery.pod_watch import PodWatch
from router.discovery.source import OnAnswer, OnTargets

__all__ = ["KubernetesSource"]

log = logging.getLogger(__name__)


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
        self._told: tuple[tuple[Target, Annotations], ...] | None = None
        self._problems: frozenset[str] = frozenset()

    @property
    def servers(self) -> tuple[str, ...]:
        """The API server."""
        return (self.name,)

    @property
    def annotations(self) -> Mapping[Endpoint, Annotations]:
        """The annotations of the pods behind the targets, as of the latest call of `on_targets`,
        before which they are updated."""
        return {target.endpoint: annotations for target, annotations in self._told or ()}

    async def watch(self, on_targets: OnTargets) -> None:
        """See `Source`. The first set is passed on when the pods of all selectors are known."""
        self._on_targets, self._told = on_targets, None
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
        if now != self._told:
            self._told = now
            self._on_targets(tuple(target for target, _ in now))

    def _usable(self, found: Iterable[Found]) -> Iterable[Found]:
        if not self._needs_receivers:
            return found
        return [each for each in found if not self._lacks_receiver(each)]

    def _lacks_receiver(self, found: Found) -> bool:
        is_decode = found.target.endpoint.role is Role.DECODE
        return is_decode and found.target.receiver is None

    # Problems of single pods, which are ignored or used without the affected detail. Each is logged
    # once.

    def _problems_of(self, pods: Mapping[Role, Iterable[Pod]]) -> Iterator[str]:
        for name in in_both_roles(pods):
            yield f"pod {name} is taken by both selectors: it is used as a decode engine"
        yield from self._targets.problems

    def _without_receiver(self, found: Iterable[Found]) -> Iterator[str]:
        for each in found if self._needs_receivers else ():
            if self._lacks_receiver(each):
                yield f"pod {each.pod.name} is not used: LMCache needs its annotation {INIT_PORTS}"

    def _report(self, problems: Iterable[str]) -> None:
        found = frozenset(problems)
        for text in sorted(found - self._problems):
            log.warning("discovery by Kubernetes: %s", text)
        self._problems = found
