"""Creates the parts that face engines, from the settings."""

from collections.abc import Callable
from random import Random

from router.certificates import engine_tls
from router.core.events import Event
from router.core.fleet.fleet import Fleet
from router.core.urls import origin, split_rank
from router.core.values import Endpoint
from router.net.background.prober import Prober
from router.net.engine.engine_session import Diagnosis, engine_session
from router.net.engine.pool import EnginePool
from router.net.kv_events import KVAddress, KVEventSubscriber, KVSourceFinder
from router.net.limits.read_limiter import ReadLimiter
from router.net.limits.read_rotation import ReadRotation
from router.net.tasks import TaskSet
from router.net.watched_files import TLSFiles
from router.settings import Settings, SettingsError

__all__ = [
    "engine_tls_of",
    "kv_source_finder",
    "pool_of",
    "prober_of",
]


def engine_tls_of(settings: Settings) -> TLSFiles:
    """The TLS for https engines."""
    paths = settings.engine_ca_file, settings.engine_cert_file, settings.engine_key_file
    return TLSFiles("certificates for engines", lambda: engine_tls(*paths), *paths)


def pool_of(
    settings: Settings, tls: TLSFiles, read_limiter: ReadLimiter, read_rotation: ReadRotation
) -> Callable[[Endpoint], EnginePool]:
    """Returns a function that creates the connection pool of an engine."""

    def pool(endpoint: Endpoint) -> EnginePool:
        url, rank = split_rank(endpoint.url)
        return EnginePool(
            origin(url),
            connect_seconds=settings.connect_timeout,
            idle_seconds=settings.idle_connection_timeout,
            max_idle=settings.max_idle_connections,
            tls=tls,
            read_limiter=read_limiter,
            read_rotation=read_rotation,
            rank=rank,
        )

    return pool


def prober_of(
    settings: Settings,
    fleet: Fleet,
    observe: Callable[[Event], None],
    tls: TLSFiles,
    on_ranks: Callable[[str, tuple[int, ...]], None],
    tasks: TaskSet,
) -> Prober:
    """Creates the prober. `on_ranks` is called with an engine's data-parallel ranks."""
    return Prober(
        fleet,
        observe,
        health_seconds=settings.health_check_interval,
        stats_seconds=settings.engine_stats_interval,
        timeout_seconds=settings.health_check_timeout,
        diagnosis=_diagnosis_of(settings),
        sessions=lambda: (
            engine_session(settings.engine_api_key, tls.context),
            engine_session(
                settings.engine_api_key,
                tls.context,
                keep_alive_seconds=settings.idle_connection_timeout,
            ),
        ),
        tls=tls,
        rng=Random(),
        tasks=tasks,
        on_ranks=on_ranks if _pins_ranks(settings) else None,
    )


def _diagnosis_of(settings: Settings) -> Diagnosis:
    """Explains why GETs to engines fail."""
    has_key = settings.engine_api_key is not None
    return Diagnosis(settings.health_check_timeout, has_key=has_key)


def _pins_ranks(settings: Settings) -> bool:
    """Whether requests are pinned to data-parallel ranks. Not with LMCache, because a rank's
    receiver is not known."""
    return settings.data_parallel_ranks == "auto" and settings.disagg_connector_type == "nixl"


def kv_source_finder(
    settings: Settings, fleet: Fleet, tls: TLSFiles, tasks: TaskSet
) -> KVSourceFinder | None:
    """Creates the finder of KV-cache event sources; None if events are not used."""
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
