"""Finds engines by DNS names.

dnspython instead of the system's resolver: it returns the TTL of an answer, supports SRV records
and needs no thread.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Any, Literal, NamedTuple, Protocol

from router.core.membership.engine_names import DnsName
from router.core.membership.entry import Target
from router.core.urls import normalise
from router.core.values import Endpoint, Role
from router.discovery.source import Known, OnAnswer, OnTargets, Outage, nothing_known

__all__ = [
    "LONGEST_SECONDS",
    "RETRY_SECONDS",
    "SHORTEST_SECONDS",
    "AcceptedAnswer",
    "Answer",
    "DnsSource",
    "Host",
    "LookupFailed",
    "Question",
    "Resolver",
    "SystemResolver",
]

SHORTEST_SECONDS = 1.0
"""Shortest interval in seconds. A TTL of 0 means that answers must not be shared, not that servers
should be flooded."""

LONGEST_SECONDS = 30.0
"""Longest interval in seconds, so that with a TTL of an hour a new engine need not wait for an
hour."""

RETRY_SECONDS = 5.0
"""Seconds until a retry after a failed question or an empty answer; CoreDNS' default TTL."""


class Host(NamedTuple):
    """Where an engine listens: an address or name, and a port."""

    host: str
    port: int


class Answer(NamedTuple):
    """A server's answer to one question. Without hosts: the name exists but has no such records."""

    hosts: tuple[Host, ...]
    ttl: float
    """Seconds for which it may be cached."""

    @property
    def seconds(self) -> float:
        """Seconds until the question should be asked again."""
        return min(max(self.ttl, SHORTEST_SECONDS), LONGEST_SECONDS)


class AcceptedAnswer:
    """The accepted result of one question. An empty answer is accepted only if the next one is
    empty too, because a server that has just started, or has lost its source, gives such
    answers."""

    def __init__(self) -> None:
        self.urls: frozenset[str] = frozenset()
        self.is_held = False
        """Whether an answer has been accepted."""
        self._is_doubted = False

    def update(self, urls: Iterable[str]) -> None:
        """Process an answer. Failed questions have no answer and change nothing."""
        found = frozenset(urls)
        if found or self._is_doubted:
            self.urls, self.is_held = found, True
        self._is_doubted = not found


LOOKUP_TIMEOUT_SECONDS = 5.0
"""Time-out in seconds for one question, with all servers, search domains and retries."""

SERVERS = "the DNS servers in /etc/resolv.conf"

Question = Literal["A", "AAAA", "SRV"]


class LookupFailed(Exception):
    """There is no answer. `kind` is from a fixed set, and each kind is logged once."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Resolver(Protocol):
    """Queries DNS servers."""

    async def ask(self, name: DnsName, question: Question) -> Answer:
        """The records of a name. Addresses get the name's port, SRV records have their own. Raises
        LookupFailed."""


class SystemResolver:
    """Queries the servers in /etc/resolv.conf, with its search domains. `resolver`: a dnspython
    resolver to use instead.

    Raises ImportError, whose message names the extra to install, and ValueError if that file names
    no server.
    """

    def __init__(self, resolver: Any = None) -> None:
        try:
            import dns.asyncresolver  # noqa: PLC0415 - an extra
            import dns.exception  # noqa: PLC0415
        except ImportError as error:
            raise ImportError(
                f"discovery by DNS needs {error.name}: pip install 'pd-router[dns]'"
            ) from None
        self._dns = dns
        try:
            self._resolver = resolver or dns.asyncresolver.Resolver()
        except dns.exception.DNSException as error:
            raise ValueError(f"discovery by DNS: {error}; check /etc/resolv.conf") from None

    async def ask(self, name: DnsName, question: Question) -> Answer:
        """See `Resolver`."""
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_SECONDS):
                answer = await self._resolver.resolve(
                    name.host,
                    question,
                    raise_on_no_answer=False,
                    search=True,
                    lifetime=LOOKUP_TIMEOUT_SECONDS,
                )
        except self._dns.resolver.NXDOMAIN:
            raise LookupFailed("nxdomain", f"there is no name {name.host}; check it") from None
        except (TimeoutError, self._dns.exception.Timeout):
            text = f"no answer for {name.host} in {LOOKUP_TIMEOUT_SECONDS:g} s; check {SERVERS}"
            raise LookupFailed("unanswered", text) from None
        except (self._dns.exception.DNSException, OSError) as error:
            text = f"no answer for {name.host} ({error}); check {SERVERS}"
            raise LookupFailed("unanswered", text) from None
        if answer.rrset is None:
            return Answer((), 0.0)
        return Answer(tuple(_hosts(answer.rrset, name.port)), float(answer.rrset.ttl))


def _hosts(records: Any, port: int | None) -> Iterator[Host]:
    for record in records:
        if port is not None:
            yield Host(str(record.address), port)
        elif (host := record.target.to_text(omit_final_dot=True).lower()) not in ("", "."):
            yield Host(host, int(record.port))  # a target "." means that there is no such service


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
        # An engine found for several roles becomes a decode engine, which can serve requests alone.
        self._names = [
            _Name(name, role, resolver, on_answer)
            for role in (Role.DECODE, Role.PREFILL, Role.ENCODE)
            for name in names.get(role, ())
        ]
        self._chance = chance or Random()
        self._known = known
        self._before: tuple[Target, ...] = ()
        """The targets that were known at the start."""
        self._on_targets: OnTargets = lambda targets: None
        self._listed: tuple[Target, ...] | None = None

    @property
    def servers(self) -> tuple[str, ...]:
        """Its names, as each may be served by another DNS server."""
        return tuple(dict.fromkeys(name.server for name in self._names))

    async def watch(self, on_targets: OnTargets) -> None:
        """See `Source`. The first set is passed on when each name has been resolved once and one of
        them has an answer, so that a name that does not exist yet does not delay the others."""
        self._on_targets, self._listed = on_targets, None
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
        if targets != self._listed:
            self._listed = targets
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
