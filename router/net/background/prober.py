"""Probes /health and /v1/models of each engine, sometimes its /version, and scrapes its /metrics.
An engine without /health is up while it lists its models.

Each probe uses a new connection: an engine that shuts down stops listening first, and still answers
on open connections while it has streams (vLLM with --shutdown-timeout).

Each engine has two loops of its own, with jitter, so that a slow engine does not delay others.
Results are passed on as events; nothing is decided here.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import aiohttp

from router.core.events import Event, Probed, Scraped
from router.core.fleet import probing
from router.core.fleet.fleet import Fleet
from router.core.fleet.status import IS_ROUTER, SERVER
from router.core.health import Health, HealthSignal
from router.core.judge.member import Member
from router.core.urls import split_rank, with_rank
from router.core.values import Endpoint, Gauges, Role, TransferSource
from router.core.wire import exposition
from router.core.wire.jsonspan import engine_json
from router.net.background.bootstrap_servers import OTHER_RANKS, BootstrapServers
from router.net.engine.engine_session import (
    CRASHED,
    ERRORS,
    OWN,
    REFUSED,
    TIMEOUT,
    Diagnosis,
    Trouble,
    read_bounded,
)
from router.net.tasks import MemberLoops, TaskSet
from router.net.watched_files import TLSFiles

__all__ = ["Prober"]

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 4 << 20
"""Largest response in bytes that is read; vLLM's /metrics has 50 kB for each data-parallel rank,
without old LoRA series. It is read on the event loop, a megabyte in 10 ms."""

MAX_VERSION = 64
"""Longest version in characters that is kept."""

NO_MODELS = "/health answers 404 and /v1/models lists no models: is this URL an engine's base?"


UNNAMED_RANKS = Trouble(
    "no engine id",
    "MooncakeConnector with data-parallel ranks needs --data-parallel-ranks auto",
)


class _Answer(NamedTuple):
    status: int
    body: bytes


class Prober:
    """Probes /health and /v1/models, and scrapes /metrics, until it is closed."""

    def __init__(
        self,
        fleet: Fleet,
        observe: Callable[[Event], None],
        *,
        health_seconds: float,
        stats_seconds: float,
        timeout_seconds: float,
        diagnosis: Diagnosis,
        sessions: Callable[[], tuple[aiohttp.ClientSession, aiohttp.ClientSession]],
        tls: TLSFiles,
        rng: Random,
        tasks: TaskSet,
        on_ranks: Callable[[str, tuple[int, ...]], None] | None = None,
        bootstraps: BootstrapServers | None = None,
    ) -> None:
        """`on_ranks` is called with an engine's URL and data-parallel ranks if they differ from
        those in the fleet; None: ranks are ignored. `bootstraps`: where prefill engines are
        registered; None if they need not be."""
        self._on_ranks = on_ranks
        self._bootstraps = bootstraps
        self._ranks: dict[tuple[str, Role], list[Endpoint]] = {}
        """The ranks of each engine that has several; one scrape is for all of them."""
        self._fleet = fleet
        self._observe = observe
        self._health_seconds = health_seconds
        self._stats_seconds = stats_seconds
        self._timeout_seconds = timeout_seconds
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._diagnosis = diagnosis
        self._make_sessions = sessions
        self._tls = tls
        self._rng = rng
        self._loops = MemberLoops(
            tasks, {"health probe": self._probe_for_ever, "metrics scrape": self._scrape_for_ever}
        )
        self._is_started = False
        self._absent: set[tuple[Endpoint, str]] = set()
        """Optional routes that an engine does not have. It is not asked again until a probe
        fails."""
        self._sessions: tuple[aiohttp.ClientSession, aiohttp.ClientSession] | None = None
        """A session with a new connection for each probe, and one with keep-alive for scrapes."""

    async def probe_all(self) -> None:
        """Probe all engines once, concurrently, within the time-out of one probe."""
        self._open()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_seconds):
                await asyncio.gather(*map(self._probe_member, self._fleet))

    async def _probe_member(self, member: Member, number: int = 1) -> None:
        asks_version = probing.asks_version(member, number)
        probed = await self._probe(member, asks_version=asks_version)
        if (
            self._bootstraps is not None
            and probed is not None
            and probed.signal is HealthSignal.OK
            and member.endpoint.role is Role.PREFILL
            and member.entry.leaving_since is None
        ):
            probed = await self._located(member, probed, self._bootstraps)
        if probed is not None:
            self._observe(probed)

    async def list_models(self, member: Member) -> None:
        """Ask an engine for its models alone, on a connection that is kept."""
        self._open()
        assert self._sessions is not None
        asked_at = time.monotonic()
        cards = _cards(await self._get(self._sessions[1], member.endpoint, "/v1/models"))
        if cards is not None and member.health.is_up:
            signal = HealthSignal.OK
            self._observe(Probed(member.endpoint, signal, cards, asked_at=asked_at))

    def _open(self) -> None:
        if self._sessions is None:
            self._sessions = self._make_sessions()

    def start(self) -> None:
        """Start the loops. The first probes follow after one interval."""
        self._open()
        self._is_started = True
        self.follow()

    def follow(self) -> None:
        """Adapt the loops to a change of the fleet, if they were started."""
        known = {member.endpoint for member in self._fleet}
        self._absent = {each for each in self._absent if each[0] in known}
        self._ranks = {}
        for member in self._fleet:
            url, rank = split_rank(member.endpoint.url)
            if rank is not None:
                self._ranks.setdefault((url, member.endpoint.role), []).append(member.endpoint)
        if self._is_started:
            self._loops.follow(self._fleet)

    async def close(self) -> None:
        """Close the connections. The tasks must have ended before."""
        for session in self._sessions or ():
            await session.close()
        if self._bootstraps is not None:
            await self._bootstraps.close()

    async def _probe_for_ever(self, member: Member) -> None:
        # It has joined since the start, or is a rank, whose own id is still unknown.
        if member.since is None or self._lacks_source(member):
            await self._probe_member(member)
        for number in itertools.count(1):
            await self._sleep(probing.seconds_to_health_probe(member.health, self._health_seconds))
            await self._probe_member(member, number)

    async def _scrape_for_ever(self, member: Member) -> None:
        page: str | None = None
        while True:
            if _has_gauges_now(member.health) and self._is_first(member):
                page = await self._scrape(member.endpoint, page)
            await self._sleep(probing.seconds_to_scrape(member, self._stats_seconds))

    async def _probe(self, member: Member, *, asks_version: bool) -> Probed | None:
        """Probe an engine. None if this process has no resources to do so."""
        assert self._sessions is not None
        fresh, _ = self._sessions
        endpoint, asked_at = member.endpoint, time.monotonic()
        health = await self._get(fresh, endpoint, "/health")
        if isinstance(health, Trouble) and health.health == OWN:
            return None
        signal, error = self._judged(health, "/health")
        was_up = member.health.is_up or member.up_until is not None
        if was_up and isinstance(health, Trouble) and health.health == REFUSED:
            error = CRASHED
        models = version = None
        has_no_health = isinstance(health, _Answer) and health.status == 404
        is_late = signal is HealthSignal.TIMED_OUT
        if signal is HealthSignal.OK or has_no_health or (is_late and not member.cards):
            models = await self._get(fresh, endpoint, "/v1/models")
        if has_no_health and models is not None:
            signal, error = self._judged(models, "/v1/models")
            if signal is HealthSignal.OK and _cards(models) is None:
                signal, error = HealthSignal.FAILED, NO_MODELS
        if signal is not HealthSignal.OK:
            self._absent = {each for each in self._absent if each[0] != endpoint}
        elif asks_version:
            version = await self._ask(endpoint, "/version")
            if _member(version, "server") == SERVER:
                return Probed(endpoint, HealthSignal.FAILED, error=IS_ROUTER, asked_at=asked_at)
        is_asleep = await self._is_asleep(endpoint) if signal is HealthSignal.OK else None
        cards, number = _cards(models), _version(version)
        return Probed(endpoint, signal, cards, error, number, asked_at, is_asleep)

    async def _located(
        self, member: Member, probed: Probed, servers: BootstrapServers
    ) -> Probed | None:
        """The result for a prefill engine that is up, with where decode engines find it. None if
        this process has no resources to ask.

        Without an answer the probe has failed, because the engine would prefill for nobody. But it
        is up until its gauges have shown its data-parallel ranks, which may be others than before
        it was down; and if its id is known and a late answer would only confirm it: a worker that
        computes prompts has the server too.
        """
        url = probed.endpoint.url
        base, rank = split_rank(url)
        ranks = [probed.endpoint] if rank is None else self._ranks[base, Role.PREFILL]
        found = await servers.find(url, [each.url for each in ranks])
        has_gauges = member.health.is_up and member.scrapes.gauges is not None
        if isinstance(found, TransferSource):
            found = self._shared(found, url) or found
        elif found.health == OTHER_RANKS:
            if self._on_ranks is None:
                found = UNNAMED_RANKS
            elif member.last_error != found.advice and not has_gauges:
                return probed
        if isinstance(found, Trouble):
            if found.health == TIMEOUT and member.transfer_source is not None:
                return probed
            failed = replace(probed, signal=HealthSignal.FAILED, error=found.advice)
            return None if found.health == OWN else failed
        return replace(probed, transfer_source=found)

    def _lacks_source(self, member: Member) -> bool:
        is_prefill = member.endpoint.role is Role.PREFILL
        return self._bootstraps is not None and is_prefill and member.transfer_source is None

    def _shared(self, found: TransferSource, url: str) -> Trouble | None:
        """The trouble of an engine whose bootstrap server lists another engine of the fleet."""
        for other in self._fleet.pool(Role.PREFILL):
            if other.transfer_source == found and other.endpoint.url != url:
                advice = f"its Mooncake bootstrap server {found.bootstrap} is that of"
                return Trouble(
                    "no engine id", f"{advice} {other.endpoint.url}; see --mooncake-bootstrap-port"
                )
        return None

    async def _is_asleep(self, endpoint: Endpoint) -> bool | None:
        """The answer to /is_sleeping, which vLLM has in its development mode only; None if there is
        none."""
        answer = await self._ask(endpoint, "/is_sleeping")
        found = _member(answer, "is_sleeping")
        if isinstance(found, bool):
            return found
        if isinstance(answer, _Answer):
            self._absent.add((endpoint, "/is_sleeping"))
        return None

    async def _ask(self, endpoint: Endpoint, path: str) -> _Answer | Trouble | None:
        """The answer of a route that not all engines have; None if it is known to be absent."""
        if (endpoint, path) in self._absent:
            return None
        assert self._sessions is not None
        answer = await self._get(self._sessions[0], endpoint, path)
        if isinstance(answer, _Answer) and 400 <= answer.status < 500:
            self._absent.add((endpoint, path))
        return answer

    def _judged(self, health: _Answer | Trouble, path: str) -> tuple[HealthSignal, str | None]:
        """What a response to a health probe says, and why it is not good."""
        if isinstance(health, Trouble):
            is_late = health.health == TIMEOUT
            return HealthSignal.TIMED_OUT if is_late else HealthSignal.FAILED, health.advice
        if 200 <= health.status < 300:  # a redirect is a failure too
            return HealthSignal.OK, None
        trouble = self._diagnosis.of_status(health.status, path)
        signal = HealthSignal.UNAVAILABLE if health.status == 503 else HealthSignal.FAILED
        return signal, trouble and trouble.advice

    def _is_first(self, member: Member) -> bool:
        """Whether it is the first such rank of its engine, or an engine without ranks."""
        return self._of_engine(member.endpoint)[0] == member.endpoint

    def _of_engine(self, endpoint: Endpoint) -> list[Endpoint]:
        """The ranks of an endpoint's engine that may get requests; the endpoint itself if none."""
        url, rank = split_rank(endpoint.url)
        ranks = [] if rank is None else self._ranks.get((url, endpoint.role), [])
        return [e for e in ranks if _has_gauges_now(self._fleet.member(e).health)] or [endpoint]

    async def _scrape(self, endpoint: Endpoint, page: str | None) -> str | None:
        """Read the gauges. `page`: the path that had them the last time; returns it for the next
        time, None if none has them."""
        ledger, endpoints = self._fleet.ledger, self._of_engine(endpoint)
        before = [ledger.known(each) for each in endpoints]
        answer, page, whole = await self._read_page(endpoint, page)
        text = None if whole is None else _good(answer)
        error = None if text is not None else self._why_not(answer)
        for each, known in zip(endpoints, before, strict=True):
            if not self._fleet.knows(each):  # a rank that has left meanwhile
                continue
            # The gauges are from a moment between both counts. The larger one is used, so that no
            # own request is taken for another client's.
            own = max(known, ledger.known(each))
            rank = split_rank(each.url)[1]
            gauges = whole
            if text is not None and rank is not None:
                gauges = exposition.read(exposition.of_rank(text, rank))
            self._observe(Scraped(each, gauges, own, error))
        if text is not None and self._on_ranks is not None:
            self._compare_ranks(text, endpoint, self._on_ranks)
        return page

    async def _read_page(
        self, endpoint: Endpoint, page: str | None
    ) -> tuple[_Answer | Trouble, str | None, Gauges | None]:
        """The page with the gauges, its path, and the gauges of the whole engine; None for the path
        if no page has them."""
        assert self._sessions is not None
        _, kept = self._sessions
        answer: _Answer | Trouble = Trouble("unread", None)
        for path in exposition.PAGES if page is None else (page,):
            answer = await self._get(kept, endpoint, path, exposition.shortened)
            if isinstance(answer, Trouble):
                return answer, page, None
            gauges = exposition.read(answer.body) if answer.status == 200 else None
            if gauges is not None and gauges.running is not None:
                return answer, path, gauges
        return answer, None, None

    def _why_not(self, answer: _Answer | Trouble) -> str | None:
        """Why there are no gauges."""
        if isinstance(answer, Trouble):
            return answer.advice
        if answer.status in (200, 404, 501):
            return probing.NO_GAUGES
        trouble = self._diagnosis.of_status(answer.status, "/metrics")
        return trouble and trouble.advice

    def _compare_ranks(
        self, text: bytes, endpoint: Endpoint, on_ranks: Callable[[str, tuple[int, ...]], None]
    ) -> None:
        """Report an engine's ranks if they differ from those in the fleet."""
        url, rank = split_rank(endpoint.url)
        found = exposition.ranks(text)
        known = self._ranks.get((url, endpoint.role), []) if rank is not None else []
        if not found or (rank is None and len(found) == 1):
            return
        if {with_rank(url, each) for each in found} != {each.url for each in known}:
            on_ranks(url, found)

    async def _get(
        self,
        session: aiohttp.ClientSession,
        endpoint: Endpoint,
        path: str,
        shortened: Callable[[bytes], bytes] | None = None,
    ) -> _Answer | Trouble:
        """The response, or why there was none. `shortened`: see read_bounded."""
        try:
            async with session.get(
                split_rank(endpoint.url)[0] + path,
                timeout=self._timeout,
                allow_redirects=False,
                ssl=self._tls.context,
            ) as response:
                body = await read_bounded(response, MAX_ANSWER_BYTES, shortened)
                return _Answer(response.status, body)
        except ERRORS as error:
            log.debug("%s%s: %s", endpoint.url, path, error)
            return self._diagnosis.of_error(error, path)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._rng.uniform(1 - probing.JITTER, 1 + probing.JITTER))


def _has_gauges_now(health: Health) -> bool:
    """Whether an engine is scraped: it may serve, or its gauges show when it wakes up."""
    return health.may_serve or health.is_good


def _good(answer: _Answer | Trouble | None) -> bytes | None:
    """The body of a response with status 200; None for others."""
    return answer.body if isinstance(answer, _Answer) and answer.status == 200 else None


def _member(answer: _Answer | Trouble | None, name: str) -> Any:
    """A member of a JSON object in a good response; None if there is none."""
    try:
        return engine_json(_good(answer) or b"")[name]
    except (ValueError, KeyError, TypeError):
        return None


def _version(answer: _Answer | Trouble | None) -> str | None:
    version = _member(answer, "version")
    return version[:MAX_VERSION] if isinstance(version, str) else None


def _cards(answer: _Answer | Trouble | None) -> tuple[dict[str, Any], ...] | None:
    """The entries of a /v1/models response; None if it is not one."""
    listed = _member(answer, "data")
    if not isinstance(listed, list):
        return None
    return tuple(c for c in listed if isinstance(c, dict) and isinstance(c.get("id"), str))
