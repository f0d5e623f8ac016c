"""The client side of the router: its listener's TLS, what requests share, and their limits."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from router.certificates import server_tls
from router.core.continuation.move_queue import MoveQueue
from router.core.events import Event
from router.core.gateway.protocol import Gateway
from router.core.limits.budgets import ByteBudget
from router.core.limits.key_limits import KeyLimits, KeyRows
from router.core.membership.entry import Entry
from router.core.plans.encode import ENCODE_SECONDS
from router.core.routing.engine_timeouts import EngineTimeouts
from router.core.values import DECODE
from router.core.wire.headers import CORS
from router.net.kv_ready import KVReadySocket
from router.net.limits.admission_gate import AdmissionGate, AdmissionLimits, DecodeEngines
from router.net.limits.read_limiter import ReadLimiter
from router.net.limits.start_limiter import StartLimiter
from router.net.limits.timers import IdleTimeoutSweep
from router.net.processes.body_parser import BodyParser
from router.net.processes.shared_state import WorkerContext
from router.net.request.network import Limits, Network, Timeouts
from router.net.watched_files import KeyFile, TLSFiles
from router.settings import Settings, SettingsError
from router.telemetry.metrics import Held, Metrics
from router.telemetry.tracing import Tracing
from router.web.asgi_call import App
from router.web.engine_side import EngineConnections
from router.web.epp.server import EndpointPicker
from router.web.request_handler import RequestHandler
from router.web.routing import Routing, image_rules_of

__all__ = ["ClientSide", "key_file_of", "limits_of", "listener_tls", "tracing_of"]

STARTS_PER_TURN: Final = 32
"""Requests that start at once between two refills (10 ms); beyond that, the same number in each
turn of the event loop. Each takes 35 us, or 60 us with a new connection to an engine."""

LARGEST_ANSWER: Final = 96 << 20
"""Bytes of the answer budget that each worker has at least: a unary answer with logprobs for
100,000 tokens."""


class ClientSide:
    """`handler` takes the requests of clients. `network` is what inference requests share: they
    use the `connections` to engines, and `observe` receives their events. `operations` serves the
    others. Limits are counted in `context`, which several processes share.
    """

    def __init__(
        self,
        settings: Settings,
        routing: Routing,
        connections: EngineConnections,
        operations: App,
        read_limiter: ReadLimiter,
        metrics: Metrics,
        observe: Callable[[Event], None],
        context: WorkerContext | None = None,
    ) -> None:
        self._routing = routing
        self._metrics = metrics
        self._context = context
        self.tls = listener_tls(
            "--tls-cert-file",
            settings.tls_cert_file,
            settings.tls_key_file,
            settings.tls_client_ca_file,
        )
        """The TLS of the listener; None: no TLS."""
        self.start_limiter = StartLimiter(STARTS_PER_TURN, connections.read_rotation.on_starts_late)
        self.idle_sweep = IdleTimeoutSweep()
        self.kv_ready = _kv_ready_socket(settings)
        self.body_parser = BodyParser(
            None,
            wants_ids=routing.fleet.cache_events is not None,
            wants_media=lambda: routing.scheduler.encodes,
        )
        self._gateway = None if settings.direct_mode == "off" else Gateway()
        self._tracing = tracing_of(settings)
        self.network = Network(
            plans=routing.plans.plan,
            pools=connections.pools.by_endpoint,
            observe=observe,
            idle_sweep=self.idle_sweep,
            start_limiter=self.start_limiter,
            move_queue=MoveQueue(routing.fleet.pools[DECODE]),
            read_limiter=read_limiter,
            body_parser=self.body_parser,
            engine_api_key=settings.engine_api_key,
            kv_ready=self.kv_ready,
            tracing=self._tracing,
            gateway=self._gateway,
            byte_budget=ByteBudget(0),
            answer_budget=ByteBudget(0),
        )
        self.handler = RequestHandler(self.network, operations, settings.path_prefix)
        self.picker: EndpointPicker | None = None
        """The endpoint picker for Envoy; None if it is off."""
        if settings.epp_port is not None:
            self.picker = EndpointPicker(self.network, settings.host, settings.epp_port)
        self.configure(settings, self.read(settings))
        metrics.watch_held(self._held)

    def read(self, settings: Settings) -> KeyFile | None:
        """Read the API keys. Raises OSError or ValueError."""
        rows = None if self._context is None else self._context.key_rows
        current, show = self.network.api_keys, self._metrics.show_key_limits
        return key_file_of(settings.api_key_file, current, rows, show)

    def configure(self, settings: Settings, keys: KeyFile | None) -> None:
        """Apply the settings, and the keys that were read for them."""
        network = self.network
        network.api_keys = keys
        network.scheduler = self._routing.scheduler
        network.model_names = self._routing.names if settings.model_aliases else None
        network.limits = limits_of(settings)
        network.timeouts = _timeouts_of(settings)
        self.idle_sweep.configure(network.timeouts.shortest)
        network.sample = settings.decision_log_sample
        network.names_engines = settings.engine_header == "on"
        network.has_deadlines = settings.request_deadlines == "on"
        header = settings.session_header
        network.session_header = None if header == "none" else header.encode()
        share = settings.max_buffered_bytes // settings.workers
        network.byte_budget.limit = max(settings.max_body_bytes, share)
        network.answer_budget.limit = max(LARGEST_ANSWER, share)
        self.handler.configure(network.limits, _cors_of(settings))
        self.body_parser.prefill_from = _prefill_from(settings)
        if (rules := image_rules_of(settings)) != network.image_rules:
            network.image_rules, self.body_parser.image_rules = rules, rules or {}
            self._routing.fleet.token_ratios.forget_media()
        if self._gateway is not None:
            self._gateway.configure([ip_network(each) for each in settings.trusted_gateways])
        self._configure_admission(_admission_limits(settings))

    def _configure_admission(self, limits: AdmissionLimits) -> None:
        """Apply the admission limits. A gate stays if there is one, because the requests that it
        has admitted have to release their places."""
        gate = self.network.admission
        if gate is not None:
            gate.configure(limits)
        elif limits.in_flight is not None or limits.in_flight_per_engine is not None:
            total = share = None
            if self._context is not None:
                column = self._context.column
                total, share = column.admitted, column.queue_share
            engines = DecodeEngines(self._routing.fleet)
            self.network.admission = AdmissionGate(
                limits,
                engines,
                self.start_limiter,
                self._metrics,
                total,
                share,
            )

    def follow(self, entries: Sequence[Entry]) -> None:
        """Set the engines."""
        self._routing.plans.follow(entries)
        if self._gateway is not None:
            self._gateway.follow(entry.endpoint for entry in entries)

    def refill(self) -> None:
        """Refill the start limiter and the read limiter."""
        self.start_limiter.refill()
        self.network.read_limiter.refill()

    def start(self) -> None:
        """Start to listen for LMCache's notifications."""
        if self.kv_ready is not None:
            self.kv_ready.start()

    async def close(self) -> None:
        """Stop everything. Traces that have not been exported are exported first."""
        await self.body_parser.close()
        if self.network.admission is not None:
            self.network.admission.close()
        self.idle_sweep.close()
        if self.kv_ready is not None:
            self.kv_ready.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def _held(self) -> Held:
        network = self.network
        requests = 0 if network.admission is None else network.admission.admission.in_flight
        return Held(requests, network.byte_budget.held, network.answer_budget.held)


def listener_tls(
    name: str, certificate: Path | None, key: Path | None, client_ca: Path | None
) -> TLSFiles | None:
    """The TLS of a listener; None without TLS. `name` is its name in the log."""
    if certificate is None or key is None:
        return None
    return TLSFiles(
        name, lambda: server_tls(certificate, key, client_ca), certificate, key, client_ca
    )


def key_file_of(
    path: Path | None,
    current: KeyFile | None,
    rows: KeyRows | None = None,
    on_limits: Callable[[Mapping[str, KeyLimits]], None] = lambda _: None,
) -> KeyFile | None:
    """The keys of a file, or `current` if it has the same path. Raises OSError or ValueError."""
    if path is None or (current is not None and current.path == path):
        return None if path is None else current
    return KeyFile(path, rows, on_limits)


def limits_of(settings: Settings) -> Limits:
    """The limits for clients, in bytes and seconds."""
    return Limits(
        body_bytes=settings.max_body_bytes,
        body_seconds=settings.body_timeout,
        stall_seconds=settings.client_stall_timeout,
        keep_alive_seconds=settings.keep_alive_timeout,
    )


def _timeouts_of(settings: Settings) -> Timeouts:
    """The time-outs of requests."""
    return Timeouts(
        prefill=EngineTimeouts(settings.prefill_timeout),
        encode=EngineTimeouts(min(ENCODE_SECONDS, settings.prefill_timeout)),
        stream=EngineTimeouts(settings.first_byte_timeout, settings.stream_idle_timeout),
        kv_ready=settings.lmcache_notify_timeout,
        sse_keep_alive=settings.sse_keep_alive,
    )


def _cors_of(settings: Settings) -> CORS | None:
    """Which web pages may call the API; None if none may."""
    return CORS(settings.cors_allow_origin) if settings.cors_allow_origin else None


def _admission_limits(settings: Settings) -> AdmissionLimits:
    """The admission limits, over all worker processes."""
    return AdmissionLimits(
        in_flight=settings.max_in_flight,
        in_flight_per_engine=settings.max_in_flight_per_engine,
        queue_size=settings.queue_size,
        queue_seconds=settings.queue_timeout,
        tenant_header=settings.tenant_header.encode(),
        priority_from=settings.queue_priority,
    )


def _prefill_from(settings: Settings) -> int | None:
    """Tokens from which on a large body may be prefilled remotely; None if nothing is."""
    if not settings.prefill and not settings.discovers and settings.admin_port is None:
        return None
    if settings.routing_threshold == "auto" or settings.direct_mode == "on":  # any request may be
        return 0
    return settings.routing_threshold


def _kv_ready_socket(settings: Settings) -> KVReadySocket | None:
    if settings.lmcache_notify_bind is None:
        return None
    try:
        return KVReadySocket(settings.lmcache_notify_bind)
    except ImportError as error:
        raise SettingsError(f"--lmcache-notify-bind: {error}") from None


def tracing_of(settings: Settings) -> Tracing | None:
    """Creates the traces' exporter; None without traces. Raises SettingsError if the extra is not
    installed, or if a variable of OpenTelemetry's own is wrong."""
    if settings.otlp_traces_endpoint is None:
        return None
    try:
        return Tracing(settings.otlp_traces_endpoint, settings.trace_sample)
    except (ImportError, ValueError) as error:
        raise SettingsError(f"--otlp-traces-endpoint: {error}") from None
