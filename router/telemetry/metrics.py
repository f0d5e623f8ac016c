"""Prometheus metrics: counters and histograms from events, gauges read from state at scrape time.

Labels are bounded: endpoints and routes come from the configuration, reasons and kinds from the
code, never from a client.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
    values,
)
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from router import __version__
from router.core.events import Event, FellBack, LegAnswered, LegFailed, RequestEnded
from router.core.fleet import Fleet
from router.core.health import State
from router.core.member import Exclusion
from router.core.values import Endpoint, FailureKind, Role
from router.telemetry.processes import Processes

__all__ = ["Connections", "Metrics", "WorkerGroup"]

Connections = Callable[[], Iterable[tuple[Endpoint, int, int]]]
"""Endpoint, open connections, idle ones among them."""

# TTFT: 10 ms is a warm small model on loopback, 120 s a hopeless queue.
TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TOKEN_BUCKETS = (64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
# Streams should never wait 20 ms; timers alone are up to 1 ms late.
LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1)


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The workers whose metrics are exported together: their files and process ids."""

    folder: Path
    number: int
    """This worker's number, from 0 on. A restarted one continues its predecessor's counts."""
    pids: Callable[[], Iterable[int]]


@dataclass(frozen=True, slots=True)
class _Known:
    """The metric children of requests of one kind; looking them up costs more than counting."""

    mode: str
    requests: Counter
    duration: Histogram
    decisions: Counter | None


class Metrics:
    """The router's metrics, in a registry of their own; with `group`, of all workers together."""

    def __init__(
        self, fleet: Fleet, connections: Connections, group: WorkerGroup | None = None
    ) -> None:
        # A _created series for each counter would double the text.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        self._counts = registry
        self._state = CollectorRegistry()
        self._state.register(_FleetCollector(fleet, connections))
        self.are_merged = group is not None
        """Whether counts of all workers are read from files, which is slow."""
        if group is not None:
            _use_files_of(group.folder, group.number)
            self._counts = CollectorRegistry()
            MultiProcessCollector(self._counts, str(group.folder))  # type: ignore[no-untyped-call]
        self._requests = Counter(
            "pd_router_requests",
            "Requests by route, mode, status and outcome.",
            ["route", "mode", "status", "outcome"],
            registry=registry,
        )
        self._decisions = Counter(
            "pd_router_decisions",
            "Direct or remote prefill, and why.",
            ["mode", "reason"],
            registry=registry,
        )
        self._fallbacks = Counter(
            "pd_router_fallbacks",
            "Legs that did not go as planned, and why.",
            ["leg", "reason"],
            registry=registry,
        )
        self._answers = Counter(
            "pd_router_engine_answers",
            "Answers that engines began, by status.",
            ["role", "endpoint", "status"],
            registry=registry,
        )
        self._failures = Counter(
            "pd_router_engine_failures",
            "Legs that an engine did not answer or broke off.",
            ["role", "endpoint", "kind"],
            registry=registry,
        )
        self._probes = Counter(
            "pd_router_speed_probes",
            "The router's own tiny generations on engines that get no users' requests.",
            ["role", "endpoint", "outcome"],
            registry=registry,
        )
        self._chunks = Counter(
            "pd_router_relayed_chunks", "Reads passed on to clients.", registry=registry
        )
        self._bytes = Counter(
            "pd_router_relayed_bytes", "Body bytes sent to clients.", registry=registry
        )
        self._ttft = Histogram(
            "pd_router_time_to_first_byte_seconds",
            "From a request's arrival to the first byte of its answer's body, errors left out. "
            "A unary answer (stream false) has none before all its tokens are made.",
            ["mode", "stream"],
            buckets=TTFT_BUCKETS,
            registry=registry,
        )
        self._duration = Histogram(
            "pd_router_request_duration_seconds",
            "From the request's arrival to the end of its answer.",
            ["mode"],
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self._prefill = Histogram(
            "pd_router_prefill_duration_seconds",
            "Remote prefills, from the request to the whole reply.",
            buckets=TTFT_BUCKETS,
            registry=registry,
        )
        self._tokens = Histogram(
            "pd_router_estimated_input_tokens",
            "Estimated input tokens of requests.",
            ["mode"],
            buckets=TOKEN_BUCKETS,
            registry=registry,
        )
        self._lag = Histogram(
            "pd_router_event_loop_lag_seconds",
            "How late the event loop was, looked at a hundred times a second: streams stood still.",
            buckets=LAG_BUCKETS,
            registry=registry,
        )
        self._worst_lag = Gauge(
            "pd_router_event_loop_lag_max_seconds",
            "The most it has ever been late.",
            registry=registry,
            multiprocess_mode="max",
        )
        self._worst = 0.0
        # `labels` builds and locks its way to a child each time; there are few children.
        self._fallbacks_by = cache(self._fallbacks.labels)
        self._answers_by = cache(self._answers.labels)
        self._failures_by = cache(self._failures.labels)
        self._ttft_by = cache(self._ttft.labels)
        self._tokens_by = cache(self._tokens.labels)
        self._known: dict[tuple[object, ...], _Known] = {}
        if group is None:
            ProcessCollector(namespace="pd_router", registry=registry)
        else:
            self._counts.register(Processes(group.pids))
        # A counter that first appears with 1 has not increased, so no alert on its rate fires.
        for member in fleet:
            for kind in FailureKind:
                self._failures.labels(member.endpoint.role, member.endpoint.url, kind)

    def probed(self, endpoint: Endpoint, outcome: str) -> None:
        """Count a speed probe."""
        self._probes.labels(endpoint.role, endpoint.url, outcome).inc()

    def observe_loop_lag(self, seconds: float) -> None:
        """Count an event loop lag."""
        self._lag.observe(seconds)
        if seconds > self._worst:
            self._worst = seconds
            self._worst_lag.set(seconds)

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return self.counts() + self.state()

    def counts(self) -> bytes:
        """Counters and histograms; thread-safe where they are merged."""
        return generate_latest(self._counts)

    def state(self) -> bytes:
        """Gauges of the fleet; call it in the event loop's thread."""
        return generate_latest(self._state)

    def observe(self, event: Event) -> None:
        """Count an event."""
        match event:
            case LegAnswered(endpoint, status):
                self._answers_by(endpoint.role, endpoint.url, status).inc()
            case LegFailed(endpoint, kind):
                self._failures_by(endpoint.role, endpoint.url, kind).inc()
            case FellBack(leg, reason):
                self._fallbacks_by(leg, reason).inc()
            case RequestEnded():
                self._ended(event)

    def _ended(self, record: RequestEnded) -> None:
        kind = (record.route, record.mode, record.status, record.outcome, record.reason)
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = self._of_kind(record)
        known.requests.inc()
        known.duration.observe(record.ended - record.started)
        if known.decisions is not None:
            known.decisions.inc()
            self._tokens_by(known.mode).observe(record.tokens)
        # Errors come fast, and would make answers look fast.
        if record.first_byte is not None and record.status < 400:
            stream = "true" if record.stream else "false"
            self._ttft_by(known.mode, stream).observe(record.first_byte - record.started)
        if record.prefill_seconds is not None:
            self._prefill.observe(record.prefill_seconds)
        if record.chunks:
            self._chunks.inc(record.chunks)
            self._bytes.inc(record.bytes_out)

    def _of_kind(self, record: RequestEnded) -> "_Known":
        mode = record.mode or "none"
        status = record.status or "none"
        return _Known(
            mode=mode,
            requests=self._requests.labels(record.route, mode, status, record.outcome),
            duration=self._duration.labels(mode),
            decisions=None if record.mode is None else self._decisions.labels(mode, record.reason),
        )


def _use_files_of(folder: Path, number: int) -> None:
    """Keep values in files in `folder`, one set per worker: prometheus-client's multiprocess mode,
    which it otherwise reads from the environment when it is imported."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)  # noqa: TID251 - its only way in
    values.ValueClass = values.MultiProcessValue(lambda: number)  # type: ignore[no-untyped-call]


class _FleetCollector(Collector):
    """Gauges that are read from the fleet at scrape time."""

    def __init__(self, fleet: Fleet, connections: Connections) -> None:
        self._fleet = fleet
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        """The current gauges."""
        info = GaugeMetricFamily("pd_router_info", "The router's version.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        yield from self._endpoint_gauges()
        yield from self._speed_gauges()
        yield self._states()
        yield self._connection_gauges()

    def _endpoint_gauges(self) -> Iterator[Metric]:
        in_flight = _gauge("endpoint_in_flight_requests", "This router's requests in flight.")
        tokens = _gauge("endpoint_in_flight_tokens", "Their estimated input tokens.")
        others = _gauge(
            "endpoint_other_requests", "Requests of others there, by the engine's own gauges."
        )
        kv = _gauge("endpoint_kv_cache_usage_ratio", "KV cache in use, 0 to 1.")
        ledger = self._fleet.ledger
        for member in self._fleet:
            names = _names(member.endpoint)
            in_flight.add_metric(names, ledger.in_flight(member.endpoint))
            tokens.add_metric(names, ledger.tokens(member.endpoint))
            if not member.health.is_usable:
                continue  # engines that are down are not scraped; their last gauges are stale
            if member.other_requests is not None:
                others.add_metric(names, member.other_requests)
            if member.gauges is not None and member.gauges.kv_usage is not None:
                kv.add_metric(names, member.gauges.kv_usage)
        yield from (in_flight, tokens, others, kv)

    def _speed_gauges(self) -> Iterator[Metric]:
        speed = _gauge(
            "endpoint_speed",
            "Tokens per second of one stream (prefill: prompt tokens), as relayed lately.",
        )
        relative = _gauge("endpoint_relative_speed", "Its speed over the pool's median.")
        delay = _gauge(
            "endpoint_expected_delay_seconds",
            "Expected seconds of a request of mean length there, now.",
        )
        exclusion = _gauge(
            "endpoint_excluded",
            "1 while it is excluded for this reason: it gets no new requests, or few.",
            "reason",
        )
        for member in self._fleet:
            names = _names(member.endpoint)
            is_prefill = member.endpoint.role is Role.PREFILL
            gap = member.speed.per_prompt_token if is_prefill else member.speed.per_token
            if gap:
                speed.add_metric(names, 1 / gap)
                relative.add_metric(names, 1 / member.view.slowdown)
            if (seconds := self._fleet.expected_delay(member)) is not None:
                delay.add_metric(names, seconds)
            for reason in Exclusion:
                exclusion.add_metric([*names, reason], float(member.exclusion is reason))
        yield from (speed, relative, delay, exclusion)

    def _states(self) -> Metric:
        gauge = _gauge("endpoint_state", "1 for the state that it is in.", "state")
        for member in self._fleet:
            for state in State:
                is_in = float(member.health.state is state)
                gauge.add_metric([*_names(member.endpoint), state], is_in)
        return gauge

    def _connection_gauges(self) -> Metric:
        gauge = _gauge("engine_connections", "Connections to engines.", "state")
        for endpoint, is_open, idle in self._connections():
            gauge.add_metric([*_names(endpoint), "idle"], idle)
            gauge.add_metric([*_names(endpoint), "active"], max(0, is_open - idle))
        return gauge


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"pd_router_{name}", text, labels=["role", "endpoint", *labels])


def _names(endpoint: Endpoint) -> list[str]:
    return [endpoint.role, endpoint.url]
