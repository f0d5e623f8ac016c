"""Builds the whole router from its settings; the only module that knows all of its parts."""

import asyncio
import logging
import pickle
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from starlette.routing import Router as Lifespan

from router.core.events import Event, LegDone, Ordered, PrefixesHeld, RequestEnded, SharedEvent
from router.core.fleet.worker_events import FleetChanges
from router.core.membership.engine_names import EngineNetworks
from router.core.membership.entry import Entry
from router.core.replicas import PeerHistory, PeerReport
from router.core.speed.tuning import TICK_SECONDS
from router.net.limits.read_limiter import READ_PER_REFILL, ReadLimiter
from router.net.limits.timers import INTERVAL_SECONDS, LoopLagMonitor
from router.net.processes.shared_state import WorkerContext, WorkerEvent
from router.net.replicas import SendStatus
from router.net.tasks import TaskSet
from router.net.watched_files import POLL_SECONDS
from router.settings import Settings, SettingsError, SettingsSource
from router.telemetry.logs import set_level
from router.telemetry.metrics import Counts, Metrics, WorkerGroup
from router.telemetry.process_metrics import NEVER_RELOADED
from router.web.admin import OperatorSide
from router.web.asgi_call import LazyApp
from router.web.client_side import ClientSide
from router.web.configuration import Configuration, Reloads
from router.web.discovery import (
    SETTINGS,
    Discovery,
    first_roster,
    new_roster,
    sources_of,
    targets_of,
)
from router.web.engine_side import EngineConnections, EngineSide
from router.web.fleet_sync import FleetSync
from router.web.lifecycle import Lifecycle
from router.web.operations import create_operations
from router.web.replicas import replicas_of
from router.web.routing import Routing, fleet_of

__all__ = ["Router"]

log = logging.getLogger(__name__)


class Router:
    """A router's parts, for the server and for tests. `handler` takes clients' requests,
    `operators.handler` those of operators, and `lifespan` is an ASGI application that starts and
    stops the background tasks.

    With `context` it is one of several processes with shared state and metrics. With `source` the
    settings are read again from there when they change; a worker gets them from its parent.
    """

    def __init__(
        self,
        settings: Settings,
        context: WorkerContext | None = None,
        source: SettingsSource | None = None,
    ) -> None:
        self.settings = settings
        self._context = context
        self._table = None if context is None else context.column.table
        self._settings_version = 0
        """Version of the settings that the parent of several workers has published."""
        self._tasks = TaskSet()
        began = time.monotonic() if context is None else context.began
        self.lifecycle = Lifecycle(self._tasks, began)
        self.fleet = fleet_of(settings, context)
        self.routing = Routing(settings, self.fleet)
        roster = first_roster(settings) if context is None else new_roster(settings)
        self.sync = FleetSync(roster, self.fleet, context)
        self.connections = EngineConnections(settings, context)
        reloads: Reloads = list(NEVER_RELOADED) if self._table is None else self._table.reloads
        self.metrics = Metrics(
            self.fleet,
            self.connections.by_engine,
            _group(context),
            threshold=self.routing.threshold_now,
            reloads=reloads,
            has_prefill=self.routing.has_prefill,
        )
        self.counts = Counts(self.metrics)
        self.engines = EngineSide(
            settings, self.fleet, self.connections, self.sync, self.observe, self._tasks
        )
        self.replicas = replicas_of(
            settings, self.fleet, self.connections.tls, context, self._tasks
        )
        self._networks = EngineNetworks(settings.engine_networks)
        self.sources = sources_of(
            settings, self.metrics.discovery_answered, self.sync.roster.named_by
        )
        read_limiter = ReadLimiter(READ_PER_REFILL)
        self.operators = OperatorSide(
            settings,
            self.routing,
            self.sync,
            self._networks,
            self.replicas,
            self.lifecycle,
            self.counts,
            read_limiter,
        )
        self.operations = LazyApp(
            lambda: create_operations(
                self.routing,
                self.lifecycle,
                self.operators.for_clients,
                self.clients.network,
                self.connections.tls,
            )
        )
        self.clients = ClientSide(
            settings,
            self.routing,
            self.connections,
            self.operations,
            read_limiter,
            self.metrics,
            self.observe,
            context,
        )
        self.clients.network.find_models = self.engines.model_finder.find
        self.handler = self.clients.handler
        self.configuration: Configuration | None = None
        """None for a worker."""
        if source is not None:
            self.configuration = Configuration(settings, source, self.reload, reloads)
        self.metrics.info.config = _shown(settings)
        self._loop_lag = LoopLagMonitor(self._on_loop_lag)
        self.lifespan = Lifespan(lifespan=self._lifespan)
        self.sync.start(self._on_fleet_changed)

    def prepare(self) -> None:
        """Create the applications now: on the first request that would block all streams for 10
        ms."""
        self.operations.prepare()
        if self.settings.admin_port is not None:
            self.operators.operations.prepare()

    def reload(self, settings: Settings) -> None:
        """Apply settings that differ only in reloadable ones. Requests in progress continue with
        the old ones. Raises OSError or ValueError, without any change, if a file that they name
        cannot be read."""
        # Read and check everything. The operators' keys go first: reading the clients' keys shows
        # their limits as metrics.
        names = self.routing.read(settings)
        admin_keys = self.operators.read(settings)
        keys = self.clients.read(settings)
        # Apply everything. Nothing from here on can fail.
        self.routing.configure(settings, names)
        self.connections.configure(settings)
        self.engines.configure(settings)
        self.operators.configure(settings, admin_keys)
        self.clients.configure(settings, keys)
        self.metrics.info.config = _shown(settings)
        if settings.log_level != self.settings.log_level:
            set_level(settings.log_level)
        if self.sync.is_leader:
            self.sync.on_targets(SETTINGS, targets_of(settings))
        self.settings = settings

    def silent_sources(self) -> list[str]:
        """The sources that have listed no engines yet to any process of the router."""
        known = self.sync.roster.named_by
        return [source.name for source in self.sources if known(source.name) is None]

    # Events.

    def observe(self, event: Event) -> None:
        """Pass an event to the fleet, the metrics, the log and the other workers."""
        if isinstance(event, LegDone):  # frequent, and not counted, logged or sent
            self.fleet.observe(event, time.monotonic())
            return
        self.counts.event_buffer.add(event)
        if isinstance(event, RequestEnded):  # it concerns no single engine
            if event.prompt_tokens or self.fleet.transfers is not None:
                self.fleet.ended(event)
            return
        self.fleet.observe(event, time.monotonic())
        if self._context is not None:
            self._context.bus.observe(event)

    def _on_shared_event(self, event: WorkerEvent) -> None:
        """Process an event of another worker."""
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

    # Changes.

    def _on_fleet_changed(self, entries: Sequence[Entry]) -> None:
        """Update everything that depends on the fleet."""
        self.engines.follow()
        self.metrics.follow()
        self.clients.follow(entries)

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

    async def _tick_for_ever(self) -> None:
        """Tick the fleet four times a second. Other processes get what has changed, and when a
        worker has started, also the ejections in force: before that its engines are not up, and it
        would eject none."""
        changes = FleetChanges(self.fleet)
        begun = self._begun()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._follow()
            self.fleet.tick(time.monotonic())
            if (begun_now := self._begun()) != begun:
                begun = begun_now
                changes.repeat()
            for event in changes.take():
                self._publish(event)
            self.operators.note_changes(is_logged=self.sync.is_leader)

    def _begun(self) -> int:
        """How many workers have started so far."""
        return 0 if self._table is None else self._table.begun()

    async def _look_at_files(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self.configuration is not None:
                self.configuration.look()
            for each in (
                *(self.handler.network.api_keys, self.operators.handler.key_file),
                *(self.clients.tls, self.operators.tls, self.connections.tls),
            ):
                if each is not None:
                    each.refresh(is_logged=self.sync.is_leader)

    def _on_loop_lag(self, late: float) -> None:
        is_behind = self.connections.read_rotation.is_lasting
        self.metrics.observe_loop_lag(late, behind=INTERVAL_SECONDS + late if is_behind else 0.0)
        self.clients.refill()
        self.connections.refill()
        if self._context is not None:
            self._context.column.beat()

    # Start and end.

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        try:
            await self._start()
        except (SettingsError, OSError) as error:
            log.error("cannot start: %s", error)  # noqa: TRY400 - no traceback
            self.lifecycle.fail()
        try:
            yield
        finally:
            await self._end()

    async def _start(self) -> None:
        is_leader = self.sync.is_leader
        self.clients.start()
        if self._context is not None:
            self._context.bus.subscribe(self._on_shared_event)
            publish = partial(self.connections.publish_for_ever, self._context)
            self._tasks.spawn(publish, "connection counts")
        # Before connections are accepted, because the first requests would get 503 otherwise, and
        # would be missing on the live page.
        await self.engines.prober.probe_all()
        self.routing.check_names()
        await self.operators.readings.take()
        self.operators.note_changes(is_logged=is_leader)
        self.engines.start(is_leader=is_leader)
        if is_leader:
            self._discover()
        self._tasks.spawn(self._tick_for_ever, "fleet ticker")
        self._tasks.spawn(self._look_at_files, "file watch")
        self._tasks.spawn(self.operators.readings.take_for_ever, "live page counts")
        if self.replicas is not None:
            self.replicas.start()
        if self.clients.picker is not None:
            await self.clients.picker.start()
        self._loop_lag.start()

    def _discover(self) -> None:
        discovery = Discovery(self._networks, self.sync, self.lifecycle)
        for source in self.sources:
            self.metrics.begin_discovery(source.servers)
            self._tasks.spawn(partial(discovery.run, source), "discovery", source.name)

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


def _shown(settings: Settings) -> dict[str, str]:
    """The settings that are exported as a metric."""
    common = settings.load_balancing_strategy
    return {
        "prefill_strategy": settings.prefill_load_balancing_strategy or common,
        "decode_strategy": settings.decode_load_balancing_strategy or common,
        "routing_threshold": str(settings.routing_threshold),
        "connector": settings.disagg_connector_type,
        "workers": str(settings.workers),
    }
