"""The engine side of the router: connections, probes and KV-cache events."""

import logging
from collections.abc import Callable
from random import Random

from router.core.events import Event
from router.core.fleet.fleet import Fleet
from router.core.fleet.probing import roles_that_use_speed
from router.core.urls import split_rank
from router.core.values import Endpoint
from router.net.addresses import same_addresses
from router.net.background.speed_prober import SpeedProber
from router.net.engine.engine_connection import EngineConnection
from router.net.engine.pool import EnginePool, EnginePools
from router.net.limits.read_limiter import READ_PER_REFILL, ReadLimiter
from router.net.limits.read_rotation import ReadRotation
from router.net.tasks import TaskSet
from router.settings import Settings
from router.web.engine_parts import engine_tls_of, kv_source_finder, pool_of, prober_of
from router.web.routing_parts import policies_of

__all__ = ["EngineSide"]

log = logging.getLogger(__name__)


class EngineSide:
    """`observe` receives the results of probes, and `on_ranks` an engine's data-parallel ranks."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        observe: Callable[[Event], None],
        on_ranks: Callable[[str, tuple[int, ...]], None],
        tasks: TaskSet,
    ) -> None:
        self._fleet = fleet
        self._tasks = tasks
        self.read_limiter = ReadLimiter(READ_PER_REFILL)
        self.tls = engine_tls_of(settings)
        self.read_rotation = ReadRotation(self._answering)
        self.pools = EnginePools(self._pool_of(settings))
        self.prober = prober_of(settings, fleet, observe, self.tls, on_ranks, tasks)
        self.speed_prober = SpeedProber(
            fleet,
            self.pools.by_endpoint,
            observe,
            seconds=settings.speed_probe_interval,
            speed_roles=roles_that_use_speed(policies_of(settings)),
            engine_api_key=settings.engine_api_key,
            rng=Random(),
            tasks=tasks,
        )
        self._kv_sources = kv_source_finder(settings, fleet, self.tls, tasks)

    def configure(self, settings: Settings) -> None:
        """Apply new settings."""
        self.speed_prober.speed_roles = roles_that_use_speed(policies_of(settings))
        self.pools.configure(
            self._pool_of(settings),
            connect_seconds=settings.connect_timeout,
            idle_seconds=settings.idle_connection_timeout,
            max_idle=settings.max_idle_connections,
        )

    def follow(self) -> None:
        """Create what each engine of the fleet needs, and remove it for others."""
        self.pools.follow(self._fleet)
        self.prober.follow()
        self.speed_prober.follow()
        if self._kv_sources is not None:
            self._kv_sources.follow()

    def refill(self) -> None:
        """Refill the read limiter and the read rotation."""
        self.read_limiter.refill()
        self.read_rotation.refill()

    def start(self, *, is_leader: bool) -> None:
        """Start to probe, if this process is the leader, and to subscribe to KV-cache events."""
        if is_leader:
            self._tasks.spawn(self._warn_of_twins, "address check")
            self.prober.start()
            self.speed_prober.start()
        if self._kv_sources is not None:
            self._kv_sources.start(logs=is_leader)

    async def close(self) -> None:
        """Stop everything."""
        await self.prober.close()
        if self._kv_sources is not None:
            await self._kv_sources.close()
        self.pools.close()

    def _pool_of(self, settings: Settings) -> Callable[[Endpoint], EnginePool]:
        return pool_of(settings, self.tls, self.read_limiter, self.read_rotation)

    def _answering(self) -> list[EngineConnection]:
        return self.pools.answering()

    async def _warn_of_twins(self) -> None:
        for pair in await same_addresses(
            [*dict.fromkeys(split_rank(member.endpoint.url)[0] for member in self._fleet)]
        ):
            log.warning("%s", pair.warning)
