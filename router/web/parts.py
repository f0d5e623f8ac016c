"""The parts of a router, each made as the settings want it."""

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from random import Random

from router.certificates import engine_tls, server_tls
from router.core import outlier
from router.core.auto_threshold import AutoThreshold
from router.core.byte_budget import ByteBudget
from router.core.cors import CORS
from router.core.events import Event
from router.core.fleet import Fleet
from router.core.health import HealthThresholds
from router.core.plans.lmcache_receivers import Receiver
from router.core.policies import POLICIES, Policy
from router.core.pool_monitor import ExclusionConfig
from router.core.prefix.cache_events import CacheEvents
from router.core.probing import STALE_SCRAPES, roles_that_use_speed
from router.core.retry_budget import RetryBudget
from router.core.schedule import Scheduler
from router.core.speed_estimator import SpeedEstimator
from router.core.urls import origin, split_rank
from router.core.values import Endpoint, Role
from router.net.admission_gate import AdmissionGate, AdmissionLimits
from router.net.diagnosis import Diagnosis
from router.net.engine_session import engine_session
from router.net.gateway import Gateway
from router.net.key_file import KeyFile
from router.net.kv_events import KVEventSubscriber
from router.net.kv_ready import KVReadySocket
from router.net.kv_sources import KVSourceFinder
from router.net.kv_subscription import KVAddress
from router.net.network import Limits, Network, Timeouts
from router.net.pool import EnginePool
from router.net.prober import Prober
from router.net.read_limiter import ReadLimiter
from router.net.relay_leg import Patience
from router.net.shared_state import WorkerContext
from router.net.start_limiter import StartLimiter
from router.net.tasks import TaskSet
from router.net.tls_files import TLSFiles
from router.settings import Settings, SettingsError
from router.telemetry.metrics import Metrics
from router.telemetry.tracing import Tracing
from router.web.epp.server import EndpointPicker
from router.web.replicas import ledger_of

__all__ = [
    "admin_tls_of",
    "admission_gate",
    "admission_limits",
    "byte_budget_of",
    "cors_of",
    "endpoint_picker",
    "engine_tls_of",
    "exclusion_of",
    "fleet_of",
    "gateway_of",
    "key_file_of",
    "kv_ready_socket",
    "kv_source_finder",
    "limits_of",
    "policies_of",
    "pool_of",
    "prefill_from",
    "prober_of",
    "receivers_of",
    "scheduler_of",
    "shown_config",
    "timeouts_of",
    "tls_of",
    "tracing_of",
    "transfer_ids",
    "trusted_gateways",
]


def fleet_of(
    settings: Settings,
    context: WorkerContext | None = None,
    endpoints: Sequence[Endpoint] = (),
) -> Fleet:
    """A fleet as the settings want it, with these engines in state `starting`."""
    stale_after = STALE_SCRAPES * settings.engine_stats_interval

    def speed_of(endpoint: Endpoint) -> SpeedEstimator:
        return SpeedEstimator(None if context is None else context.column.speed(endpoint))

    def max_num_seqs(endpoint: Endpoint) -> int | None:
        url, _ = split_rank(endpoint.url)
        return settings.max_num_seqs(url) if endpoint.role is Role.DECODE else None

    return Fleet(
        endpoints,
        ledger_of(settings, context),
        HealthThresholds(),
        stale_after,
        exclusion_of(settings),
        speed_of,
        max_num_seqs,
        shares_prefixes=context is not None,
        cache_events=CacheEvents() if settings.prefix_cache == "events" else None,
    )


def exclusion_of(settings: Settings) -> ExclusionConfig:
    """When engines are excluded."""
    return ExclusionConfig(
        stall_seconds=settings.stall_timeout,
        outliers=outlier.OutlierConfig(
            consecutive=settings.outlier_consecutive_failures,
            base_seconds=settings.outlier_ejection_time,
        ),
        max_excluded=settings.max_excluded_percent / 100,
        slow_start_seconds=settings.slow_start,
    )


def endpoint_picker(settings: Settings, network: Network) -> EndpointPicker | None:
    """What Envoy asks; None where it does not. Raises SettingsError without the extra."""
    if settings.epp_port is None:
        return None
    return EndpointPicker(network, settings.host, settings.epp_port)


def gateway_of(settings: Settings) -> Gateway | None:
    """Whose choice of engines is believed; None where the router chooses."""
    if settings.direct_mode == "off":
        return None
    return Gateway(trusted_gateways(settings))


def trusted_gateways(settings: Settings) -> list[IPv4Network | IPv6Network]:
    """Where the gateways are."""
    return [ip_network(each) for each in settings.trusted_gateways]


def policies_of(settings: Settings) -> dict[Role, Policy]:
    """The policy of each role."""
    common = settings.load_balancing_strategy
    return {
        Role.PREFILL: POLICIES[settings.prefill_load_balancing_strategy or common],
        Role.DECODE: POLICIES[settings.decode_load_balancing_strategy or common],
    }


def shown_config(settings: Settings) -> dict[str, str]:
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


def prefill_from(settings: Settings) -> int | None:
    """Tokens from which on a large body may be prefilled remotely; None: nothing prefills."""
    if not settings.prefill and not settings.discovers and settings.admin_port is None:
        return None
    return 0 if settings.routing_threshold == "auto" else settings.routing_threshold


def admission_gate(
    settings: Settings, fleet: Fleet, start_limiter: StartLimiter, metrics: Metrics
) -> AdmissionGate | None:
    """What lets requests in; None where the settings limit nothing."""
    limits = admission_limits(settings)
    if limits.in_flight is None and limits.in_flight_per_engine is None:
        return None

    def usable_engines() -> int:
        return sum(member.is_usable for member in fleet.pool(Role.DECODE))

    return AdmissionGate(limits, usable_engines, start_limiter, metrics)


def admission_limits(settings: Settings) -> AdmissionLimits:
    """Each worker process has its share."""

    def share(number: int | None) -> int | None:
        return None if number is None else -(-number // settings.workers)

    return AdmissionLimits(
        in_flight=share(settings.max_in_flight),
        in_flight_per_engine=share(settings.max_in_flight_per_engine),
        queue_size=-(-settings.queue_size // settings.workers),
        queue_seconds=settings.queue_timeout,
        tenant_header=settings.tenant_header.encode(),
        priority_from=settings.queue_priority,
    )


def key_file_of(path: Path | None, current: KeyFile | None = None) -> KeyFile | None:
    """The keys of a file: the current ones, if they are its. Raises OSError or ValueError."""
    if path is None:
        return None
    return current if current is not None and current.path == path else KeyFile(path)


def receivers_of(settings: Settings) -> dict[Endpoint, Receiver]:
    """Where each decode engine takes KV caches; empty for connectors that need not be told."""
    return {
        Endpoint(url, Role.DECODE): Receiver(
            given.receiver_host, given.receiver_init_port, given.receiver_alloc_port
        )
        for url, given in settings.receivers.items()
    }


def transfer_ids() -> Iterator[str]:
    """Unique across routers and restarts: LMCache's notifications are counted by them."""
    router = uuid.uuid4().hex
    return (f"{router}-{number}" for number in itertools.count())


def kv_ready_socket(settings: Settings) -> KVReadySocket | None:
    if settings.lmcache_notify_bind is None:
        return None
    try:
        return KVReadySocket(settings.lmcache_notify_bind)
    except ImportError as error:
        raise SettingsError(f"--lmcache-notify-bind: {error}") from None


def tracing_of(settings: Settings) -> Tracing | None:
    if settings.otlp_traces_endpoint is None:
        return None
    try:
        return Tracing(settings.otlp_traces_endpoint, settings.trace_sample)
    except ImportError as error:
        raise SettingsError(f"--otlp-traces-endpoint: {error}") from None


def kv_source_finder(
    settings: Settings, fleet: Fleet, tls: TLSFiles, tasks: TaskSet
) -> KVSourceFinder | None:
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
        session=lambda: engine_session(settings.engine_api_key, tls.context),
        tls=tls,
        tasks=tasks,
    )


def engine_tls_of(settings: Settings) -> TLSFiles:
    """How https engines are spoken to."""
    paths = settings.engine_ca_file, settings.engine_cert_file, settings.engine_key_file
    return TLSFiles("certificates for engines", lambda: engine_tls(*paths), *paths)


def tls_of(settings: Settings) -> TLSFiles | None:
    """What clients see; None where they are spoken to without TLS."""
    return _listener_tls(
        "--tls-cert-file",
        settings.tls_cert_file,
        settings.tls_key_file,
        settings.tls_client_ca_file,
    )


def admin_tls_of(settings: Settings) -> TLSFiles | None:
    """The same for the admin listener."""
    return _listener_tls(
        "--admin-tls-cert-file",
        settings.admin_tls_cert_file,
        settings.admin_tls_key_file,
        settings.admin_tls_client_ca_file,
    )


def _listener_tls(
    name: str, certificate: Path | None, key: Path | None, client_ca: Path | None
) -> TLSFiles | None:
    if certificate is None or key is None:
        return None
    return TLSFiles(
        name, lambda: server_tls(certificate, key, client_ca), certificate, key, client_ca
    )


def pool_of(
    settings: Settings, tls: TLSFiles, read_limiter: ReadLimiter
) -> Callable[[Endpoint], EnginePool]:
    """What makes the connections to an engine."""

    def pool(endpoint: Endpoint) -> EnginePool:
        url, rank = split_rank(endpoint.url)
        return EnginePool(
            origin(url),
            connect_seconds=settings.connect_timeout,
            idle_seconds=settings.idle_connection_timeout,
            max_idle=settings.max_idle_connections,
            tls=tls,
            read_limiter=read_limiter,
            rank=rank,
        )

    return pool


def cors_of(settings: Settings) -> CORS | None:
    """Which web pages may call; None if none may."""
    return CORS(settings.cors_allow_origin) if settings.cors_allow_origin else None


def limits_of(settings: Settings) -> Limits:
    """What clients may send, and how long they may take."""
    return Limits(
        body_bytes=settings.max_body_bytes,
        body_seconds=settings.body_timeout,
        stall_seconds=settings.client_stall_timeout,
        keep_alive_seconds=settings.keep_alive_timeout,
    )


def timeouts_of(settings: Settings) -> Timeouts:
    """How long engines may take."""
    return Timeouts(
        prefill=settings.prefill_timeout,
        stream=Patience(settings.first_byte_timeout, settings.stream_idle_timeout),
        kv_ready=settings.lmcache_notify_timeout,
    )


def byte_budget_of(settings: Settings) -> ByteBudget:
    """The bytes of bodies that one worker holds at once."""
    share = settings.max_buffered_bytes // settings.workers
    return ByteBudget(max(settings.max_body_bytes, share))


def _pins_ranks(settings: Settings) -> bool:
    """With LMCache a rank's receiver is not known."""
    return settings.data_parallel_ranks == "auto" and settings.disagg_connector_type == "nixl"


def prober_of(
    settings: Settings,
    fleet: Fleet,
    observe: Callable[[Event], None],
    tls: TLSFiles,
    on_ranks: Callable[[str, tuple[int, ...]], None],
    tasks: TaskSet,
) -> Prober:
    """What asks the engines how they are. `on_ranks` is told of data-parallel ranks."""
    return Prober(
        fleet,
        observe,
        health_seconds=settings.health_check_interval,
        stats_seconds=settings.engine_stats_interval,
        timeout_seconds=settings.health_check_timeout,
        diagnosis=Diagnosis(
            settings.health_check_timeout, has_key=settings.engine_api_key is not None
        ),
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
