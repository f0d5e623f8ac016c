"""The series that this process counts, in rows that all processes of the router read.

What requests count is collected in plain numbers and published in batches: writing a dozen rows for
each request costs more than all routing decisions for it.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import orjson
from prometheus_client.samples import Exemplar

from router.core.count_rows import CountRows
from router.core.values import Endpoint, Role
from router.telemetry.families import ALL, OF_ENGINE, Family

__all__ = ["Counter", "Histogram", "Series"]

log = logging.getLogger(__name__)


class Counter:
    """A series of a counter. `value` is incremented directly, and added to the row by `publish`."""

    __slots__ = ("_row", "value")

    def __init__(self, row: "memoryview[float]") -> None:
        self._row = row
        self.value = 0

    def publish(self) -> None:
        """Add the count since the last call."""
        if self.value:
            self._row[0] += self.value
            self.value = 0


class Histogram:
    """A series of a histogram. The exemplar of each bucket is the last trace counted in it."""

    __slots__ = ("_bounds", "_counts", "_is_clean", "_row", "_sum", "exemplars")

    def __init__(self, bounds: tuple[float, ...], row: "memoryview[float]") -> None:
        self._bounds = bounds
        self._row = row
        self._counts = [0] * len(bounds)
        self._sum = 0.0
        self._is_clean = True
        self.exemplars: dict[int, Exemplar] = {}
        """By the number of the bucket."""

    def observe(self, value: float, trace_id: str | None = None) -> None:
        """Count a value. `trace_id`: the trace of its request."""
        place = bisect_left(self._bounds, value)
        self._counts[place] += 1
        self._sum += value
        self._is_clean = False
        if trace_id is not None:
            now = time.time()  # noqa: TID251 - an exemplar has the time of day
            self.exemplars[place] = Exemplar({"trace_id": trace_id}, value, now)

    def publish(self) -> None:
        """Add the counts since the last call."""
        if self._is_clean:
            return
        row, counts = self._row, self._counts
        for place, count in enumerate(counts):
            if count:
                row[place] += count
                counts[place] = 0
        row[len(counts)] += self._sum
        self._sum = 0.0
        self._is_clean = True


class Series:
    """The series of this process by family and labels, each created on first use. `rows` has those
    of its predecessor, whose counts it continues."""

    def __init__(self, rows: CountRows) -> None:
        self._rows = rows
        self._batched: dict[tuple[str, ...], Counter | Histogram] = {}
        self._of_engines: dict[Endpoint, list[bytes]] = {}
        """The names of each engine's rows."""
        self._is_full = False
        families = {family.name: family for family in ALL}
        for name in rows.names():
            family, *labels = orjson.loads(name)
            self._note(name, families[family], labels)

    def __len__(self) -> int:
        """Number of series that are published in batches."""
        return len(self._batched)

    @property
    def engines(self) -> set[Endpoint]:
        """The engines that have series."""
        return set(self._of_engines)

    def row(self, family: Family, *labels: str) -> "memoryview[float]":
        """The numbers of a series (see `Family.size`), which is exported from now on. Counters are
        created with 0 before anything happens, because a series that appears with 1 has not
        increased: no alert on its rate would fire."""
        name = orjson.dumps([family.name, *labels])
        is_new = name not in self._rows
        row = self._rows.row(name, family.size)
        if row is None:
            if not self._is_full:
                self._is_full = True
                log.warning("counts are missing in this worker's metrics: too many series")
            return memoryview(bytearray(8 * family.size)).cast("d")
        if is_new:
            self._note(name, family, labels)
        return row

    def counter(self, family: Family, *labels: str) -> Counter:
        """A series of a counter that is published in batches."""
        key = family.name, *labels
        found = self._batched.get(key)
        if not isinstance(found, Counter):
            found = self._batched[key] = Counter(self.row(family, *labels))
        return found

    def histogram(self, family: Family, *labels: str) -> Histogram:
        """A series of a histogram."""
        key = family.name, *labels
        found = self._batched.get(key)
        if not isinstance(found, Histogram):
            found = self._batched[key] = Histogram(family.bounds, self.row(family, *labels))
        return found

    def exemplars(self, family: Family, labels: Sequence[str]) -> Mapping[int, Exemplar]:
        """The exemplars of a histogram's buckets, as counted by this process."""
        found = self._batched.get((family.name, *labels))
        return found.exemplars if isinstance(found, Histogram) else {}

    def forget(self, endpoint: Endpoint) -> None:
        """Remove all series of an engine."""
        for name in self._of_engines.pop(endpoint, ()):
            self._batched.pop(tuple(orjson.loads(name)), None)
            self._rows.drop(name)

    def publish(self) -> None:
        """Publish all counts so far."""
        for each in self._batched.values():
            each.publish()

    def _note(self, name: bytes, family: Family, labels: Sequence[str]) -> None:
        if family.labels[:2] == OF_ENGINE:
            role, url, *_ = labels
            self._of_engines.setdefault(Endpoint(url, Role(role)), []).append(name)
