"""Counts kept in plain numbers until they are flushed into prometheus-client's.

Its counters take a lock, or write to a file, for each increment: a dozen of them cost more than
all that a router decides about a request.
"""

from bisect import bisect_left

from prometheus_client import Counter, Histogram

__all__ = ["BatchedCounter", "BatchedHistogram"]


class BatchedCounter:
    """One child of a Counter. `value` is counted up, and added to the child by `flush`."""

    __slots__ = ("_child", "value")

    def __init__(self, child: Counter) -> None:
        self._child = child
        self.value = 0

    def flush(self) -> None:
        """Add what was counted since the last time."""
        if self.value:
            self._child.inc(self.value)
            self.value = 0


class BatchedHistogram:
    """One child of a Histogram."""

    __slots__ = ("_bounds", "_child", "_counts", "_is_clean", "_sum")

    def __init__(self, child: Histogram) -> None:
        self._child = child
        # What Histogram.observe does, for one value at a time, is not public; a test compares.
        self._bounds: list[float] = child._upper_bounds  # noqa: SLF001
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        self._is_clean = True

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        self._is_clean = False

    def flush(self) -> None:
        """Add what was counted since the last time."""
        if self._is_clean:
            return
        child = self._child
        child._sum.inc(self._sum)  # noqa: SLF001
        for place, count in enumerate(self._counts):
            if count:
                child._buckets[place].inc(count)  # noqa: SLF001
                self._counts[place] = 0
        self._sum = 0.0
        self._is_clean = True
