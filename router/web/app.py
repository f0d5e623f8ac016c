"""Builds the whole router from its settings: the only place that knows all of its parts."""

import asyncio
import logging
import pickle
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from fastapi import FastAPI

from router.core.engine_networks import EngineNetworks
from router.core.events import Event, LegDone, Ordered, RequestEnded, SharedEvent
from router.core.peer_loads import PeerReport
from router.core.plans.direct import direct
from router.core.plans.lmcache import lmcache
from router.core.plans.lmcache_receivers import Receiver
from router.core.plans.nixl import nixl
from router.core.plans.steps import Plan
from router.core.probing import roles_that_use_speed
from router.core.roster import Entry
from router.core.schedule import Scheduler
from router.core.speed_estimator import TICK_SECONDS
from router.core.status import StatusLog
from router.core.urls import split_rank
from router.core.values import DIRECT, Decision, Endpoint, Facts
from router.net.admission_gate import AdmissionGate
from router.net.body_parser import BodyParser
from router.net.engine_pools import EnginePools
from router.net.idle_sweep import IdleTimeoutSweep
from router.net.loop_lag import LoopLagMonitor
from router.net.network import Network
from router.net.read_limiter import ReadLimiter
from router.net.same_address import twins
from router.net.shared_state import WorkerContext
from router.net.speed_prober import SpeedProber
from router.net.start_limiter import StartLimiter
from router.net.tasks import TaskSet
from router.net.ticker import note_changes, tick_for_ever
from router.net.watched_files import LOOK_SECONDS
from router.settings import Settings
from router.telemetry.access_log import AccessLog
from router.telemetry.event_buffer import EventBuffer
from router.telemetry.metrics import Metrics, WorkerGroup
from router.telemetry.router_info import NEVER_RELOADED
from router.telemetry.totals import Totals
from router.web.admin import OperationsHandler
from router.web.configuration import Reloads
from router.web.dashboard.figures import Figures
from router.web.dashboard.sampler import Sampler
from router.web.discovery import Discovery
from router.web.engines_api import add_engines_api
from router.web.fleet_sync import FleetSync
from router.web.operations import (
    Admin,
    Lifecycle,
    create_admin_operations,
    create_operations,
)
from router.web.parts import (
    admin_tls_of,
    admission_gate,
    byte_budget_of,
    cors_of,
    endpoint_picker,
    engine_tls_of,
    fleet_of,
    gateway_of,
    key_file_of,
    kv_ready_socket,
    kv_source_finder,
    limits_of,
    policies_of,
    pool_of,
    prefill_from,
    prober_of,
    receivers_of,
    scheduler_of,
    shown_config,
    timeouts_of,
    tls_of,
    tracing_of,
    transfer_ids,
)
from router.web.reload import Parts, reload
from router.web.replicas import replicas_of
from router.web.request_handler import RequestHandler
from router.web.sources import first_roster, new_roster, sources_of

__all__ = ["Router", "Worker"]


STARTS_PER_TURN = 32
"""Requests that begin at once between two beats of the pulse, and, of those that come beyond that,
in one turn of the event loop: each takes 35 us, and its engine connection 100 us in the next turn,
if it needs a new one."""

READ_PER_BEAT = 2 << 20
"""Bytes that are taken of large reads between two beats, from clients and as many from engines: 200
MB a second. A read of 256 kB takes 0.7 ms, most of it in the kernel and for its memory."""

WRONG_CONFIGURATION = 2
"""The exit status for what only another configuration mends."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several worker processes: its context, and the folder of the shared metrics."""

    context: WorkerContext
    counts: Path

    @property
    def group(self) -> WorkerGroup:
        """What the metrics know of the other workers."""
        table = self.context.column.table
        return WorkerGroup(self.counts, self.context.number, table.pids, table.restarts)


class Router:
    """A router's parts, for the server and for tests. `handler` takes requests, `operations` is the
    ASGI application for what is no inference, `admin_handler` takes operators' requests.

    With `worker` it is one of several processes with shared state and metrics.
    """

    def __init__(self, settings: Settings, worker: Worker | None = None) -> None:
        self.settings = settings
        self.exit_status = 0
        """Of the process, when it ends."""
        self.on_wrong_configuration: Callable[[], None] = lambda: None
        """Called when a discovery source can never work."""
        self._tasks = TaskSet()
        self.lifecycle = Lifecycle(self._tasks.failing)
        self._context = None if worker is None else worker.context
        self.fleet = fleet_of(settings, self._context)
        self._engine_reads = ReadLimiter(READ_PER_BEAT)
        self._engine_tls = engine_tls_of(settings)
        self.tls, self.admin_tls = tls_of(settings), admin_tls_of(settings)
        """What the listeners speak; None: no TLS."""
        self._pools = EnginePools(pool_of(settings, self._engine_tls, self._engine_reads))
        self.pools = self._pools.by_endpoint
        self.reloads: Reloads = (
            list(NEVER_RELOADED) if self._context is None else self._context.column.table.reloads
        )
        self.metrics = Metrics(
            self.fleet,
            self._connections,
            None if worker is None else worker.group,
            shown_config(settings),
            lambda: self.handler.network.scheduler.threshold_now,
            self.reloads,
        )
        self._loop_lag = LoopLagMonitor(self._on_loop_lag)
        listeners = [self.metrics.observe, AccessLog().observe]
        # A worker's counts must not be lost with it, and others show them.
        on_flushed = self.metrics.flush if self.metrics.are_merged else lambda: None
        self.event_buffer = EventBuffer(listeners, on_flushed)
        self._named_receivers = receivers_of(settings)
        self._receivers: dict[Endpoint, Receiver] = {}
        self._kv_ready = kv_ready_socket(settings)
        self._tracing = tracing_of(settings)
        self._kv_sources = kv_source_finder(settings, self.fleet, self._engine_tls, self._tasks)
        self._replicas = replicas_of(settings, self.fleet, self._context, self._tasks)
        self._gateway = gateway_of(settings)
        self._transfers = transfer_ids()
        self._idle_sweep = IdleTimeoutSweep(timeouts_of(settings).shortest)
        self.start_limiter = StartLimiter(STARTS_PER_TURN)
        self._read_limiter = ReadLimiter(READ_PER_BEAT)
        self.limits = limits_of(settings)
        self.on_look: Callable[[], None] = lambda: None
        """Called once a second, when files are looked at."""
        self._body_parser = BodyParser(
            prefill_from(settings), wants_ids=self.fleet.cache_events is not None
        )
        network = self._network(scheduler_of(settings, self.fleet))
        self._prober = prober_of(
            settings,
            self.fleet,
            self.observe,
            self._engine_tls,
            lambda url, ranks: self.sync.on_ranks(url, ranks),
            self._tasks,
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
        self._networks = EngineNetworks(settings.engine_networks)
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
        self.handler.cors = cors_of(settings)
        self.endpoint_picker = endpoint_picker(settings, network)
        for_operators = create_admin_operations(self.fleet, self.lifecycle, admin)
        add_engines_api(for_operators, self.fleet, self.sync, self._networks)
        if self._replicas is not None:
            self._replicas.add_to(for_operators)
        self.admin_handler = OperationsHandler(
            for_operators,
            self.limits,
            self._read_limiter,
            key_file_of(settings.admin_key_file),
            settings.peer_key,
        )
        self._parts = Parts(
            handler=self.handler,
            admin_handler=self.admin_handler,
            fleet=self.fleet,
            sync=self.sync,
            pools=self._pools,
            engine_tls=self._engine_tls,
            engine_reads=self._engine_reads,
            body_parser=self._body_parser,
            speed_prober=self._speed_prober,
            start_limiter=self.start_limiter,
            metrics=self.metrics,
        )
        self._settings_version = 0
        """Of the settings that the parent of several workers has given out."""

    def _network(self, scheduler: Scheduler) -> Network:
        settings = self.settings
        return Network(
            read_limiter=self._read_limiter,
            api_keys=key_file_of(settings.api_key_file),
            admission=admission_gate(settings, self.fleet, self.start_limiter, self.metrics),
            byte_budget=byte_budget_of(settings),
            body_parser=self._body_parser,
            scheduler=scheduler,
            plans=self._plan,
            pools=self.pools,
            idle_sweep=self._idle_sweep,
            start_limiter=self.start_limiter,
            limits=self.limits,
            timeouts=timeouts_of(settings),
            observe=self.observe,
            sample=settings.decision_log_sample,
            names_engines=settings.engine_header == "on",
            engine_api_key=settings.engine_api_key,
            kv_ready=self._kv_ready,
            tracing=self._tracing,
            gateway=self._gateway,
        )

    def reload(self, settings: Settings) -> None:
        """Serve by these settings from now on, as `router.web.reload` does."""
        named = receivers_of(settings)
        if named != self._named_receivers:
            self._receivers, self._named_receivers = {**self._receivers, **named}, named
        reload(self._parts, self.settings, settings)
        self.settings = settings

    @property
    def admission(self) -> AdmissionGate | None:
        """What lets requests in; None where any number is."""
        return self.handler.network.admission

    def _follow(self) -> None:
        """Follow what other processes of the router have changed: the fleet, the settings."""
        self.sync.follow()
        context = self._context
        if context is None or context.settings.version == self._settings_version:
            return
        if (found := context.settings.read()) is not None:
            self._settings_version, data = found
            try:
                self.reload(pickle.loads(data))
            except (OSError, ValueError) as error:  # the parent has read the same files
                log.error("this worker keeps its configuration: %s", error)  # noqa: TRY400

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
        found = {each.endpoint: each.receiver for each in entries if each.receiver is not None}
        self._receivers = found | self._named_receivers
        self._prober.follow()
        self._speed_prober.follow()
        if self._kv_sources is not None:
            self._kv_sources.follow()
        if self._gateway is not None:
            self._gateway.follow(member.endpoint for member in self.fleet)

    def _on_shared_event(self, event: SharedEvent | Ordered | PeerReport) -> None:
        if isinstance(event, Ordered):
            self.sync.obey(event)
            return
        if isinstance(event, PeerReport):
            if self._replicas is not None:
                self._replicas.siblings.hear_passed_on(event)
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
        self._engine_reads.refill()

    def _connections(self) -> Iterator[tuple[Endpoint, int, int]]:
        if self._context is not None:
            self._show_connections()
            for endpoint in self.pools:
                yield endpoint, *self._context.column.connections(endpoint)
        else:
            for endpoint, pool in self.pools.items():
                yield endpoint, pool.open, pool.idle

    async def _warn_of_twins(self) -> None:
        for pair in await twins(
            [*dict.fromkeys(split_rank(member.endpoint.url)[0] for member in self.fleet)]
        ):
            log.warning("%s", pair.warning)

    async def _show_for_ever(self) -> None:
        while True:
            self._show_connections()
            await asyncio.sleep(TICK_SECONDS)

    def _show_connections(self) -> None:
        if self._context is not None:
            for endpoint, pool in self.pools.items():
                self._context.column.set_connections(endpoint, pool.open, pool.idle)

    async def _look_at_files(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.on_look()
            keys = self.handler.network.api_keys, self.admin_handler.key_file
            for each in (*keys, self.tls, self.admin_tls):
                if each is not None:
                    each.refresh()
            self._engine_tls.refresh()

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
            discovery = Discovery(self._networks, self.sync.on_targets, self._is_misconfigured)
            for source in sources_of(self.settings, self.metrics.discovery_answered):
                self.metrics.begin_discovery(source.servers)
                self._tasks.spawn(partial(discovery.run, source), "discovery", source.name)
        if self._kv_sources is not None:
            self._kv_sources.start(logs=is_leader)
        ticks = partial(
            tick_for_ever,
            self.fleet,
            self._publish,
            self.status_log,
            self._follow,
            is_logged=is_leader,
        )
        self._tasks.spawn(ticks, "fleet ticker")
        self._tasks.spawn(self._look_at_files, "file watch")
        if self._replicas is not None:
            self._replicas.start()
        if self.endpoint_picker is not None:
            await self.endpoint_picker.start()
        self._loop_lag.start()

    def _is_misconfigured(self) -> None:
        self.exit_status = WRONG_CONFIGURATION
        self.on_wrong_configuration()

    async def _end(self) -> None:
        if self.endpoint_picker is not None:
            await self.endpoint_picker.stop(self.settings.shutdown_grace)
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
        if self._replicas is not None:
            await self._replicas.siblings.close()
        self._idle_sweep.close()
        if self._kv_ready is not None:
            self._kv_ready.close()
        self._pools.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)
