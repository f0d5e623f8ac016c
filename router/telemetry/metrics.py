"""Prometheus metrics: counters and histograms from events, and gauges read from state at scrape
time.

The number of label values is bounded: endpoints are those of the fleet, models are those that
engines list, routes and reasons come from the code, and no label comes from a client.
"""

import asyncio
import mmap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry

from router.core.count_rows import CountRows
from router.core.events import (
    DeadlineRefused,
    Event,
    FellBack,
    KeyRefused,
    LegAnswered,
    LegFailed,
    MessageIgnored,
    ModelChosen,
    RequestEnded,
    SpeedProbed,
)
from router.core.fleet.fleet import Fleet
from router.core.limits.key_limits import KeyLimits
from router.core.retry import FALLBACK_REASONS
from router.core.shared_table import SharedTable
from router.core.values import Role
from router.telemetry import families
from router.telemetry.access_log import AccessLog
from router.telemetry.event_buffer import EventBuffer
from router.telemetry.event_counts import CacheCounts, EngineCounts, RequestCounts
from router.telemetry.exposition import PLAIN, TextFormat, in_turns, text_in_pieces
from router.telemetry.families import LATE_SECONDS
from router.telemetry.fleet_gauges import Connections, FleetCollector
from router.telemetry.logs import dropped_lines
from router.telemetry.process_metrics import NEVER_RELOADED, NO_CONFIG, Processes, RouterInfo
from router.telemetry.series import Series
from router.telemetry.sums import Totals, WorkerSums, totals_of

__all__ = ["Counts", "Held", "Metrics", "WorkerGroup"]

OWN_BYTES: Final = 64 << 20
"""Bytes for the counts of a single process, as for 5,000 engines. Only pages with counts take
memory."""

QUEUE_REJECTIONS: Final = ("full", "pushed_out", "timeout")

UNLABELLED: Final[Mapping[type[Event], families.Family]] = {
    DeadlineRefused: families.DEADLINE_REFUSALS,
    MessageIgnored: families.IGNORED_MESSAGES,
}
"""Events that are only counted."""


class WorkerGroup(NamedTuple):
    """The workers whose metrics are exported together."""

    number: int
    """This worker's number, from 0 on. A restarted worker continues its predecessor's counts."""
    counts: Sequence[memoryview]
    """The memory for the counts of each worker."""
    table: SharedTable


class Held(NamedTuple):
    """Resources that a process holds for its clients."""

    requests: int
    """Admitted requests, if their number is limited."""
    body_bytes: int
    answer_bytes: int


NOTHING: Final = Held(0, 0, 0)


class Metrics:
    """The router's metrics, for all of its processes.

    Counts are published by `publish` and before each exposition. `has_prefill`: whether the router
    is meant to have prefill engines, also while there are none.
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
        self.is_shared = group is not None
        """Whether other processes export the counts of this one."""
        number, table = 0, None
        if group is None:
            counts: Sequence[memoryview] = [memoryview(mmap.mmap(-1, OWN_BYTES, mmap.MAP_PRIVATE))]
        else:
            number, counts, table = group
        self._fleet = fleet
        self._series = series = Series(CountRows(counts[number]))
        self._sums = WorkerSums(counts, series)
        self._processes = Processes(table)
        self.info = RouterInfo(config, reloads, table)
        self._state = CollectorRegistry()
        self._state.register(self.info)
        self._state.register(FleetCollector(fleet, connections, threshold, has_prefill))
        self._engines = EngineCounts(series)
        self._requests = RequestCounts(series, self._engines, fleet.models.known)
        self._caches = CacheCounts(fleet, series)
        self._accept_delay = series.histogram(families.ACCEPT_DELAY)
        self._lag = series.histogram(families.LAG)
        self._late = series.row(families.LATE, str(number))
        self._worst_lag = series.row(families.WORST_LAG)
        self._dropped = series.row(families.DROPPED_LINES)
        self._dropped_lines = 0
        """Dropped lines that are counted."""
        self._queue_length = series.row(families.QUEUE_LENGTH)
        self._queue_length[0] = 0.0
        self._queue_wait = series.histogram(families.QUEUE_WAIT)
        for reason in QUEUE_REJECTIONS:
            series.row(families.QUEUE_REJECTIONS, reason)
        for family in UNLABELLED.values():
            series.row(family)
        self._read_held: Callable[[], Held] = lambda: NOTHING
        self._held = [
            series.row(families.ADMITTED),
            series.row(families.BUFFERED, "bodies"),
            series.row(families.BUFFERED, "answers"),
        ]
        self._show_held()
        self._add_engines()  # only that: a restarted worker does not know the whole fleet yet

    def follow(self) -> None:
        """Adapt the series to a change of the fleet."""
        for endpoint in self._engines.keep([member.endpoint for member in self._fleet]):
            self._caches.forget(endpoint)
        self._add_engines()

    def _add_engines(self) -> None:
        current = [member.endpoint for member in self._fleet]
        self._engines.add(current)
        for role in Role:
            if self._fleet.pool(role):
                for reason in FALLBACK_REASONS[role]:
                    self._series.row(families.FALLBACKS, role, reason)
        self._sums.engines = frozenset(current)

    def begin_discovery(self, servers: Iterable[str]) -> None:
        """Export when these discovery sources last answered: never, or before a restart."""
        for server in servers:
            self._series.row(families.DISCOVERY_ANSWERED, server)

    def discovery_answered(self, server: str) -> None:
        """Note that a discovery source has just answered."""
        now = time.time()  # noqa: TID251 - the metric is a time of day
        self._series.row(families.DISCOVERY_ANSWERED, server)[0] = now

    def watch_held(self, read: Callable[[], Held]) -> None:
        """Export the resources that this process holds; `read` is called a hundred times a
        second."""
        self._read_held = read

    def _show_held(self) -> None:
        for row, value in zip(self._held, self._read_held(), strict=True):
            row[0] = value

    def show_key_limits(self, limits: Mapping[str, KeyLimits]) -> None:
        """Export how often each of these limits was reached, by the name of the API key."""
        for name, of_name in limits.items():
            for limit in of_name.kinds:
                self._series.row(families.KEY_REFUSALS, name, limit)

    def accepted(self, seconds: float) -> None:
        """Count how long a new connection has waited."""
        self._accept_delay.observe(seconds)

    def queue_length(self, waiting: int) -> None:
        """Set the number of queued requests."""
        self._queue_length[0] = waiting

    def queue_waited(self, seconds: float) -> None:
        """Count a request that was admitted after a wait."""
        self._queue_wait.observe(seconds)

    def queue_rejected(self, reason: str) -> None:
        """Count a queued request that was rejected."""
        self._series.row(families.QUEUE_REJECTIONS, reason)[0] += 1

    def observe_loop_lag(self, seconds: float, *, behind: float = 0.0) -> None:
        """Count an event loop lag. It is published at once, because a process without requests
        publishes nothing else, and so are the held resources: many waiting requests cause no event.

        `behind`: seconds since the last one, if the loop cannot keep up with the streams; they
        count as late."""
        self._show_held()
        self._lag.observe(seconds)
        self._lag.publish()
        if behind or seconds > LATE_SECONDS:
            self._late[0] += behind or seconds
        # A restarted worker continues its predecessor's maximum.
        if seconds > self._worst_lag[0]:
            self._worst_lag[0] = seconds

    def publish(self) -> None:
        """Export the counts so far, also to other processes."""
        self._series.publish()
        self._show_held()
        self._caches.publish()
        dropped = dropped_lines()
        if dropped != self._dropped_lines:
            self._dropped[0] += dropped - self._dropped_lines
            self._dropped_lines = dropped

    def exposition(self) -> bytes:
        """The page for Prometheus."""
        self.publish()
        return b"".join((*self.counts(PLAIN), *self.state(PLAIN)))

    def counts(self, text_format: TextFormat) -> Iterator[bytes]:
        """The published counts of all processes, in pieces of a few milliseconds each."""
        return text_in_pieces(chain(self._sums.metrics(), self._processes.collect()), text_format)

    def state(self, text_format: TextFormat) -> Iterator[bytes]:
        """The part that is read from the fleet, in pieces. Call it in the thread that changes the
        fleet."""
        return text_in_pieces(self._state.collect(), text_format)

    def totals(self) -> Totals:
        """The published counts of all processes. Any thread may call this."""
        return totals_of(self._sums)

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
                self._series.row(families.FALLBACKS, event.leg, event.reason)[0] += 1
            elif isinstance(event, KeyRefused):
                self._series.row(families.KEY_REFUSALS, event.api_key, event.limit)[0] += 1
            elif isinstance(event, ModelChosen):
                self._series.row(families.ALIAS_REQUESTS, event.alias, event.model)[0] += 1
            elif (family := UNLABELLED.get(type(event))) is not None:
                self._series.row(family)[0] += 1


class Counts:
    """Passes events to metrics and log in batches, and returns counts that include all events so
    far."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        # A worker's counts must survive its death, and other workers export them.
        on_flushed = metrics.publish if metrics.is_shared else lambda: None
        self.event_buffer = EventBuffer([metrics.observe, AccessLog().observe], on_flushed)

    async def exposition(self, text_format: TextFormat = PLAIN) -> bytes:
        """The page for Prometheus."""
        self.event_buffer.flush()
        self._metrics.publish()
        state = await in_turns(self._metrics.state(text_format))
        return await in_turns(self._metrics.counts(text_format)) + state + text_format.end

    async def totals(self) -> Totals:
        """The totals of all processes."""
        self.event_buffer.flush()
        self._metrics.publish()
        # Too slow for the event loop with many engines.
        return await asyncio.to_thread(self._metrics.totals)
