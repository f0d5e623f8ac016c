"""Builds the whole router from its settings: the only place that knows all of its parts."""

import asyncio
import itertools
import logging
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import aiohttp
from fastapi import FastAPI

from router.core import outlier
from router.core.care import Care
from router.core.events import Ejected, Event, LegDone, News
from router.core.fleet import Fleet
from router.core.health import Rules
from router.core.ledger import Ledger
from router.core.pace import TICK_SECONDS, Pace
from router.core.plans.direct import direct
from router.core.plans.lmcache import lmcache
from router.core.plans.lmcache_receivers import Receiver
from router.core.plans.nixl import nixl
from router.core.plans.steps import Plan
from router.core.policies import POLICIES, Policy
from router.core.probing import STALE_SCRAPES, roles_that_use_speed
from router.core.schedule import Scheduler
from router.core.urls import origin
from router.core.values import Decision, Endpoint, Facts, Role, Way
from router.net.crew import Mate
from router.net.exchange import Network, Timeouts
from router.net.kv_ready import KVReadySocket
from router.net.pool import EnginePool
from router.net.prober import Prober
from router.net.pulse import Pulse
from router.net.same_address import twins
from router.net.silence import Silence
from router.net.speed_prober import SpeedProber
from router.net.tasks import TaskSet
from router.net.ticker import tick_for_ever
from router.settings import Settings, SettingsError
from router.telemetry.journal import Journal
from router.telemetry.logs import AccessLog
from router.telemetry.metrics import Metrics, Together
from router.web.front import Front, Limits
from router.web.operations import Lifecycle, create_operations

__all__ = ["Router", "Worker", "create_app", "endpoints_of", "scheduler_of"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several processes that are one router: its part, and where they count together."""

    mate: Mate
    counts: Path


class Router:
    """A router's parts, for the server and for tests. `app` is the ASGI application.

    With `worker` it is one of several processes that know the same and answer for each other.
    """

    def __init__(self, settings: Settings, worker: Worker | None = None) -> None:
        self.settings = settings
        self._tasks = TaskSet()
        self.lifecycle = Lifecycle(self._tasks.failing)
        self._mate = None if worker is None else worker.mate
        self.fleet = fleet_of(settings, self._mate)
        self.pools = _pools(settings)
        together = None
        if worker is not None:
            together = Together(worker.counts, worker.mate.number, worker.mate.column.board.pids)
        self.metrics = Metrics(self.fleet, self._connections, together)
        self._pulse = Pulse(self._beat)
        self.journal = Journal([self.metrics.observe, AccessLog().observe])
        scheduler = scheduler_of(settings, self.fleet)
        self._receivers = _receivers(settings)
        self._kv_ready = _kv_ready(settings)
        self._transfers = _transfer_ids()
        self._silence = Silence(
            min(
                settings.prefill_timeout,
                settings.first_byte_timeout,
                settings.stream_idle_timeout,
            )
        )
        network = Network(
            scheduler=scheduler,
            pools=self.pools,
            silence=self._silence,
            timeouts=Timeouts(
                prefill=settings.prefill_timeout,
                first_byte=settings.first_byte_timeout,
                idle=settings.stream_idle_timeout,
                kv_ready=settings.lmcache_notify_timeout,
            ),
            observe=self.observe,
            sample=settings.decision_log_sample,
            names_engines=settings.engine_header == "on",
            engine_api_key=settings.engine_api_key,
            kv_ready=self._kv_ready,
        )
        self._prober = Prober(
            self.fleet,
            self.observe,
            health_seconds=settings.health_check_interval,
            stats_seconds=settings.engine_stats_interval,
            timeout_seconds=settings.health_check_timeout,
            sessions=lambda: (_session(settings, keep=False), _session(settings, keep=True)),
            rng=Random(),
            tasks=self._tasks,
        )
        self._speed_prober = SpeedProber(
            self.fleet,
            self.pools,
            seconds=settings.speed_probe_interval,
            speed_roles=roles_that_use_speed(policies_of(settings)),
            engine_api_key=settings.engine_api_key,
            rng=Random(),
            count=self.metrics.probed,
            tasks=self._tasks,
        )
        operations = create_operations(self.fleet, self.exposition, self.lifecycle, self._lifespan)
        self.app = Front(
            operations,
            scheduler,
            network,
            self._plan,
            self.observe,
            Limits(settings.max_body_bytes, settings.body_timeout, settings.client_stall_timeout),
        )

    def observe(self, event: Event) -> None:
        """The one door through which everything that was seen comes back."""
        self.fleet.observe(event, time.monotonic())
        if not isinstance(event, LegDone):  # the commonest, and nobody writes it down
            self.journal.add(event)
        if self._mate is not None:
            self._mate.gossip.observe(event)

    def _hear(self, news: News) -> None:
        self.fleet.hear(news, time.monotonic())

    def _ejected(self, news: Ejected) -> None:
        if self._mate is not None:
            self._mate.gossip.tell(news)

    async def exposition(self) -> bytes:
        """The text that Prometheus scrapes, up to this moment."""
        self.journal.drain()
        if not self.metrics.are_merged:
            return self.metrics.exposition()
        # Files of all workers are read and parsed: no stream should wait for that.
        state = self.metrics.state()
        return await asyncio.to_thread(self.metrics.counts) + state

    def _plan(self, facts: Facts, decision: Decision) -> Plan:
        if decision.way is Way.DIRECT:
            return direct(facts)
        if not self._receivers:
            return nixl(facts)
        notify = self._kv_ready is not None
        return lmcache(facts, self._receivers, self._transfers.__next__, notify=notify)

    def _beat(self, late: float) -> None:
        self.metrics.late(late)
        self.app.turns.renew()

    def _connections(self) -> Iterator[tuple[Endpoint, int, int]]:
        if self._mate is not None:
            self._show_connections()
            for endpoint in self.pools:
                yield endpoint, *self._mate.column.connections(endpoint)
        else:
            for endpoint, pool in self.pools.items():
                yield endpoint, pool.open, pool.idle

    async def _warn_of_twins(self) -> None:
        for pair in await twins([*self.settings.prefill, *self.settings.decode]):
            log.warning("%s", pair.warning)

    async def _show_for_ever(self) -> None:
        while True:
            self._show_connections()
            await asyncio.sleep(TICK_SECONDS)

    def _show_connections(self) -> None:
        if self._mate is not None:
            for endpoint, pool in self.pools.items():
                self._mate.column.connected(endpoint, pool.open, pool.idle)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        if self._kv_ready is not None:
            self._kv_ready.start()
        mate = self._mate
        is_leader = mate is None or mate.is_leader
        if mate is not None:
            mate.gossip.listen(self._hear)
            self._tasks.spawn(self._show_for_ever, "connection counts")
        # Before clients are let in, and those that wait in a worker's socket: the first of them
        # would be told that there is no engine.
        await self._prober.look()
        if is_leader:
            self._tasks.spawn(self._warn_of_twins, "address check")
            self._prober.start()
            self._speed_prober.start()
        ticks = partial(tick_for_ever, self.fleet, self._ejected, is_leader=is_leader)
        self._tasks.spawn(ticks, "fleet ticker")
        self._pulse.start()
        try:
            yield
        finally:
            self._pulse.close()
            if mate is not None:
                mate.gossip.close()
            await self._tasks.close()
            await self._prober.close()
            self._silence.close()
            if self._kv_ready is not None:
                self._kv_ready.close()
            for pool in self.pools.values():
                pool.close()


def create_app(settings: Settings) -> Front:
    """The ASGI application of a router."""
    return Router(settings).app


def endpoints_of(settings: Settings) -> list[Endpoint]:
    """The endpoints that the settings name, prefill first."""
    return [
        *(Endpoint(url, Role.PREFILL) for url in settings.prefill),
        *(Endpoint(url, Role.DECODE) for url in settings.decode),
    ]


def fleet_of(settings: Settings, mate: Mate | None = None) -> Fleet:
    """The fleet that the settings name; nothing is known of it yet."""
    stale_after = STALE_SCRAPES * settings.engine_stats_interval
    care = Care(
        stall_seconds=settings.stall_timeout,
        outliers=outlier.Rules(
            consecutive=settings.outlier_consecutive_failures,
            base_seconds=settings.outlier_ejection_time,
        ),
        max_aside=settings.max_aside_percent / 100,
        slow_start_seconds=settings.slow_start,
    )

    def pace_of(endpoint: Endpoint) -> Pace:
        return Pace(None if mate is None else mate.column.pace(endpoint))

    def max_num_seqs(endpoint: Endpoint) -> int | None:
        return settings.max_num_seqs(endpoint.url) if endpoint.role is Role.DECODE else None

    ledger = Ledger() if mate is None else Ledger(mate.column.load)
    return Fleet(endpoints_of(settings), ledger, Rules(), stale_after, care, pace_of, max_num_seqs)


def policies_of(settings: Settings) -> dict[Role, Policy]:
    """The policy of each role."""
    common = settings.load_balancing_strategy
    return {
        Role.PREFILL: POLICIES[settings.prefill_load_balancing_strategy or common],
        Role.DECODE: POLICIES[settings.decode_load_balancing_strategy or common],
    }


def scheduler_of(settings: Settings, fleet: Fleet) -> Scheduler:
    """The scheduler that the settings name, for a fleet."""
    return Scheduler(fleet, policies_of(settings), settings.routing_threshold, Random())


def _receivers(settings: Settings) -> dict[Endpoint, Receiver]:
    """Where each decode engine takes KV caches; empty for connectors that need not be told."""
    return {
        Endpoint(url, Role.DECODE): Receiver(
            given.receiver_host, given.receiver_init_port, given.receiver_alloc_port
        )
        for url, given in settings.receivers.items()
    }


def _transfer_ids() -> Iterator[str]:
    """Unique across routers and restarts: LMCache's notifications are counted by them."""
    router = uuid.uuid4().hex
    return (f"{router}-{number}" for number in itertools.count())


def _kv_ready(settings: Settings) -> KVReadySocket | None:
    if settings.lmcache_notify_bind is None:
        return None
    try:
        return KVReadySocket(settings.lmcache_notify_bind)
    except ImportError as error:
        raise SettingsError(f"--lmcache-notify-bind: {error}") from None


def _pools(settings: Settings) -> dict[Endpoint, EnginePool]:
    tls = ssl.create_default_context(cafile=settings.engine_ca_file)
    return {
        endpoint: EnginePool(
            origin(endpoint.url),
            connect_seconds=settings.connect_timeout,
            idle_seconds=settings.idle_connection_timeout,
            max_idle=settings.max_idle_connections,
            tls=tls,
        )
        for endpoint in endpoints_of(settings)
    }


def _session(settings: Settings, *, keep: bool) -> aiohttp.ClientSession:
    """A client for probes; with `keep` it reuses connections, without it looks names up anew."""
    headers = {}
    if settings.engine_api_key is not None:
        headers["authorization"] = f"Bearer {settings.engine_api_key}"
    tls = ssl.create_default_context(cafile=settings.engine_ca_file)
    if keep:
        connector = aiohttp.TCPConnector(
            ssl=tls, limit=0, keepalive_timeout=settings.idle_connection_timeout
        )
    else:
        connector = aiohttp.TCPConnector(ssl=tls, limit=0, force_close=True, use_dns_cache=False)
    return aiohttp.ClientSession(connector=connector, headers=headers, trust_env=False)
