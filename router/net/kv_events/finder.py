"""Finds the addresses at which engines publish their KV-cache events: set by the operator, reported
by the engine, or known from discovery.

vLLM reports its publishers at GET /kv_event_sources from 0.32 on, one per data-parallel rank. For
older versions a pod annotation can name the port.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from router.core.fleet.cache_log import CacheLog
from router.core.fleet.fleet import Fleet
from router.core.judge.member import Member
from router.core.kv_events import EngineCache
from router.core.urls import split_rank
from router.core.wire.jsonspan import engine_json
from router.net.engine.engine_session import ERRORS, Diagnosis, Trouble, read_bounded
from router.net.kv_events.subscriber import KVEventSubscriber
from router.net.kv_events.subscription import KVAddress
from router.net.tasks import MemberLoops, TaskSet
from router.net.watched_files import TLSFiles

__all__ = ["KVSourceFinder", "sources_in"]

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 10.0
"""Seconds between requests to an engine that is up: after a restart it may use other ports."""

POLL_SECONDS: Final = 1.0
"""Seconds between checks of what to log and of whether an engine is up."""

PATH: Final = "/kv_event_sources"

NO_ROUTE: Final = frozenset({404, 405, 501})
"""Statuses of an engine that has no such route. Others, such as 401 or 503, come from what is in
front of it too, and pass: they say nothing of where it publishes."""

MAX_ANSWER_BYTES: Final = 1 << 16
MAX_RANKS: Final = 64
"""Most data-parallel ranks of one engine."""

_TCP: Final = re.compile(r"tcp://(\*|\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]*@]+):(\d{1,5})")
ANY_HOST: Final = ("*", "0.0.0.0", "[::]")


class KVSourceFinder:
    """Keeps the subscriber informed of each engine's addresses, and logs the state of the
    subscriptions."""

    def __init__(
        self,
        fleet: Fleet,
        subscriber: KVEventSubscriber,
        named: Mapping[str, Sequence[KVAddress]] | None,
        *,
        timeout_seconds: float,
        diagnosis: Diagnosis,
        session: Callable[[], aiohttp.ClientSession],
        tls: TLSFiles,
        tasks: TaskSet,
    ) -> None:
        """`named`: addresses by engine URL. None: the engines are queried."""
        self._fleet = fleet
        self._subscriber = subscriber
        self._named = named
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._diagnosis = diagnosis
        self._make_session = session
        self._tls = tls
        self._tasks = tasks
        self._loops = MemberLoops(tasks, {"KV event sources": self._watch})
        self._is_started = False
        self._session: aiohttp.ClientSession | None = None

    def start(self, *, logs: bool) -> None:
        """Start. Only one of several workers sets `logs`."""
        if self._named is None:
            self._session = self._make_session()
        self._is_started = True
        self.follow()
        if logs:
            self._tasks.spawn(self._log_for_ever, "KV events log")

    def follow(self) -> None:
        """Adapt to a change of the fleet."""
        if self._is_started:
            self._loops.follow(self._fleet)

    async def close(self) -> None:
        """Close the subscriptions and the HTTP session. The tasks must have ended before."""
        self._subscriber.close()
        if self._session is not None:
            await self._session.close()

    async def _watch(self, member: Member) -> None:
        """Keep an engine's addresses up to date until it leaves the fleet."""
        cache = member.prompts.events
        assert cache is not None, "each has one where events are used"
        try:
            if self._named is None:
                await self._ask_for_ever(member, cache)
            else:
                self._subscriber.watch(cache, _named_of(self._named, member))
                await asyncio.Event().wait()
        finally:
            self._subscriber.forget(cache)

    async def _ask_for_ever(self, member: Member, cache: EngineCache) -> None:
        while True:
            if member.health.is_up:
                found = await self._ask(member.endpoint.url)
                cache.sources_error = found.advice if isinstance(found, Trouble) else None
                if not isinstance(found, Trouble):
                    self._subscriber.watch(cache, found or from_discovery(member))
                    await asyncio.sleep(REFRESH_SECONDS)
                    continue
                if not cache.sources:  # else those that are known are kept
                    self._subscriber.watch(cache, from_discovery(member))
            await asyncio.sleep(POLL_SECONDS)

    async def _ask(self, name: str) -> list[KVAddress] | Trouble:
        """Query an engine for its addresses. Returns an empty list if it has no such route, and why
        it is not known if it cannot be reached or answers with another error."""
        assert self._session is not None
        url, rank = split_rank(name)
        try:
            async with self._session.get(
                url + PATH,
                timeout=self._timeout,
                allow_redirects=False,
                ssl=self._tls.context,
            ) as response:
                body = await read_bounded(response, MAX_ANSWER_BYTES)
        except ERRORS as error:
            log.debug("%s%s: %s", url, PATH, error)
            return self._diagnosis.of_error(error, PATH)
        if response.status in NO_ROUTE:
            return []
        trouble = self._diagnosis.of_status(response.status, PATH)
        return sources_in(body, url, rank) if trouble is None else trouble

    async def _log_for_ever(self) -> None:
        cache_log = CacheLog()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for notice in cache_log.notices(self._fleet, time.monotonic()):
                level = logging.WARNING if notice.is_bad else logging.INFO
                log.log(level, "%s", notice.text)


def _named_of(named: Mapping[str, Sequence[KVAddress]], member: Member) -> Sequence[KVAddress]:
    """The addresses that the operator set for an engine. If it has data-parallel ranks, they are in
    the order of the ranks."""
    sources = named.get(split_rank(member.endpoint.url)[0], ())
    place = member.entry.place
    return sources if place is None else sources[place : place + 1]


def from_discovery(member: Member) -> list[KVAddress]:
    """The address according to discovery (a pod annotation), for engines that do not report it."""
    if member.entry.kv_events_port is None:
        return []
    url, rank = split_rank(member.endpoint.url)
    port = member.entry.kv_events_port + (rank or 0)  # vLLM adds the rank to the port
    return [KVAddress(f"tcp://{_host_of(url)}:{port}", None, "")]


def sources_in(body: bytes, url: str, rank: int | None = None) -> list[KVAddress]:
    """The addresses in a response of /kv_event_sources, a map by rank (vLLM 0.32) or a list (0.33).
    With `rank`, only those of this data-parallel rank."""
    try:
        listed: Any = engine_json(body)
    except ValueError:
        return []
    if isinstance(listed, dict):
        entries = [each for name, each in listed.items() if rank is None or name == str(rank)]
    elif isinstance(listed, list):
        entries = [each for each in listed if rank is None or _rank(each) == rank]
    else:
        return []
    found = (_address(entry, url) for entry in entries[:MAX_RANKS])
    return [address for address in found if address is not None]


def _rank(entry: object) -> object:
    return entry.get("data_parallel_rank") if isinstance(entry, dict) else None


def _address(entry: object, url: str) -> KVAddress | None:
    if not isinstance(entry, dict) or entry.get("enable_kv_cache_events") is False:
        return None
    endpoint = _reachable(entry.get("endpoint"), url)
    topic = entry.get("topic")
    if endpoint is None:
        return None
    replay = _reachable(entry.get("replay_endpoint"), url)
    return KVAddress(endpoint, replay, topic if isinstance(topic, str) else "")


def _reachable(endpoint: object, url: str) -> str | None:
    """A TCP address as seen from other hosts: a wildcard host is replaced by the engine's."""
    found = _TCP.fullmatch(endpoint) if isinstance(endpoint, str) else None
    if found is None:
        return None
    host = _host_of(url) if found[1] in ANY_HOST else found[1]
    return f"tcp://{host}:{found[2]}"


def _host_of(url: str) -> str:
    """The host in a URL, with the brackets of an IPv6 address."""
    host = urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host
