"""Builds the whole router from its settings: the only place that knows all of its parts."""

import asyncio
import itertools
import logging
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from fastapi import FastAPI

from router.core import outlier
from router.core.auto_threshold import AutoThreshold
from router.core.byte_budget import ByteBudget
from router.core.events import Event, LegDone, Ordered, RequestEnded, SharedEvent
from router.core.fleet import Fleet
from router.core.health import HealthThresholds
from router.core.ledger import Ledger
from router.core.plans.direct import direct
from router.core.plans.lmcache import lmcache
from router.core.plans.lmcache_receivers import Receiver
from router.core.plans.nixl import nixl
from router.core.plans.steps import Plan
from router.core.policies import POLICIES, Policy
from router.core.pool_monitor import ExclusionConfig
from router.core.prefix.cache_events import CacheEvents
from router.core.probing import STALE_SCRAPES, roles_that_use_speed
from router.core.retry_budget import RetryBudget
from router.core.roster import Entry
from router.core.schedule import Scheduler
from router.core.speed_estimator import TICK_SECONDS, SpeedEstimator
from router.core.status import StatusLog
from router.core.urls import origin
from router.core.values import DIRECT, Decision, Endpoint, Facts, Role
from router.net.admission_gate import AdmissionGate, AdmissionLimits
from router.net.body_parser import BodyParser
from router.net.diagnosis import Diagnosis
from router.net.engine_pools import EnginePools
from router.net.engine_session import engine_session
from router.net.idle_sweep import IdleTimeoutSweep
from router.net.key_file import KeyFile
from router.net.kv_events import KVEventSubscriber
from router.net.kv_ready import KVReadySocket
from router.net.kv_sources import KVSourceFinder
from router.net.kv_subscription import KVAddress
from router.net.loop_lag import LoopLagMonitor
from router.net.network import Limits, Network, Timeouts
from router.net.pool import EnginePool
from router.net.prober import Prober
from router.net.read_limiter import ReadLimiter
from router.net.relay import Patience
from router.net.same_address import twins
from router.net.shared_state import WorkerContext
from router.net.speed_prober import SpeedProber
from router.net.start_limiter import StartLimiter
from router.net.tasks import TaskSet
from router.net.ticker import note_changes, tick_for_ever
from router.settings import Settings, SettingsError
from router.telemetry.event_buffer import EventBuffer
from router.telemetry.logs import AccessLog
from router.telemetry.metrics import Metrics, WorkerGroup
from router.telemetry.totals import Totals
from router.telemetry.tracing import Tracing
from router.web.admin import OperationsHandler
from router.web.dashboard.figures import Figures
from router.web.dashboard.sampler import Sampler
from router.web.engines_api import add_engines_api
from router.web.fleet_sync import FleetSync
from router.web.operations import (
    Admin,
    Lifecycle,
    create_admin_operations,
    create_operations,
)
from router.web.request_handler import RequestHandler
from router.web.sources import first_roster, new_roster, sources_of

__all__ = ["Router", "Worker", "fleet_of", "scheduler_of"]


STARTS_PER_TURN = 32
"""Requests that begin at once between two beats of the pulse, and, of those that come beyond that,
in one turn of the event loop: each takes 35 us, and its engine connection 100 us in the next turn,
if it needs a new one."""

READ_PER_BEAT = 4 << 20
"""Bytes that are read from clients between two beats: 400 MB a second, in some 5 ms each."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several worker processes: its context, and the folder of the shared metrics."""

    context: WorkerContext
    counts: Path


class Router:
    """A router's parts, for the server and for tests. `handler` takes requests, `operations` is the
    ASGI application for what is no inference, `admin_handler` takes operators' requests.

    With `worker` it is one of several processes with shared state and metrics.
    """

    def __init__(self, settings: Settings, worker: Worker | None = None) -> None:
        self.settings = settings
        self._tasks = TaskSet()
        self.lifecycle = Lifecycle(self._tasks.failing)
        self._context = None if worker is None else worker.context
        self.fleet = fleet_of(settings, self._context)
        self._pools = EnginePools(_pool_of(settings))
        self.pools = self._pools.by_endpoint
        group = None
        if worker is not None:
            group = WorkerGroup(
                worker.counts,
                worker.context.number,
                worker.context.column.table.pids,
                worker.context.column.table.restarts,
            )
        scheduler = scheduler_of(settings, self.fleet)
        self.metrics = Metrics(
            self.fleet,
            self._connections,
            group,
            _config(settings),
            lambda: scheduler.threshold_now,
        )
        self._loop_lag = LoopLagMonitor(self._on_loop_lag)
        listeners = [self.metrics.observe, AccessLog().observe]
        # A worker's counts must not be lost with it, and others show them.
        on_flushed = self.metrics.flush if self.metrics.are_merged else lambda: None
        self.event_buffer = EventBuffer(listeners, on_flushed)
        self._receivers = _receivers(settings)
        self._kv_ready = _kv_ready(settings)
        self._tracing = _tracing(settings)
        self._kv_sources = _kv_sources(settings, self.fleet, self._tasks)
        self._transfers = _transfer_ids()
        self._idle_sweep = IdleTimeoutSweep(
            min(
                settings.prefill_timeout,
                settings.first_byte_timeout,
                settings.stream_idle_timeout,
            )
        )
        self.start_limiter = StartLimiter(STARTS_PER_TURN)
        self._read_limiter = ReadLimiter(READ_PER_BEAT)
        self.limits = Limits(
            body_bytes=settings.max_body_bytes,
            body_seconds=settings.body_timeout,
            stall_seconds=settings.client_stall_timeout,
            keep_alive_seconds=settings.keep_alive_timeout,
        )
        self.admission = _admission(settings, self.fleet, self.start_limiter, self.metrics)
        self._key_files = [
            None if path is None else KeyFile(path)
            for path in (settings.api_key_file, settings.admin_key_file)
        ]
        self._body_parser = BodyParser(_prefill_from(settings))
        network = Network(
            read_limiter=self._read_limiter,
            api_keys=self._key_files[0],
            admission=self.admission,
            byte_budget=ByteBudget(
                max(settings.max_body_bytes, settings.max_buffered_bytes // settings.workers)
            ),
            body_parser=self._body_parser,
            scheduler=scheduler,
            plans=self._plan,
            pools=self.pools,
            idle_sweep=self._idle_sweep,
            start_limiter=self.start_limiter,
            limits=self.limits,
            timeouts=Timeouts(
                prefill=settings.prefill_timeout,
                stream=Patience(settings.first_byte_timeout, settings.stream_idle_timeout),
                kv_ready=settings.lmcache_notify_timeout,
            ),
            observe=self.observe,
            sample=settings.decision_log_sample,
            names_engines=settings.engine_header == "on",
            engine_api_key=settings.engine_api_key,
            kv_ready=self._kv_ready,
            tracing=self._tracing,
        )
        self._prober = Prober(
            self.fleet,
            self.observe,
            health_seconds=settings.health_check_interval,
            stats_seconds=settings.engine_stats_interval,
            timeout_seconds=settings.health_check_timeout,
            diagnosis=Diagnosis(
                settings.health_check_timeout, has_key=settings.engine_api_key is not None
            ),
            sessions=lambda: (
                engine_session(settings.engine_api_key, settings.engine_ca_file),
                engine_session(
                    settings.engine_api_key,
                    settings.engine_ca_file,
                    keep_alive_seconds=settings.idle_connection_timeout,
                ),
            ),
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
        roster = first_roster(settings) if self._context is None else new_roster(settings)
        self.sync = FleetSync(roster, self.fleet, self._context, self._apply)
        self.sync.start()
        self.status_log = StatusLog(self.fleet, self.fleet.pool, time.monotonic())
        has_listener = settings.admin_port is not None
        self.sampler = Sampler(
            self._figures,
            # Operators' connections end last; a viewer on the public port would hold up the end.
            lambda: self.lifecycle.is_draining and not has_listener,
        )
        admin = Admin(self.exposition, self.sampler)
        self.operations = create_operations(
            self.fleet, self.lifecycle, None if has_listener else admin, self._lifespan
        )
        self.handler = RequestHandler(network, self.operations)
        for_operators = create_admin_operations(self.fleet, self.lifecycle, admin)
        add_engines_api(for_operators, self.fleet, self.sync)
        self.admin_handler = OperationsHandler(
            for_operators, self.limits, self._read_limiter, self._key_files[1]
        )

    def observe(self, event: Event) -> None:
        """Pass an event to the fleet, the metrics, the log and the other workers."""
        if isinstance(event, RequestEnded):  # it concerns no engine
            if event.prompt_tokens:
                self.fleet.ended(event)
            self.event_buffer.add(event)
            return
        self.fleet.observe(event, time.monotonic())
        if not isinstance(event, LegDone):  # frequent, and neither counted nor logged
            self.event_buffer.add(event)
        if self._context is not None:
            self._context.bus.observe(event)

    def _apply(self, entries: Sequence[Entry]) -> None:
        """Make everything that knows engines follow the roster."""
        if self._context is not None:
            self._context.column.place({entry.endpoint: entry.row for entry in entries})
        self.fleet.apply(entries, time.monotonic())
        self._pools.follow(self.fleet)
        self.metrics.follow()
        self._prober.follow()
        self._speed_prober.follow()
        if self._kv_sources is not None:
            self._kv_sources.follow()

    def _on_shared_event(self, event: SharedEvent | Ordered) -> None:
        if isinstance(event, Ordered):
            self.sync.obey(event)
            return
        self.sync.follow()  # the leader tells of engines as soon as they have joined
        self.fleet.observe_shared(event, time.monotonic())

    def _publish(self, event: SharedEvent) -> None:
        if self._context is not None:
            self._context.bus.publish(event)

    async def exposition(self) -> bytes:
        """The text that Prometheus scrapes, up to this moment."""
        self.event_buffer.flush()
        if not self.metrics.are_merged:
            return self.metrics.exposition()
        # Merging the files of all workers is slow: not on the event loop.
        state = self.metrics.state()
        return await asyncio.to_thread(self.metrics.counts) + state

    async def totals(self) -> Totals:
        """What all processes have counted, up to this moment."""
        self.event_buffer.flush()
        self.metrics.flush()
        # With many engines, or with files to merge, it takes too long for the event loop.
        return await asyncio.to_thread(self.metrics.totals)

    def _figures(self) -> Figures:
        return Figures(self.fleet, self.status_log, self.totals, lambda: self.lifecycle.is_draining)

    def _plan(self, facts: Facts, decision: Decision) -> Plan:
        if decision.mode is DIRECT:
            return direct(facts)
        if self.settings.disagg_connector_type == "nixl":
            return nixl(facts)
        notify = self._kv_ready is not None
        return lmcache(facts, self._receivers, self._transfers.__next__, notify=notify)

    def _on_loop_lag(self, late: float) -> None:
        self.metrics.observe_loop_lag(late)
        self.start_limiter.refill()
        self._read_limiter.refill()

    def _connections(self) -> Iterator[tuple[Endpoint, int, int]]:
        if self._context is not None:
            self._show_connections()
            for endpoint in self.pools:
                yield endpoint, *self._context.column.connections(endpoint)
        else:
            for endpoint, pool in self.pools.items():
                yield endpoint, pool.open, pool.idle

    async def _warn_of_twins(self) -> None:
        for pair in await twins([member.endpoint.url for member in self.fleet]):
            log.warning("%s", pair.warning)

    async def _show_for_ever(self) -> None:
        while True:
            self._show_connections()
            await asyncio.sleep(TICK_SECONDS)

    def _show_connections(self) -> None:
        if self._context is not None:
            for endpoint, pool in self.pools.items():
                self._context.column.set_connections(endpoint, pool.open, pool.idle)

    def _follow_keys(self) -> None:
        for key_file in self._key_files:
            if key_file is not None:
                self._tasks.spawn(key_file.follow, "API keys")

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        await self._start()
        try:
            yield
        finally:
            await self._end()

    async def _start(self) -> None:
        if self._kv_ready is not None:
            self._kv_ready.start()
        context = self._context
        is_leader = context is None or context.is_leader
        if context is not None:
            context.bus.subscribe(self._on_shared_event)
            self._tasks.spawn(self._show_for_ever, "connection counts")
        # Before connections are accepted: the first requests would get 503 otherwise.
        await self._prober.probe_all()
        note_changes(self.status_log, is_logged=is_leader)
        if is_leader:
            self._tasks.spawn(self._warn_of_twins, "address check")
            self._prober.start()
            self._speed_prober.start()
            for source in sources_of(self.settings, self._receivers):
                on_targets = partial(self.sync.on_targets, source.name)
                self._tasks.spawn(partial(source.watch, on_targets), "discovery", source.name)
        if self._kv_sources is not None:
            self._kv_sources.start(logs=is_leader)
        ticks = partial(
            tick_for_ever,
            self.fleet,
            self._publish,
            self.status_log,
            self.sync.follow,
            is_logged=is_leader,
        )
        self._tasks.spawn(ticks, "fleet ticker")
        self._follow_keys()
        self._loop_lag.start()

    async def _end(self) -> None:
        self._loop_lag.close()
        if self._context is not None:
            self._context.bus.close()
        await self._tasks.close()
        await self._body_parser.close()
        if self.admission is not None:
            self.admission.close()
        await self._prober.close()
        if self._kv_sources is not None:
            await self._kv_sources.close()
        self._idle_sweep.close()
        if self._kv_ready is not None:
            self._kv_ready.close()
        self._pools.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)


def fleet_of(
    settings: Settings,
    context: WorkerContext | None = None,
    endpoints: Sequence[Endpoint] = (),
) -> Fleet:
    """A fleet as the settings want it, with these engines in state `starting`."""
    stale_after = STALE_SCRAPES * settings.engine_stats_interval
    exclusion_config = ExclusionConfig(
        stall_seconds=settings.stall_timeout,
        outliers=outlier.OutlierConfig(
            consecutive=settings.outlier_consecutive_failures,
            base_seconds=settings.outlier_ejection_time,
        ),
        max_excluded=settings.max_excluded_percent / 100,
        slow_start_seconds=settings.slow_start,
    )

    def speed_of(endpoint: Endpoint) -> SpeedEstimator:
        return SpeedEstimator(None if context is None else context.column.speed(endpoint))

    def max_num_seqs(endpoint: Endpoint) -> int | None:
        return settings.max_num_seqs(endpoint.url) if endpoint.role is Role.DECODE else None

    ledger = Ledger() if context is None else Ledger(context.column.load)
    return Fleet(
        endpoints,
        ledger,
        HealthThresholds(),
        stale_after,
        exclusion_config,
        speed_of,
        max_num_seqs,
        shares_prefixes=context is not None,
        cache_events=CacheEvents() if settings.prefix_cache == "events" else None,
    )


def policies_of(settings: Settings) -> dict[Role, Policy]:
    """The policy of each role."""
    common = settings.load_balancing_strategy
    return {
        Role.PREFILL: POLICIES[settings.prefill_load_balancing_strategy or common],
        Role.DECODE: POLICIES[settings.decode_load_balancing_strategy or common],
    }


def _config(settings: Settings) -> dict[str, str]:
    """What the metrics tell of the settings."""
    common = settings.load_balancing_strategy
    return {
        "prefill_strategy": settings.prefill_load_balancing_strategy or common,
        "decode_strategy": settings.decode_load_balancing_strategy or common,
        "routing_threshold": str(settings.routing_threshold),
        "connector": settings.disagg_connector_type,
        "workers": str(settings.workers),
    }


def scheduler_of(settings: Settings, fleet: Fleet, *, tries: bool = True) -> Scheduler:
    """The scheduler that the settings name, for a fleet. Without `tries` it takes no chances."""
    policies = policies_of(settings)
    threshold = settings.routing_threshold
    cached_roles: frozenset[Role] = frozenset()
    on_uncached = settings.threshold_on == "uncached"
    if settings.prefix_cache != "off":
        compared = frozenset(Role) if threshold == "auto" else {Role.DECODE} if on_uncached else ()
        cached_roles = roles_that_use_speed(policies).union(compared)
    auto = None
    if threshold == "auto":
        auto = AutoThreshold(fleet, settings.max_itl_impact, tries=tries)
    return Scheduler(
        fleet,
        policies,
        0 if threshold == "auto" else threshold,
        Random(),
        cached_roles,
        threshold_on_uncached=on_uncached,
        auto=auto,
        retry_budget=RetryBudget(settings.retry_budget),
    )


def _prefill_from(settings: Settings) -> int | None:
    """Tokens from which on a large body may be prefilled remotely; None: nothing prefills."""
    if not settings.prefill and not settings.discovers and settings.admin_port is None:
        return None
    return 0 if settings.routing_threshold == "auto" else settings.routing_threshold


def _admission(
    settings: Settings, fleet: Fleet, start_limiter: StartLimiter, metrics: Metrics
) -> AdmissionGate | None:
    """Each worker process has its share."""

    def share(number: int | None) -> int | None:
        return None if number is None else -(-number // settings.workers)

    in_flight, per_engine = share(settings.max_in_flight), share(settings.max_in_flight_per_engine)
    if in_flight is None and per_engine is None:
        return None
    limits = AdmissionLimits(
        in_flight=in_flight,
        in_flight_per_engine=per_engine,
        queue_size=-(-settings.queue_size // settings.workers),
        queue_seconds=settings.queue_timeout,
        tenant_header=settings.tenant_header.encode(),
        priority_from=settings.queue_priority,
    )

    def usable_engines() -> int:
        return sum(member.is_usable for member in fleet.pool(Role.DECODE))

    return AdmissionGate(limits, usable_engines, start_limiter, metrics)


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


def _tracing(settings: Settings) -> Tracing | None:
    if settings.otlp_traces_endpoint is None:
        return None
    try:
        return Tracing(settings.otlp_traces_endpoint, settings.trace_sample)
    except ImportError as error:
        raise SettingsError(f"--otlp-traces-endpoint: {error}") from None


def _kv_sources(settings: Settings, fleet: Fleet, tasks: TaskSet) -> KVSourceFinder | None:
    """What finds the engines' KV-cache events; None where they are not used."""
    events = fleet.cache_events
    if events is None:
        return None
    named = None
    if settings.kv_events is not None:
        named = {
            url: [KVAddress(each.endpoint, each.replay_endpoint, each.topic) for each in sources]
            for url, sources in settings.kv_events.items()
        }
    try:
        subscriber = KVEventSubscriber(events.blocks)
    except ImportError as error:
        raise SettingsError(f"--prefix-cache: {error}") from None
    return KVSourceFinder(
        fleet,
        subscriber,
        named,
        timeout_seconds=settings.health_check_timeout,
        session=lambda: engine_session(settings.engine_api_key, settings.engine_ca_file),
        tasks=tasks,
    )


def _pool_of(settings: Settings) -> Callable[[Endpoint], EnginePool]:
    tls = ssl.create_default_context(cafile=settings.engine_ca_file)
    return lambda endpoint: EnginePool(
        origin(endpoint.url),
        connect_seconds=settings.connect_timeout,
        idle_seconds=settings.idle_connection_timeout,
        max_idle=settings.max_idle_connections,
        tls=tls,
    )
