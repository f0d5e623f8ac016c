"""Makes the parts that face clients, from the settings."""

from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Final

from router.certificates import server_tls
from router.core.fleet.fleet import Fleet
from router.core.limits.byte_budget import ByteBudget
from router.core.limits.key_limits import KeyLimits
from router.core.limits.key_usage_table import KeyRows
from router.core.limits.places import Group
from router.core.routing.patience import Patience
from router.core.values import Candidate, Role
from router.core.wire.cors import CORS
from router.net.key_file import KeyFile
from router.net.kv.kv_ready import KVReadySocket
from router.net.limits.admission_gate import AdmissionGate, AdmissionLimits
from router.net.limits.start_limiter import StartLimiter
from router.net.processes.shared_state import WorkerContext
from router.net.request.gateway import Gateway
from router.net.request.network import Limits, Network, Timeouts
from router.net.tls_files import TLSFiles
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
"""Bytes for which each worker has room: of a unary answer with logprobs for 100k tokens."""


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


def key_file_of(
    path: Path | None,
    current: KeyFile | None = None,
    rows: KeyRows | None = None,
    on_limits: Callable[[Mapping[str, KeyLimits]], None] = lambda _: None,
) -> KeyFile | None:
    """The keys of a file: the current ones, if they are its. Raises OSError or ValueError."""
    if path is None:
        return None
    if current is not None and current.path == path:
        return current
    return KeyFile(path, rows, on_limits)


def key_rows_of(context: WorkerContext | None) -> KeyRows | None:
    """Where processes count what is taken with API keys, together; None where there is one."""
    return None if context is None else context.key_rows


def limits_of(settings: Settings) -> Limits:
    """What clients may send, and how long they may take."""
    return Limits(
        body_bytes=settings.max_body_bytes,
        body_seconds=settings.body_timeout,
        stall_seconds=settings.client_stall_timeout,
        keep_alive_seconds=settings.keep_alive_timeout,
    )


def cors_of(settings: Settings) -> CORS | None:
    """Which web pages may call; None if none may."""
    return CORS(settings.cors_allow_origin) if settings.cors_allow_origin else None


def byte_budget_of(settings: Settings) -> ByteBudget:
    """The bytes of bodies that one worker holds at once."""
    share = settings.max_buffered_bytes // settings.workers
    return ByteBudget(max(settings.max_body_bytes, share))


def answer_budget_of(settings: Settings) -> ByteBudget:
    """The bytes of answers that one worker keeps at once."""
    share = settings.max_buffered_bytes // settings.workers
    return ByteBudget(max(LARGEST_ANSWER, share))


def admission_gate(
    settings: Settings,
    fleet: Fleet,
    start_limiter: StartLimiter,
    metrics: Metrics,
    context: WorkerContext | None,
) -> AdmissionGate | None:
    """What lets requests in; None where the settings limit nothing."""
    limits = admission_limits(settings)
    if limits.in_flight is None and limits.in_flight_per_engine is None:
        return None

    def engines_for(group: Group, now: float) -> Sequence[Candidate]:
        model, named = group
        if named is not None:
            return fleet.usable_of(named, frozenset())
        return fleet.candidates(Role.DECODE, model, frozenset(), now)

    def merged(group: Group) -> Group:
        model, named = group
        return (fleet.listed(model) if named is None else None), named

    total = share = None
    if context is not None:
        total, share = context.column.admitted, context.column.queue_share
    return AdmissionGate(limits, engines_for, merged, start_limiter, metrics, total, share)


def admission_limits(settings: Settings) -> AdmissionLimits:
    """The limits of all worker processes."""
    return AdmissionLimits(
        in_flight=settings.max_in_flight,
        in_flight_per_engine=settings.max_in_flight_per_engine,
        queue_size=settings.queue_size,
        queue_seconds=settings.queue_timeout,
        tenant_header=settings.tenant_header.encode(),
        priority_from=settings.queue_priority,
    )


def prefill_from(settings: Settings) -> int | None:
    """Tokens from which on a large body may be prefilled remotely; None: nothing prefills."""
    if not settings.prefill and not settings.discovers and settings.admin_port is None:
        return None
    if settings.routing_threshold == "auto" or settings.direct_mode == "on":  # anything may be
        return 0
    return settings.routing_threshold


def timeouts_of(settings: Settings) -> Timeouts:
    """How long engines may take."""
    return Timeouts(
        prefill=Patience(settings.prefill_timeout),
        stream=Patience(settings.first_byte_timeout, settings.stream_idle_timeout),
        kv_ready=settings.lmcache_notify_timeout,
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
    except ImportError as error:
        raise SettingsError(f"--otlp-traces-endpoint: {error}") from None


def gateway_of(settings: Settings) -> Gateway | None:
    """The gateways whose choice of engines is trusted; None without --direct-mode."""
    if settings.direct_mode == "off":
        return None
    return Gateway(trusted_gateways(settings))


def trusted_gateways(settings: Settings) -> list[IPv4Network | IPv6Network]:
    """Where the gateways are."""
    return [ip_network(each) for each in settings.trusted_gateways]


def endpoint_picker(settings: Settings, network: Network) -> EndpointPicker | None:
    """What Envoy asks; None where it does not. Raises SettingsError without the extra."""
    if settings.epp_port is None:
        return None
    return EndpointPicker(network, settings.host, settings.epp_port)
