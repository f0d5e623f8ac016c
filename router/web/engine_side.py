"""The engine side of the router: connections, probes and KV-cache events."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from random import Random

from router.certificates import engine_tls
from router.core.events import Event
from router.core.fleet.fleet import Fleet
from router.core.fleet.probing import roles_that_use_speed
from router.core.speed.tuning import TICK_SECONDS
from router.core.urls import origin, split_rank
from router.core.values import Endpoint
from router.net.addresses import same_addresses
from router.net.background.bootstrap_servers import BootstrapServers
from router.net.background.model_finder import ModelFinder
from router.net.background.prober import Prober
from router.net.background.speed_prober import SpeedProber
from router.net.engine.engine_connection import EngineConnection
from router.net.engine.engine_session import Diagnosis, engine_session
from router.net.engine.pool import EnginePool, EnginePools
from router.net.kv_events import KVAddress, KVEventSubscriber, KVSourceFinder
from router.net.limits.read_limiter import READ_PER_REFILL, ReadLimiter
from router.net.limits.read_rotation import ReadRotation
from router.net.processes.shared_state import WorkerContext
from router.net.tasks import TaskSet
from router.net.watched_files import TLSFiles
from router.settings import Settings, SettingsError
from router.web.fleet_sync import FleetSync
from router.web.routing import policies_of

__all__ = [
    "EngineConnections",
    "EngineSide",
    "bootstrap_servers",
    "engine_tls_of",
    "kv_source_finder",
]

log = logging.getLogger(__name__)


class EngineConnections:
    """The connection pools of all engines, and what their connections share. With a `context` the
    numbers of connections are published in memory that all workers share."""

    def __init__(self, settings: Settings, context: WorkerContext | None) -> None:
        self._context = context
        self.tls = engine_tls_of(settings)
        self.read_limiter = ReadLimiter(READ_PER_REFILL)
        self.read_rotation = ReadRotation(self._answering)
        self.pools = EnginePools(self._create)
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Apply the settings, also to the pools that exist."""
        self._connect_seconds = settings.connect_timeout
        self._idle_seconds = settings.idle_connection_timeout
        self._max_idle = settings.max_idle_connections
        self.pools.configure(
            connect_seconds=self._connect_seconds,
            idle_seconds=self._idle_seconds,
            max_idle=self._max_idle,
        )

    def by_engine(self) -> Iterator[tuple[Endpoint, int, int]]:
        """Yields each engine with the number of its connections, over all workers, and of the idle
        ones among them."""
        for endpoint, pool in self.pools.by_endpoint.items():
            if self._context is None:
                yield endpoint, pool.open, pool.idle
            else:
                self._context.column.set_connections(endpoint, pool.open, pool.idle)
                yield endpoint, *self._context.column.connections(endpoint)

    async def publish_for_ever(self, context: WorkerContext) -> None:
        """Publish this worker's numbers at each tick."""
        while True:
            for endpoint, pool in self.pools.by_endpoint.items():
                context.column.set_connections(endpoint, pool.open, pool.idle)
            await asyncio.sleep(TICK_SECONDS)

    def refill(self) -> None:
        """Refill the read limiter and the read rotation."""
        self.read_limiter.refill()
        self.read_rotation.refill()

    def _create(self, endpoint: Endpoint) -> EnginePool:
        return EnginePool(
            origin(split_rank(endpoint.url)[0]),
            connect_seconds=self._connect_seconds,
            idle_seconds=self._idle_seconds,
            max_idle=self._max_idle,
            tls=self.tls,
            read_limiter=self.read_limiter,
            read_rotation=self.read_rotation,
        )

    def _answering(self) -> list[EngineConnection]:
        return self.pools.answering()


class EngineSide:
    """Watches the engines through `connections` and with probes of its own. `observe` receives the
    results, `sync` the data-parallel ranks that are found."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        connections: EngineConnections,
        sync: FleetSync,
        observe: Callable[[Event], None],
        tasks: TaskSet,
    ) -> None:
        self._fleet = fleet
        self._tasks = tasks
        self._pools = connections.pools
        # Not with LMCache and MoRIIO, because a rank's receiver is not known.
        names_receivers = settings.disagg_connector_type in ("lmcache", "moriio")
        pins_ranks = settings.data_parallel_ranks == "auto" and not names_receivers
        key, tls = settings.engine_api_key, connections.tls
        self._bootstraps = bootstrap_servers(settings, tls)
        self.prober = Prober(
            fleet,
            observe,
            health_seconds=settings.health_check_interval,
            stats_seconds=settings.engine_stats_interval,
            timeout_seconds=settings.health_check_timeout,
            diagnosis=_diagnosis_of(settings),
            sessions=lambda: (
                engine_session(key, tls.context),
                engine_session(
                    key, tls.context, keep_alive_seconds=settings.idle_connection_timeout
                ),
            ),
            tls=tls,
            rng=Random(),
            tasks=tasks,
            on_ranks=sync.on_ranks if pins_ranks else None,
            bootstraps=self._bootstraps,
        )
        self.model_finder = ModelFinder(fleet, self.prober.list_models)
        self.speed_prober = SpeedProber(
            fleet,
            connections.pools.by_endpoint,
            observe,
            seconds=settings.speed_probe_interval,
            engine_api_key=key,
            rng=Random(),
            tasks=tasks,
        )
        self._kv_sources = kv_source_finder(settings, fleet, tls, tasks)
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Apply the settings."""
        self.speed_prober.speed_roles = roles_that_use_speed(policies_of(settings))
        if self._bootstraps is not None:
            self._bootstraps.url_of = settings.bootstrap

    def follow(self) -> None:
        """Create what each engine of the fleet needs, and remove it for others."""
        self._pools.follow(self._fleet)
        self.prober.follow()
        self.speed_prober.follow()
        if self._kv_sources is not None:
            self._kv_sources.follow()

    def start(self, *, is_leader: bool) -> None:
        """Start to probe, if this process is the leader, and to subscribe to KV-cache events."""
        if is_leader:
            self._tasks.spawn(self._warn_of_twins, "address check")
            self.prober.start()
            self.speed_prober.start()
        if self._kv_sources is not None:
            self._kv_sources.start(logs=is_leader)

    async def close(self) -> None:
        """Stop everything, and close the connections."""
        await self.prober.close()
        if self._kv_sources is not None:
            await self._kv_sources.close()
        self._pools.close()

    async def _warn_of_twins(self) -> None:
        for pair in await same_addresses(
            [*dict.fromkeys(split_rank(member.endpoint.url)[0] for member in self._fleet)]
        ):
            log.warning("%s", pair.warning)


def bootstrap_servers(settings: Settings, tls: TLSFiles) -> BootstrapServers | None:
    """The bootstrap servers of prefill engines; None if the connector has none."""
    if settings.disagg_connector_type != "mooncake":
        return None
    seconds = settings.health_check_timeout
    return BootstrapServers(settings.bootstrap, timeout_seconds=seconds, tls=tls)


def engine_tls_of(settings: Settings) -> TLSFiles:
    """The TLS for https engines."""
    paths = settings.engine_ca_file, settings.engine_cert_file, settings.engine_key_file
    return TLSFiles("certificates for engines", lambda: engine_tls(*paths), *paths)


def kv_source_finder(
    settings: Settings, fleet: Fleet, tls: TLSFiles, tasks: TaskSet
) -> KVSourceFinder | None:
    """Creates the finder of KV-cache event sources; None if events are not used. Raises
    SettingsError if an extra is not installed."""
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
        diagnosis=_diagnosis_of(settings),
        session=lambda: engine_session(settings.engine_api_key, tls.context),
        tls=tls,
        tasks=tasks,
    )


def _diagnosis_of(settings: Settings) -> Diagnosis:
    """Explains why GETs to engines fail."""
    has_key = settings.engine_api_key is not None
    return Diagnosis(settings.health_check_timeout, has_key=has_key)
