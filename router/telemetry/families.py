"""The metrics that are counted: names, labels and buckets."""

from collections.abc import Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Gauge

from router.core.retry import FALLBACKS
from router.core.values import Endpoint, FailureKind, Role
from router.telemetry.in_pieces import Counter, Histogram

__all__ = ["LATE_SECONDS", "Families"]

# TTFT: 10 ms is a warm small model on loopback, 120 s a hopeless queue.
TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TOKEN_BUCKETS = (64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
# A decode step takes 5 to 50 ms; readers are comfortable with 0.1 s, and notice 0.5 s.
GAP_BUCKETS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
# Streams should never wait for 20 ms; timers alone may be 1 ms late.
LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1)
LATE_SECONDS = 0.02
"""Lag in seconds from which streams visibly stop; shorter ones are due to timers and ordinary
work."""

QUEUE_REJECTIONS = ("full", "pushed_out", "timeout")
PROBE_OUTCOMES = ("ok", "failed", "timeout")


class Families:
    """All counted metrics, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counter = partial(Counter, registry=registry)
        self._histogram = partial(Histogram, registry=registry)
        self._add_requests()
        self._add_engines()
        self._add_caches()
        self._add_access(registry)
        self._add_process(registry)

    def _add_requests(self) -> None:
        """Metrics of clients' requests."""
        counter = self._counter
        histogram = self._histogram
        self.requests = counter(
            "pd_router_requests",
            "Requests by route, mode, status and outcome.",
            ["route", "mode", "status", "outcome"],
        )
        # Without labels it exists from the start, so that the first failure is an increase.
        self.failed = counter(
            "pd_router_requests_failed",
            "Requests that failed by no fault of their clients: 5xx, or an answer that broke off.",
        )
        self.decisions = counter(
            "pd_router_decisions", "Direct or remote prefill, and why.", ["mode", "reason"]
        )
        self.fallbacks = counter(
            "pd_router_fallbacks", "Legs that did not go as planned, and why.", ["leg", "reason"]
        )
        self.chunks = counter("pd_router_relayed_chunks", "Reads passed on to clients.")
        self.bytes = counter("pd_router_relayed_bytes", "Body bytes sent to clients.")
        self.ttft = histogram(
            "pd_router_time_to_first_byte_seconds",
            "From a request's arrival to the first byte of its answer's body, errors left out. "
            "A unary answer (stream false) has none before all its tokens are made.",
            ["mode", "stream"],
            buckets=TTFT_BUCKETS,
        )
        # Without labels for the same reason as `failed`: alert rules subtract its buckets from its
        # count.
        self.abandoned = histogram(
            "pd_router_abandoned_wait_seconds",
            "Wait of clients that disconnected before the first byte of their stream.",
            buckets=TTFT_BUCKETS,
        )
        self.duration = histogram(
            "pd_router_request_duration_seconds",
            "From the request's arrival to the end of its answer.",
            ["mode"],
            buckets=DURATION_BUCKETS,
        )
        self.prefill = histogram(
            "pd_router_prefill_duration_seconds",
            "Remote prefills, from the request to the whole reply.",
            buckets=TTFT_BUCKETS,
        )
        self.handover = histogram(
            "pd_router_handover_seconds",
            "From a remote prefill's reply to the first content of its stream: transfer of the KV "
            "cache, the wait and the first step in the decode engine. Without fallbacks.",
            buckets=TTFT_BUCKETS,
        )
        self.of_models = counter(
            "pd_router_model_requests",
            "Requests for models that engines list, by outcome.",
            ["model", "outcome"],
        )
        self.prompt_tokens = counter(
            "pd_router_prompt_tokens",
            "Tokens of prompts of 4 KiB of text and more, as estimated (characters / 4) and as an "
            "engine's usage reports them (measured).",
            ["kind"],
        )
        self.tokens = histogram(
            "pd_router_estimated_input_tokens",
            "Estimated input tokens of requests.",
            ["mode"],
            buckets=TOKEN_BUCKETS,
        )

    def _add_engines(self) -> None:
        """Metrics of each engine."""
        counter = self._counter
        histogram = self._histogram
        self.answers = counter(
            "pd_router_engine_answers",
            "Answers that engines began, by status.",
            ["role", "endpoint", "status"],
        )
        self.failures = counter(
            "pd_router_engine_failures",
            "Legs that an engine did not answer or broke off.",
            ["role", "endpoint", "kind"],
        )
        self.probes = counter(
            "pd_router_speed_probes",
            "The router's own tiny generations on engines that get no users' requests.",
            ["role", "endpoint", "outcome"],
        )
        self.endpoint_ttft = histogram(
            "pd_router_endpoint_time_to_first_token_seconds",
            "From the request that was sent to an engine to the first token: of streams by decode "
            "engine, of remote prefills by prefill engine.",
            ["role", "endpoint"],
            buckets=TTFT_BUCKETS,
        )
        self.gap = histogram(
            "pd_router_inter_token_latency_seconds",
            "Streams by decode engine: the mean time between the reads that brought its tokens.",
            ["role", "endpoint"],
            buckets=GAP_BUCKETS,
        )

    def _add_caches(self) -> None:
        """Metrics of the engines' KV caches."""
        counter = self._counter
        self.kv_events = counter(
            "pd_router_kv_events", "KV-cache events that came from engines.", ["role", "endpoint"]
        )
        self.kv_event_troubles = counter(
            "pd_router_kv_event_troubles",
            "Gaps in an engine's KV-cache events, replays asked for, and losses for good.",
            ["role", "endpoint", "kind"],
        )
        self.cached_tokens = counter(
            "pd_router_cached_prompt_tokens",
            "Prompt tokens that an engine's KV-cache events let expect in its cache, and those "
            "that its answers say were found there.",
            ["role", "endpoint", "kind"],
        )
        self.known_tokens = counter(
            "pd_router_prefix_cache_prompt_tokens",
            "Estimated tokens of the prompts that an engine was given to compute, by what told how "
            "much its prefix cache held of them.",
            ["role", "endpoint", "known_by"],
        )
        self.regret_tokens = counter(
            "pd_router_prefix_cache_regret_tokens",
            "Estimated prompt tokens that an engine was given to compute although another "
            "candidate held them.",
            ["role", "endpoint"],
        )

    def _add_access(self, registry: CollectorRegistry) -> None:
        """Metrics of admission and API keys."""
        counter = self._counter
        histogram = self._histogram
        self.key_requests = counter(
            "pd_router_api_key_requests",
            "Requests by the name of their API key (--api-key-file).",
            ["api_key", "outcome"],
        )
        self.key_tokens = counter(
            "pd_router_api_key_input_tokens", "Their estimated input tokens.", ["api_key"]
        )
        self.key_refusals = counter(
            "pd_router_api_key_refusals",
            "Requests that were refused (429) because their API key had reached a limit: requests, "
            "tokens or streams.",
            ["api_key", "limit"],
        )
        self.queue_length = Gauge(
            "pd_router_queue_length",
            "Requests that wait for their turn (--max-in-flight).",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.admitted = Gauge(
            "pd_router_admitted_requests",
            "Requests that were let in and have not ended; 0 where their number is not limited "
            "(--max-in-flight, --max-in-flight-per-engine).",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.buffered = Gauge(
            "pd_router_buffered_bytes",
            "Bytes of request bodies, and of answers that are read whole or wait for their first "
            "token (--max-buffered-bytes).",
            ["kind"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.queue_wait = histogram(
            "pd_router_queue_wait_seconds",
            "How long requests waited that had to wait and were let in.",
            buckets=TTFT_BUCKETS,
        )
        self.queue_rejections = counter(
            "pd_router_queue_rejections",
            "Requests that were refused: full (429), pushed_out of a full queue (429) or timeout "
            "(503).",
            ["reason"],
        )

        self.ignored_messages = counter(
            "pd_router_envoy_messages_ignored",
            "Messages in which Envoy sent the endpoint picker a part of a request or an answer "
            "again.",
        )

    def _add_process(self, registry: CollectorRegistry) -> None:
        """Metrics of the process itself."""
        histogram = self._histogram
        self.lag = histogram(
            "pd_router_event_loop_lag_seconds",
            "How late the event loop was, looked at a hundred times a second: streams stood still.",
            buckets=LAG_BUCKETS,
        )
        # By worker: in a sum, one that hangs would be hidden by the others.
        self.late = self._counter(
            "pd_router_event_loop_late_seconds",
            "Time for which the event loop was late by more than 20 ms, or could not keep up.",
            ["worker"],
        )
        self.worst_lag = Gauge(
            "pd_router_event_loop_lag_max_seconds",
            "The most it has ever been late.",
            registry=registry,
            multiprocess_mode="max",
        )
        self.discovery_answered = Gauge(
            "pd_router_discovery_last_answer_timestamp_seconds",
            "When a discovery source last said which engines there are, Unix time; 0: never.",
            ["source"],
            registry=registry,
            multiprocess_mode="max",
        )
        self.dropped_lines = self._counter(
            "pd_router_log_lines_dropped",
            "Lines that are missing in the log: it was not read, or could not be written.",
        )
        self.accept_delay = histogram(
            "pd_router_accept_delay_seconds",
            "From a client's last bytes (or its connect) to the moment when its new connection is "
            "accepted: what clients wait before the router sees them.",
            buckets=LAG_BUCKETS,
        )

    # A counter that first appears with 1 has not increased, so no alert on its rate would fire.

    def begin_at_zero(self, endpoint: Endpoint) -> None:
        """Export an engine's counters, starting at 0."""
        role, url = endpoint.role, endpoint.url
        for kind in FailureKind:
            self.failures.labels(role, url, kind)
        for outcome in PROBE_OUTCOMES:
            self.probes.labels(role, url, outcome)

    def begin_fallbacks_at_zero(self, leg: Role) -> None:
        """Export the possible fallbacks of a leg, starting at 0."""
        for reason in FALLBACKS[leg]:
            self.fallbacks.labels(leg, reason)

    def begin_queue_at_zero(self) -> None:
        """Export the queue's series, with 0, before anything waits."""
        self.queue_length.set(0)
        for reason in QUEUE_REJECTIONS:
            self.queue_rejections.labels(reason)

    def forget(self, endpoint: Endpoint, statuses: Iterable[int]) -> None:
        """Remove an engine's counters. `statuses`: those of its answers."""
        role, url = endpoint.role, endpoint.url
        for kind in FailureKind:
            self.failures.remove(role, url, kind)
        for outcome in PROBE_OUTCOMES:
            self.probes.remove(role, url, outcome)
        for status in statuses:
            self.answers.remove(role, url, status)
        self.endpoint_ttft.remove(role, url)
        if role is Role.DECODE:
            self.gap.remove(role, url)
