"""Builds the whole router from its settings; the only module that knows all of its parts."""

import asyncio
import logging
import pickle
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial

from fastapi import FastAPI
from starlette.routing import Router as Lifespan

from router.core.events import Event, LegDone, Ordered, PrefixesHeld, RequestEnded, SharedEvent
from router.core.membership.engine_names import EngineNetworks
from router.core.membership.entry import Entry
from router.core.replicas import PeerHistory, PeerReport
from router.net.background.ticker import note_changes, tick_for_ever
from router.net.limits.admission_gate import AdmissionGate
from router.net.limits.timers import INTERVAL_SECONDS, LoopLagMonitor
from router.net.processes.shared_state import WorkerContext, WorkerEvent
from router.net.replicas import SendStatus
from router.net.tasks import TaskSet
from router.net.watched_files import POLL_SECONDS
from router.settings import Settings, SettingsError
from router.telemetry.metrics import Counts, Metrics, WorkerGroup
from router.telemetry.process_metrics import NEVER_RELOADED
from router.web.client_parts import admin_tls_of, cors_of, tls_of
from router.web.client_side import ClientSide
from router.web.configuration import Reloads
from router.web.connection_counts import ConnectionCounts
from router.web.discovery import START_SECONDS, Discovery, first_roster, new_roster, sources_of
from router.web.engine_side import EngineSide
from router.web.fleet_sync import FleetSync
from router.web.operations import Lifecycle, create_operations
from router.web.operator_side import OperatorSide
from router.web.reload import Parts, reload
from router.web.replicas import replicas_of
from router.web.request_handler import RequestHandler
from router.web.routing_parts import fleet_of, shown_config

__all__ = ["Router"]

WRONG_CONFIGURATION = 2
"""Exit status if only another configuration can help. It ends all workers."""

FAILED = 1
"""Exit status of a worker that should be restarted."""

log = logging.getLogger(__name__)


class Router:
    """A router's parts, for the server and for tests. `handler` takes requests, `operations` is the
    ASGI application for everything other than inference, `operators.handler` takes operators'
    requests, and `lifespan` is an ASGI application that starts and stops the background tasks.

    With `context` it is one of several processes with shared state and metrics.
    """

    def __init__(self, settings: Settings, context: WorkerContext | None = None) -> None:
        self.settings = settings
        self.exit_status = 0
        """Exit status of the process."""
        self.on_wrong_configuration: Callable[[], None] = lambda: None
        """Called when a discovery source's configuration can never work."""
        self.on_look: Callable[[], None] = lambda: None
        """Called once a second, when files are checked for changes."""
        self._tasks = TaskSet()
        self.lifecycle = Lifecycle(self._tasks.failing)
        self._context = context
        self._began = time.monotonic() if context is None else context.began
        self._settings_version = 0
        """Version of the settings that the parent of several workers has published."""
        self.fleet = fleet_of(settings, context)
        self.tls, self.admin_tls = tls_of(settings), admin_tls_of(settings)
        """TLS of the listeners; None: no TLS."""
        self.reloads: Reloads = (
            list(NEVER_RELOADED) if context is None else context.column.table.reloads
        )
        self.metrics = Metrics(
            self.fleet,
            lambda: self._connections.by_engine(),
            _group(context),
            shown_config(settings),
            lambda: self.handler.network.scheduler.threshold_now,
            self.reloads,
            lambda: self.settings.names_prefill,
        )
        self.counts = Counts(self.metrics)
        self.event_buffer = self.counts.event_buffer
        self.engines = EngineSide(
            settings,
            self.fleet,
            self.observe,
            lambda url, ranks: self.sync.on_ranks(url, ranks),
            self._tasks,
        )
        self.pools = self.engines.pools.by_endpoint
        self._connections = ConnectionCounts(self.pools, context)
        self.clients = ClientSide(
            settings,
            self.fleet,
            self.pools,
            self.metrics,
            self.observe,
            self.engines.read_rotation.on_starts_late,
            context,
        )
        self._loop_lag = LoopLagMonitor(self._on_loop_lag)
        self.replicas = replicas_of(settings, self.fleet, self.engines.tls, context, self._tasks)
        self._networks = EngineNetworks(settings.engine_networks)
        roster = first_roster(settings) if context is None else new_roster(settings)
        self.sync = FleetSync(roster, self.fleet, context, self._apply)
        self.sync.start()
        answered = self.metrics.discovery_answered
        self.sources = sources_of(settings, answered, self.sync.roster.named_by)
        self.operators = OperatorSide(
            settings,
            self.fleet,
            self.sync,
            self._networks,
            self.replicas,
            self.lifecycle,
            self.counts,
            self.clients,
            lambda: self.settings.names_prefill,
        )
        self.lifespan = Lifespan(lifespan=self._lifespan)
        self.handler = RequestHandler(self.clients.network, lambda: self.operations)
        self.handler.cors = cors_of(settings)

    @cached_property
    def operations(self) -> FastAPI:
        """The ASGI application for everything other than inference; created on first use."""
        return create_operations(self.fleet, self.lifecycle, self.operators.for_clients)

    def prepare(self) -> None:
        """Create the applications now: on the first request that would block all streams for 10
        ms."""
        _ = self.operations
        self.operators.prepare()

    def reload(self, settings: Settings) -> None:
        """Apply new settings, see `router.web.reload`."""
        parts = Parts(
            handler=self.handler,
            admin_handler=self.operators.handler,
            fleet=self.fleet,
            sync=self.sync,
            engines=self.engines,
            clients=self.clients,
            metrics=self.metrics,
        )
        reload(parts, self.settings, settings)
        self.settings = settings

    @property
    def admission(self) -> AdmissionGate | None:
        """The admission gate; None if the number of requests is not limited."""
        return self.handler.network.admission

    def _follow(self) -> None:
        """Adopt changes that other processes of the router have made to the fleet or the
        settings."""
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
        if isinstance(event, LegDone):  # frequent, and not counted, logged or sent
            self.fleet.observe(event, time.monotonic())
            return
        self.event_buffer.add(event)
        if isinstance(event, RequestEnded):  # it concerns no single engine
            if event.prompt_tokens:
                self.fleet.ended(event)
            return
        self.fleet.observe(event, time.monotonic())
        if self._context is not None:
            self._context.bus.observe(event)

    def _apply(self, entries: Sequence[Entry]) -> None:
        """Update everything that depends on the roster."""
        if self._context is not None:
            self._context.column.place({entry.endpoint: entry.row for entry in entries})
        self.fleet.apply(entries, time.monotonic())
        self.engines.follow()
        self.metrics.follow()
        self.clients.follow(entries)

    def _on_shared_event(self, event: WorkerEvent) -> None:
        if isinstance(event, Ordered):
            self.sync.obey(event)
            return
        if isinstance(event, PeerReport | PeerHistory | SendStatus):
            if self.replicas is not None:
                self.replicas.siblings.receive_forwarded(event)
            return
        self._send_to_siblings(event)
        self.sync.follow()  # the leader publishes engines as soon as they have joined
        self.fleet.observe_shared(event, time.monotonic())

    def _publish(self, event: SharedEvent) -> None:
        if self._context is not None:
            self._context.bus.publish(event)
        self._send_to_siblings(event)

    def _send_to_siblings(self, event: SharedEvent) -> None:
        """Send the prompts among workers' events to sibling replicas."""
        if self.replicas is not None and isinstance(event, PrefixesHeld):
            self.replicas.siblings.note(event)

    def _on_loop_lag(self, late: float) -> None:
        is_behind = self.engines.read_rotation.is_lasting
        self.metrics.observe_loop_lag(late, behind=INTERVAL_SECONDS + late if is_behind else 0.0)
        self.clients.refill()
        self.engines.refill()
        if self._context is not None:
            self._context.column.beat()

    async def _look_at_files(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self.on_look()
            keys = self.handler.network.api_keys, self.operators.handler.key_file
            for each in (*keys, self.tls, self.admin_tls, self.engines.tls):
                if each is not None:
                    each.refresh(is_logged=self.sync.is_leader)

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        try:
            await self._start()
        except (SettingsError, OSError) as error:
            log.error("cannot start: %s", error)  # noqa: TRY400 - no traceback
            self._is_misconfigured()
        try:
            yield
        finally:
            await self._end()

    async def _start(self) -> None:
        self.clients.start()
        context = self._context
        is_leader = context is None or context.is_leader
        if context is not None:
            context.bus.subscribe(self._on_shared_event)
            show = partial(self._connections.show_for_ever, context)
            self._tasks.spawn(show, "connection counts")
        # Before connections are accepted, because the first requests would get 503 otherwise, and
        # would be missing on the live page.
        await self.engines.prober.probe_all()
        await self.operators.readings.take()
        note_changes(self.operators.status_log, is_logged=is_leader)
        self.engines.start(is_leader=is_leader)
        if is_leader:
            self._discover()
        ticks = partial(
            tick_for_ever,
            self.fleet,
            self._publish,
            self.operators.status_log,
            self._follow,
            begun=(lambda: 0) if context is None else context.column.table.begun,
            is_logged=is_leader,
        )
        self._tasks.spawn(ticks, "fleet ticker")
        self._tasks.spawn(self._look_at_files, "file watch")
        self._tasks.spawn(self.operators.readings.take_for_ever, "live page counts")
        if self.replicas is not None:
            self.replicas.start()
        if self.clients.picker is not None:
            await self.clients.picker.start()
        self._loop_lag.start()

    def _discover(self) -> None:
        known = self.sync.roster.named_by
        discovery = Discovery(
            self._networks,
            self.sync.on_targets,
            known,
            self._is_misconfigured,
            self._is_starting,
        )
        for source in self.sources:
            self.metrics.begin_discovery(source.servers)
            self._tasks.spawn(partial(discovery.run, source), "discovery", source.name)

    def silent_sources(self) -> list[str]:
        """The sources that have listed no engines yet to any process of the router."""
        known = self.sync.roster.named_by
        return [source.name for source in self.sources if known(source.name) is None]

    def _is_starting(self) -> bool:
        """Whether the router, with all of its workers, was started recently."""
        return time.monotonic() - self._began < START_SECONDS

    def _is_misconfigured(self) -> None:
        self.exit_status = WRONG_CONFIGURATION if self._is_starting() else FAILED
        self.on_wrong_configuration()

    async def _end(self) -> None:
        if self.clients.picker is not None:
            await self.clients.picker.stop()
        self._loop_lag.close()
        if self._context is not None:
            self._context.bus.close()
        await self._tasks.close()
        if self.replicas is not None:
            await self.replicas.siblings.close()
        await self.clients.close()
        await self.engines.close()


def _group(context: WorkerContext | None) -> WorkerGroup | None:
    """All workers, for the metrics."""
    if context is None:
        return None
    return WorkerGroup(context.number, context.counts, context.column.table)
