"""Prometheus metrics: counters and histograms from events, and gauges read from state at scrape
time.

The number of label values is bounded: endpoints are those of the fleet, models are those that
engines list, routes and reasons come from the code, and no label comes from a client.
"""

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, values
from prometheus_client.metrics_core import Metric

from router.core.events import (
    Event,
    FellBack,
    KeyRefused,
    LegAnswered,
    LegFailed,
    MessageIgnored,
    RequestEnded,
    SpeedProbed,
)
from router.core.fleet.fleet import Fleet
from router.core.limits.key_limits import KeyLimits
from router.core.values import Role
from router.telemetry.batched import BatchedSeries
from router.telemetry.engine_counts import EngineCounts
from router.telemetry.families import LATE_SECONDS, Families
from router.telemetry.file_values import ValueFiles
from router.telemetry.fleet_gauges import Connections, FleetCollector
from router.telemetry.in_pieces import text_in_pieces
from router.telemetry.kv_counts import KVCounts
from router.telemetry.logs import dropped_lines
from router.telemetry.processes import Processes
from router.telemetry.request_counts import RequestCounts
from router.telemetry.router_info import NEVER_RELOADED, NO_CONFIG, RouterInfo
from router.telemetry.text_format import PLAIN, TextFormat
from router.telemetry.totals import NAMES, Totals, totals_of
from router.telemetry.worker_counts import WorkerCounts

__all__ = ["Held", "Metrics", "WorkerGroup"]


COMPACT_AFTER = 64
"""Engines that have left until this worker's files are compacted; each takes about 10 kB there."""


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The workers whose metrics are exported together: their files and process ids."""

    folder: Path
    number: int
    """This worker's number, from 0 on. A restarted worker continues its predecessor's counts."""
    pids: Callable[[], Iterable[int]]
    restarts: Callable[[], int]
    ended_cpu: Callable[[], float] = lambda: 0.0
    """Seconds of CPU time used by workers that have ended."""


class Held(NamedTuple):
    """Resources that a process holds for its clients."""

    requests: int
    """Admitted requests, if their number is limited."""
    body_bytes: int
    answer_bytes: int


NOTHING: Final = Held(0, 0, 0)


class Metrics:
    """The router's metrics in a registry of their own, for all of its processes.

    Counts are flushed by `flush` and before each exposition. `has_prefill`: whether the router is
    meant to have prefill engines, also while there are none.
    """

    def __init__(
        self,
        fleet: Fleet,
        connections: Connections,
        group: WorkerGroup | None = None,
        config: Mapping[str, str] = NO_CONFIG,
        threshold: Callable[[], float] = lambda: 0.0,
        reloads: Sequence[int] = NEVER_RELOADED,
        has_prefill: Callable[[], bool] = lambda: False,
    ) -> None:
        # A _created series for each counter would double the text.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        self._counts = registry
        self._state = CollectorRegistry()
        restarts = (lambda: 0) if group is None else group.restarts
        self.info = RouterInfo(config, restarts, reloads)
        self._state.register(self.info)
        self._state.register(FleetCollector(fleet, connections, threshold, has_prefill))
        self.are_merged = group is not None
        """Whether the counts of all workers are read from files."""
        self._fleet = fleet
        self._files: ValueFiles | None = None
        self._workers: WorkerCounts | None = None
        self._dropped = 0
        """Engines that were removed but are still in this worker's file."""
        if group is not None:
            self._files = ValueFiles(group.folder, group.number)
            values.ValueClass = self._files  # the only way to set it
            self._workers = WorkerCounts(group.folder, self._files.exemplars)
            self._processes = Processes(group.pids, group.ended_cpu)
            self._counts = CollectorRegistry()
            self._counts.register(self._workers)
            self._counts.register(self._processes)
        self._families = families = Families(registry)
        self._series = series = BatchedSeries()
        self._engines = EngineCounts(families, series)
        self._requests = RequestCounts(families, series, self._engines, fleet.known_models)
        self._accept_delay = series.histogram(families.accept_delay)
        self._late = families.late.labels(0 if group is None else group.number)
        # A restarted worker goes on with what its predecessor has seen.
        [[worst_lag]] = [each.samples for each in families.worst_lag.collect()]
        self._worst_lag = worst_lag.value
        self._dropped_lines = 0
        self._read_held: Callable[[], Held] = lambda: NOTHING
        self._held: Held | None = None
        """The exported values."""
        self._show_held()
        if group is None:
            ProcessCollector(namespace="pd_router", registry=registry)
        self._kv_counts = KVCounts(fleet, families)
        families.begin_queue_at_zero()
        self.follow()

    def follow(self) -> None:
        """Adapt the series to a change of the fleet."""
        fleet = self._fleet
        current = [member.endpoint for member in fleet]
        for endpoint in self._engines.follow(current):
            self._kv_counts.forget(endpoint)
            self._dropped += 1
        for role in Role:
            if fleet.pool(role):
                self._families.begin_fallbacks_at_zero(role)
        if self._workers is not None:
            self._workers.endpoints = frozenset((e.role.value, e.url) for e in current)
        if self._dropped >= COMPACT_AFTER:
            self._compact()

    def _compact(self) -> None:
        """Remove engines that have left from the files; 0.2 s with a thousand engines."""
        self._dropped = 0
        if self._files is not None:
            shown = {(endpoint.role.value, endpoint.url) for endpoint in self._engines.shown}
            self._files.compact(partial(_is_shown, shown))

    def begin_discovery(self, servers: Iterable[str]) -> None:
        """Export when these discovery sources last answered: never, or before a restart."""
        for server in servers:
            self._families.discovery_answered.labels(server)

    def discovery_answered(self, server: str) -> None:
        """Note that a discovery source has just answered."""
        self._families.discovery_answered.labels(server).set_to_current_time()

    def watch_held(self, read: Callable[[], Held]) -> None:
        """Export the resources that this process holds; `read` is called a hundred times a
        second."""
        self._read_held = read

    def _show_held(self) -> None:
        held = self._read_held()
        if held == self._held:
            return
        self._held = held
        self._families.admitted.set(held.requests)
        self._families.buffered.labels("bodies").set(held.body_bytes)
        self._families.buffered.labels("answers").set(held.answer_bytes)

    def show_key_limits(self, limits: Mapping[str, KeyLimits]) -> None:
        """Export how often each of these limits was reached, by the name of the API key."""
        for name, of_name in limits.items():
            for limit in of_name.kinds:
                self._families.key_refusals.labels(name, limit)

    def accepted(self, seconds: float) -> None:
        """Count how long a new connection has waited. It is exported with the counts of its
        requests."""
        self._accept_delay.observe(seconds)

    def queue_length(self, waiting: int) -> None:
        """Set the number of queued requests."""
        self._families.queue_length.set(waiting)

    def queue_waited(self, seconds: float) -> None:
        """Count a request that was admitted after a wait."""
        self._families.queue_wait.observe(seconds)

    def queue_rejected(self, reason: str) -> None:
        """Count a queued request that was rejected."""
        self._families.queue_rejections.labels(reason).inc()

    def observe_loop_lag(self, seconds: float, *, behind: float = 0.0) -> None:
        """Count an event loop lag, directly because a process without requests flushes nothing. The
        held resources are exported too, because many waiting requests cause no event.

        `behind`: seconds since the last one, if the loop cannot keep up with the streams; they
        count as late."""
        self._show_held()
        self._families.lag.observe(seconds)
        if behind or seconds > LATE_SECONDS:
            self._late.inc(behind or seconds)
        if seconds > self._worst_lag:
            self._worst_lag = seconds
            self._families.worst_lag.set(seconds)

    def close(self) -> None:
        """Close the files with the counts, if there are any."""
        self.flush()
        if self._files is not None:
            self._files.close()

    def flush(self) -> None:
        """Export the counts so far, also to other processes."""
        self._series.flush()
        self._show_held()
        self._kv_counts.flush()
        dropped = dropped_lines()
        if dropped != self._dropped_lines:
            self._families.dropped_lines.inc(dropped - self._dropped_lines)
            self._dropped_lines = dropped

    def exposition(self) -> bytes:
        """The page for Prometheus."""
        self.flush()
        return b"".join((*self.counts(PLAIN), *self.state(PLAIN)))

    def counts(self, text_format: TextFormat) -> Iterator[bytes]:
        """The counted and flushed part, in pieces of a few milliseconds each."""
        families: Iterable[Metric | None] = self._counts.collect()
        if self._workers is not None:
            families = chain(self._workers.pieces(), self._processes.collect())
        return text_in_pieces(families, text_format)

    def totals(self) -> Totals:
        """The counted and flushed values as numbers. Any thread may call this."""
        if self._workers is not None:
            return totals_of(self._workers.collect(NAMES))
        return totals_of(self._counts.restricted_registry(NAMES).collect())

    def state(self, text_format: TextFormat) -> Iterator[bytes]:
        """The part that is read from the fleet, in pieces. Call it in the thread that changes the
        fleet."""
        return text_in_pieces(self._state.collect(), text_format)

    def observe(self, events: Iterable[Event]) -> None:
        """Count events."""
        for event in events:
            if isinstance(event, RequestEnded):
                self._requests.ended(event)
            elif isinstance(event, LegAnswered):
                self._engines.answered(event)
            elif isinstance(event, LegFailed):
                self._engines.failed(event)
            elif isinstance(event, SpeedProbed):
                self._engines.probed(event)
            elif isinstance(event, FellBack):
                self._families.fallbacks.labels(event.leg, event.reason).inc()
            elif isinstance(event, KeyRefused):
                self._families.key_refusals.labels(event.api_key, event.limit).inc()
            elif isinstance(event, MessageIgnored):
                self._families.ignored_messages.inc()


def _is_shown(shown: Container[tuple[str, str]], key: str) -> bool:
    """Whether a key in a file belongs to no engine, or to one of `shown`."""
    labels = json.loads(key)[2]
    return "endpoint" not in labels or (labels["role"], labels["endpoint"]) in shown
