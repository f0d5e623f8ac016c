"""Creates the parts that face clients, from the settings."""

from collections.abc import Callable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Final

from router.certificates import server_tls
from router.core.fleet.fleet import Fleet
from router.core.gateway.protocol import Gateway
from router.core.limits.budgets import ByteBudget
from router.core.limits.key_limits import KeyLimits, KeyRows
from router.core.routing.engine_timeouts import EngineTimeouts
from router.core.wire.headers import CORS
from router.net.kv_ready import KVReadySocket
from router.net.limits.admission_gate import AdmissionGate, AdmissionLimits, DecodeEngines
from router.net.limits.start_limiter import StartLimiter
from router.net.processes.shared_state import WorkerContext
from router.net.request.network import Limits, Network, Timeouts
from router.net.watched_files import KeyFile, TLSFiles
from router.settings import Settings, SettingsError
from router.telemetry.metrics import Metrics
from router.telemetry.tracing import Tracing
from router.web.epp.server import EndpointPicker

__all__ = [
    "admin_tls_of",
    "admission_gate",
    "admission_limits",
    "answer_budget_of",
    "byte_budget_of",
    "cors_of",
    "endpoint_picker",
    "gateway_of",
    "key_file_of",
    "key_rows_of",
    "kv_ready_socket",
    "limits_of",
    "prefill_from",
    "timeouts_of",
    "tls_of",
    "tracing_of",
    "trusted_gateways",
]

LARGEST_ANSWER: Final = 96 << 20
"""Bytes of the answer budget that each worker has at least: a unary answer with logprobs for
100,000 tokens."""


def tls_of(settings: Settings) -> TLSFiles | None:
    """The TLS of the listener for clients; None without TLS."""
    return _listener_tls(
        "--tls-cert-file",
        settings.tls_cert_file,
        settings.tls_key_file,
        settings.tls_client_ca_file,
    )


def admin_tls_of(settings: Settings) -> TLSFiles | None:
    """The TLS of the admin listener; None without TLS."""
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


def key_file_of(
    path: Path | None,
    current: KeyFile | None = None,
    rows: KeyRows | None = None,
    on_limits: Callable[[Mapping[str, KeyLimits]], None] = lambda _: None,
) -> KeyFile | None:
    """The keys of a file, or `current` if it has the same path. Raises OSError or ValueError."""
    if path is None:
        return None
    if current is not None and current.path == path:
        return current
    return KeyFile(path, rows, on_limits)


def key_rows_of(context: WorkerContext | None) -> KeyRows | None:
    """Shared memory in which several processes count the usage of API keys; None for a single
    process."""
    return None if context is None else context.key_rows


def limits_of(settings: Settings) -> Limits:
    """The limits for clients, in bytes and seconds."""
    return Limits(
        body_bytes=settings.max_body_bytes,
        body_seconds=settings.body_timeout,
        stall_seconds=settings.client_stall_timeout,
        keep_alive_seconds=settings.keep_alive_timeout,
    )


def cors_of(settings: Settings) -> CORS | None:
    """Which web pages may call the API; None if none may."""
    return CORS(settings.cors_allow_origin) if settings.cors_allow_origin else None


def byte_budget_of(settings: Settings) -> ByteBudget:
    """The budget for request bodies of one worker."""
    share = settings.max_buffered_bytes // settings.workers
    return ByteBudget(max(settings.max_body_bytes, share))


def answer_budget_of(settings: Settings) -> ByteBudget:
    """The budget for kept answers of one worker."""
    share = settings.max_buffered_bytes // settings.workers
    return ByteBudget(max(LARGEST_ANSWER, share))


def admission_gate(
    settings: Settings,
    fleet: Fleet,
    start_limiter: StartLimiter,
    metrics: Metrics,
    context: WorkerContext | None,
) -> AdmissionGate | None:
    """The admission gate; None if the settings limit nothing."""
    limits = admission_limits(settings)
    if limits.in_flight is None and limits.in_flight_per_engine is None:
        return None
    total = share = None
    if context is not None:
        total, share = context.column.admitted, context.column.queue_share
    engines = DecodeEngines(fleet)
    return AdmissionGate(limits, engines, start_limiter, metrics, total, share)


def admission_limits(settings: Settings) -> AdmissionLimits:
    """The admission limits, over all worker processes."""
    return AdmissionLimits(
        in_flight=settings.max_in_flight,
        in_flight_per_engine=settings.max_in_flight_per_engine,
        queue_size=settings.queue_size,
        queue_seconds=settings.queue_timeout,
        tenant_header=settings.tenant_header.encode(),
        priority_from=settings.queue_priority,
    )


def prefill_from(settings: Settings) -> int | None:
    """Tokens from which on a large body may be prefilled remotely; None if nothing is."""
    if not settings.prefill and not settings.discovers and settings.admin_port is None:
        return None
    if settings.routing_threshold == "auto" or settings.direct_mode == "on":  # any request may be
        return 0
    return settings.routing_threshold


def timeouts_of(settings: Settings) -> Timeouts:
    """The time-outs of requests."""
    return Timeouts(
        prefill=EngineTimeouts(settings.prefill_timeout),
        stream=EngineTimeouts(settings.first_byte_timeout, settings.stream_idle_timeout),
        kv_ready=settings.lmcache_notify_timeout,
        sse_keep_alive=settings.sse_keep_alive,
    )


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
    except (ImportError, ValueError) as error:  # ValueError: a variable of OpenTelemetry's own
        raise SettingsError(f"--otlp-traces-endpoint: {error}") from None


def gateway_of(settings: Settings) -> Gateway | None:
    """The gateways that may choose engines; None without --direct-mode."""
    if settings.direct_mode == "off":
        return None
    return Gateway(trusted_gateways(settings))


def trusted_gateways(settings: Settings) -> list[IPv4Network | IPv6Network]:
    """The networks of these gateways."""
    return [ip_network(each) for each in settings.trusted_gateways]


def endpoint_picker(settings: Settings, network: Network) -> EndpointPicker | None:
    """The endpoint picker for Envoy; None if it is off. Raises SettingsError if the extra is not
    installed."""
    if settings.epp_port is None:
        return None
    return EndpointPicker(network, settings.host, settings.epp_port)
