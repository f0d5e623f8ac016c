"""Prometheus metrics: counters and histograms from events, gauges read from state at scrape time.

Labels are bounded: endpoints and routes come from the configuration, reasons and kinds from the
code, never from a client.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
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
from prometheus_client.multiprocess import MultiProcessCollector

from router.core.events import Event, FellBack, LegAnswered, LegFailed, RequestEnded
from router.core.fleet import Fleet
from router.core.values import Endpoint, FailureKind
from router.telemetry.batched import BatchedCounter, BatchedHistogram
from router.telemetry.fleet_gauges import Connections, FleetCollector
from router.telemetry.processes import Processes

__all__ = ["Metrics", "WorkerGroup"]

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


class _Families:
    """The metrics that are counted, all in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.requests = counter(
            "pd_router_requests",
            "Requests by route, mode, status and outcome.",
            ["route", "mode", "status", "outcome"],
        )
        self.decisions = counter(
            "pd_router_decisions", "Direct or remote prefill, and why.", ["mode", "reason"]
        )
        self.fallbacks = counter(
            "pd_router_fallbacks", "Legs that did not go as planned, and why.", ["leg", "reason"]
        )
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
        self.chunks = counter("pd_router_relayed_chunks", "Reads passed on to clients.")
        self.bytes = counter("pd_router_relayed_bytes", "Body bytes sent to clients.")
        self.ttft = histogram(
            "pd_router_time_to_first_byte_seconds",
            "From a request's arrival to the first byte of its answer's body, errors left out. "
            "A unary answer (stream false) has none before all its tokens are made.",
            ["mode", "stream"],
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
        self.tokens = histogram(
            "pd_router_estimated_input_tokens",
            "Estimated input tokens of requests.",
            ["mode"],
            buckets=TOKEN_BUCKETS,
        )
        self.lag = histogram(
            "pd_router_event_loop_lag_seconds",
            "How late the event loop was, looked at a hundred times a second: streams stood still.",
            buckets=LAG_BUCKETS,
        )
        self.worst_lag = Gauge(
            "pd_router_event_loop_lag_max_seconds",
            "The most it has ever been late.",
            registry=registry,
            multiprocess_mode="max",
        )
        self.accept_delay = histogram(
            "pd_router_accept_delay_seconds",
            "From a client's last bytes (or its connect) to the moment when its new connection is "
            "accepted: what clients wait before the router sees them.",
            buckets=LAG_BUCKETS,
        )


@dataclass(frozen=True, slots=True)
class _Kind:
    """Where requests of one kind are counted: looking that up costs more than counting."""

    requests: BatchedCounter
    duration: BatchedHistogram
    decisions: BatchedCounter | None
    """None for what was refused before a decision, like `tokens`."""
    tokens: BatchedHistogram | None
    ttft: BatchedHistogram | None
    """None for errors: a refusal comes fast, and among the answers it would make them look so."""


class Metrics:
    """The router's metrics in a registry of their own, those of all its processes together.

    Counts are flushed by `flush`, and before an exposition.
    """

    def __init__(
        self, fleet: Fleet, connections: Connections, group: WorkerGroup | None = None
    ) -> None:
        # A _created series for each counter would double the text.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        self._counts = registry
        self._state = CollectorRegistry()
        self._state.register(FleetCollector(fleet, connections))
        self.are_merged = group is not None
        """Whether counts of all workers are read from files, which is slow."""
        if group is not None:
            _use_files_of(group.folder, group.number)
            self._counts = CollectorRegistry()
            MultiProcessCollector(self._counts, str(group.folder))  # type: ignore[no-untyped-call]
        self._families = families = _Families(registry)
        self._batched: dict[tuple[object, ...], BatchedCounter | BatchedHistogram] = {}
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._answers: dict[tuple[Endpoint, int], BatchedCounter] = {}
        self._prefill = self._histogram(families.prefill)
        self._chunks = self._counter(families.chunks)
        self._bytes = self._counter(families.bytes)
        self._worst_lag = 0.0
        if group is None:
            ProcessCollector(namespace="pd_router", registry=registry)
        else:
            self._counts.register(Processes(group.pids))
        # A counter that first appears with 1 has not increased, so no alert on its rate fires.
        for member in fleet:
            for kind in FailureKind:
                families.failures.labels(member.endpoint.role, member.endpoint.url, kind)

    def probed(self, endpoint: Endpoint, outcome: str) -> None:
        """Count a generation of the router's own."""
        self._families.probes.labels(endpoint.role, endpoint.url, outcome).inc()

    def accepted(self, seconds: float) -> None:
        """Count how long a new connection waited."""
        self._families.accept_delay.observe(seconds)

    def observe_loop_lag(self, seconds: float) -> None:
        """Count an event loop lag: at once, for a process without requests flushes nothing."""
        self._families.lag.observe(seconds)
        if seconds > self._worst_lag:
            self._worst_lag = seconds
            self._families.worst_lag.set(seconds)

    def flush(self) -> None:
        """Let what was counted be seen, by other processes too."""
        for each in self._batched.values():
            each.flush()

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        state = self.state()
        return self.counts() + state

    def counts(self) -> bytes:
        """The part that was counted and flushed; where counts are merged any thread may ask."""
        return generate_latest(self._counts)

    def state(self) -> bytes:
        """The part that is read from the fleet, in the thread that changes it."""
        self.flush()
        return generate_latest(self._state)

    def observe(self, events: Iterable[Event]) -> None:
        """Count events."""
        for event in events:
            if isinstance(event, RequestEnded):
                self._ended(event)
            elif isinstance(event, LegAnswered):
                self._answered(event.endpoint, event.status)
            elif isinstance(event, LegFailed):
                endpoint = event.endpoint
                self._families.failures.labels(endpoint.role, endpoint.url, event.kind).inc()
            elif isinstance(event, FellBack):
                self._families.fallbacks.labels(event.leg, event.reason).inc()

    def _answered(self, endpoint: Endpoint, status: int) -> None:
        counter = self._answers.get((endpoint, status))
        if counter is None:
            labels = endpoint.role, endpoint.url, status
            counter = self._counter(self._families.answers, *labels)
            self._answers[endpoint, status] = counter
        counter.value += 1

    def _ended(self, record: RequestEnded) -> None:
        kind = self._kind_of(record)
        kind.requests.value += 1
        kind.duration.observe(record.ended - record.started)
        if kind.decisions is not None:
            kind.decisions.value += 1
        if kind.tokens is not None:
            kind.tokens.observe(record.tokens)
        if kind.ttft is not None and record.first_byte is not None:
            kind.ttft.observe(record.first_byte - record.started)
        if record.prefill_seconds is not None:
            self._prefill.observe(record.prefill_seconds)
        self._chunks.value += record.chunks
        self._bytes.value += record.bytes_out

    def _kind_of(self, record: RequestEnded) -> _Kind:
        mode, reason, stream = record.mode, record.reason, record.stream
        key = record.route, mode, record.status, record.outcome, reason, stream
        kind = self._kinds.get(key)
        if kind is None:
            families, name = self._families, mode or "none"
            status, of_stream = record.status or "none", "true" if stream else "false"
            kind = self._kinds[key] = _Kind(
                requests=self._counter(
                    families.requests, record.route, name, status, record.outcome
                ),
                duration=self._histogram(families.duration, name),
                decisions=self._counter(families.decisions, name, reason) if mode else None,
                tokens=self._histogram(families.tokens, name) if mode else None,
                ttft=(
                    self._histogram(families.ttft, name, of_stream)
                    if 0 < record.status < 400
                    else None
                ),
            )
        return kind

    def _counter(self, family: Counter, *labels: object) -> BatchedCounter:
        key = family, *labels
        found = self._batched.get(key)
        if not isinstance(found, BatchedCounter):
            found = BatchedCounter(family.labels(*labels) if labels else family)
            self._batched[key] = found
        return found

    def _histogram(self, family: Histogram, *labels: object) -> BatchedHistogram:
        key = family, *labels
        found = self._batched.get(key)
        if not isinstance(found, BatchedHistogram):
            found = BatchedHistogram(family.labels(*labels) if labels else family)
            self._batched[key] = found
        return found


def _use_files_of(folder: Path, number: int) -> None:
    """Keep values in files in `folder`, one set per worker: prometheus-client's multiprocess mode,
    which it otherwise reads from the environment when it is imported."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)  # noqa: TID251 - its only way in
    values.ValueClass = values.MultiProcessValue(lambda: number)  # type: ignore[no-untyped-call]
