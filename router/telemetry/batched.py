"""Counts in plain numbers that are flushed into prometheus-client's at intervals.

Its counters take a lock, or write to a file, for each increment: a dozen of them cost more than all
routing decisions for a request.
"""

import time
from bisect import bisect_left

from prometheus_client import Counter, Histogram
from prometheus_client.samples import Exemplar

__all__ = ["BatchedCounter", "BatchedHistogram", "BatchedSeries"]


class BatchedCounter:
    """One child of a Counter. `value` is incremented directly, and added to the child by
    `flush`."""

    __slots__ = ("_child", "value")

    def __init__(self, child: Counter) -> None:
        self._child = child
        self.value = 0

    def flush(self) -> None:
        """Add the counts since the last flush."""
        if self.value:
            self._child.inc(self.value)
            self.value = 0


class BatchedHistogram:
    """One child of a Histogram. The exemplar of each bucket is the last trace counted in it."""

    __slots__ = ("_bounds", "_child", "_counts", "_exemplars", "_is_clean", "_sum")

    def __init__(self, child: Histogram) -> None:
        self._child = child
        # What Histogram.observe does for a single value is not public API; a test compares the
        # results.
        self._bounds: list[float] = child._upper_bounds  # noqa: SLF001
        self._counts = [0] * len(self._bounds)
        self._exemplars: dict[int, Exemplar] = {}
        self._sum = 0.0
        self._is_clean = True

    def observe(self, value: float, trace_id: str | None = None) -> None:
        """Count a value. `trace_id`: the trace of its request."""
        place = bisect_left(self._bounds, value)
        self._counts[place] += 1
        self._sum += value
        self._is_clean = False
        if trace_id is not None:
            now = time.time()  # noqa: TID251 - an exemplar tells the time of day
            self._exemplars[place] = Exemplar({"trace_id": trace_id}, value, now)

    def flush(self) -> None:
        """Add the counts since the last flush."""
        if self._is_clean:
            return
        child = self._child
        child._sum.inc(self._sum)  # noqa: SLF001
        for place, count in enumerate(self._counts):
            if count:
                child._buckets[place].inc(count)  # noqa: SLF001
                self._counts[place] = 0
        for place, exemplar in self._exemplars.items():
            child._buckets[place].set_exemplar(exemplar)  # noqa: SLF001
        self._exemplars.clear()
        self._sum = 0.0
        self._is_clean = True


class BatchedSeries:
    """The batched children of families by their labels, created on first use."""

    def __init__(self) -> None:
        self._children: dict[tuple[object, ...], BatchedCounter | BatchedHistogram] = {}

    def __len__(self) -> int:
        """Number of children."""
        return len(self._children)

    def counter(self, family: Counter, *labels: object) -> BatchedCounter:
        """The child of a family with these labels, or the family itself if it has no labels."""
        key = family, *labels
        found = self._children.get(key)
        if not isinstance(found, BatchedCounter):
            found = BatchedCounter(family.labels(*labels) if labels else family)
            self._children[key] = found
        return found

    def histogram(self, family: Histogram, *labels: object) -> BatchedHistogram:
        """The histogram child of a family with these labels, or the family itself if it has no
        labels."""
        key = family, *labels
        found = self._children.get(key)
        if not isinstance(found, BatchedHistogram):
            found = BatchedHistogram(family.labels(*labels) if labels else family)
            self._children[key] = found
        return found

    def drop(self, family: Counter | Histogram, *labels: object) -> None:
        """Remove a child. Raises KeyError if it does not exist."""
        del self._children[family, *labels]

    def flush(self) -> None:
        """Flush all children."""
        for each in self._children.values():
            each.flush()
