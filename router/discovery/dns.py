"""Finds engines by DNS names: the addresses of a headless service, or its SRV records."""

import asyncio
import contextlib
import re
from collections.abc import Iterable, Mapping
from functools import partial
from random import Random

from router.core.membership.engine_names import DnsName
from router.core.membership.entry import Target
from router.core.urls import normalise
from router.core.values import Endpoint, Role
from router.discovery.dns_answers import RETRY_SECONDS, AcceptedAnswer, Host
from router.discovery.dns_resolver import LookupFailed, Question, Resolver
from router.discovery.outage import Outage
from router.discovery.source import Known, OnAnswer, OnTargets, nothing_known

__all__ = ["DnsSource"]


_HOST = re.compile(r"[A-Za-z0-9_.:-]+")


class DnsSource:
    """The engines that `names` resolve to. A name is resolved again when the TTL of its answer is
    over.

    After a restart no engine is removed because a name has no answer: until it has one, the `known`
    engines of its role stay.
    """

    name = "dns"

    def __init__(
        self,
        names: Mapping[Role, Iterable[DnsName]],
        resolver: Resolver,
        chance: Random | None = None,
        on_answer: OnAnswer = lambda server: None,
        known: Known = nothing_known,
    ) -> None:
        # An engine found for both roles becomes a decode engine, which can serve requests alone.
        self._names = [
            _Name(name, role, resolver, on_answer)
            for role in (Role.DECODE, Role.PREFILL)
            for name in names.get(role, ())
        ]
        self._chance = chance or Random()
        self._known = known
        self._before: tuple[Target, ...] = ()
        """The targets that were known at the start."""
        self._on_targets: OnTargets = lambda targets: None
        self._told: tuple[Target, ...] | None = None

    @property
    def servers(self) -> tuple[str, ...]:
        """Its names, as each may be served by another DNS server."""
        return tuple(dict.fromkeys(name.server for name in self._names))

    async def watch(self, on_targets: OnTargets) -> None:
        """See `Source`. The first set is passed on when each name has been resolved once and one of
        them has an answer, so that a name that does not exist yet does not delay the others."""
        self._on_targets, self._told = on_targets, None
        self._before = self._known(self.name) or ()
        async with asyncio.TaskGroup() as group:
            for name in self._names:
                group.create_task(self._follow(name))

    async def _follow(self, name: "_Name") -> None:
        while True:
            seconds = await name.ask()
            self._changed()
            # Never before the TTL is over: a cache in between would give the same answer.
            await asyncio.sleep(seconds * self._chance.uniform(1.0, 1.1))

    def _changed(self) -> None:
        if not all(name.was_asked for name in self._names):
            return
        if not any(name.was_answered for name in self._names):
            return
        unanswered = {name.role for name in self._names if not name.was_answered}
        found: dict[str, Target] = {}
        for name in self._names:
            for url in name.urls:
                found.setdefault(url, Target(Endpoint(url, name.role)))
        for target in self._before:
            if target.endpoint.role in unanswered:
                found.setdefault(target.endpoint.url, target)
        targets = tuple(found[url] for url in sorted(found))
        if targets != self._told:
            self._told = targets
            self._on_targets(targets)


class _Name:
    """One name, its questions and their results."""

    def __init__(self, name: DnsName, role: Role, resolver: Resolver, on_answer: OnAnswer) -> None:
        self.role = role
        self.server = f"dns {name.host}"
        self.was_asked = False
        self.was_answered = False
        """Whether it has resolved to engines, or reliably to none."""
        self._resolver = resolver
        self._name = name
        self._outage = Outage(f"DNS name {name.host}", on_answer=partial(on_answer, self.server))
        questions: tuple[Question, ...] = ("SRV",) if name.port is None else ("A", "AAAA")
        self._accepted = {question: AcceptedAnswer() for question in questions}

    @property
    def urls(self) -> frozenset[str]:
        """The engines. If a name has addresses of both kinds (A and AAAA), only the first kind is
        used, because each engine has one of either and would be counted twice."""
        return next((each.urls for each in self._accepted.values() if each.urls), frozenset())

    async def ask(self) -> float:
        """Ask until there are engines. Returns the seconds until to ask again."""
        seconds: list[float | None] = []
        questions = iter(self._accepted.items())
        for question, accepted in questions:
            seconds.append(await self._ask(question))
            if accepted.urls:
                break
        for question, _ in questions:  # not needed, so that its failures are none
            self._outage.succeeded(question)
        self.was_asked = True
        if self.urls or all(accepted.is_held for accepted in self._accepted.values()):
            self.was_answered = True
        return min((each for each in seconds if each is not None), default=RETRY_SECONDS)

    async def _ask(self, question: Question) -> float | None:
        """Ask one question. None if there are no such records and were none before."""
        accepted = self._accepted[question]
        try:
            answer = await self._resolver.ask(self._name, question)
            accepted.update(map(_url, answer.hosts))
        except LookupFailed as failure:
            self._outage.failed(question, failure.kind, str(failure))
            return RETRY_SECONDS
        self._outage.succeeded(question)
        if answer.hosts:
            return answer.seconds
        return RETRY_SECONDS if accepted.urls else None


def _url(host: Host) -> str:
    """The URL of a host. Raises LookupFailed for an invalid host name, since DNS names may contain
    anything."""
    name = f"[{host.host}]" if ":" in host.host else host.host
    if host.port and _HOST.fullmatch(host.host):
        with contextlib.suppress(ValueError):
            return normalise(f"http://{name}:{host.port}")
    raise LookupFailed("unusable", f"a record leads nowhere: {name}:{host.port}; correct it")
