"""The counts of all processes of the router together, without those of engines that have left."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from operator import add
from typing import Final, TypeVar

import orjson
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from router.core.count_rows import read_rows
from router.core.values import Endpoint, Role
from router.telemetry import families
from router.telemetry.exposition import in_families
from router.telemetry.families import ALL, OF_ENGINE, Family
from router.telemetry.series import Series

__all__ = ["Buckets", "Totals", "WorkerSums", "totals_of"]

PIECE_ROWS: Final = 1000
"""Rows that are read at a time, in about 3 ms."""

Numbers = dict[tuple[str, ...], list[float]]
"""The numbers of a family's series (see `Family.size`) by labels."""

Buckets = Mapping[float, float]
"""A histogram: number of values up to each bound, infinity included."""

Pair = tuple[str, str]
K = TypeVar("K")


class WorkerSums:
    """Adds up the rows of all workers. Any thread may use it.

    `workers`: the memory with the rows of each. `series`: those of this process, whose exemplars
    are exported.
    """

    def __init__(self, workers: Sequence[memoryview], series: Series) -> None:
        self._workers = workers
        self._series = series
        self.engines: frozenset[Endpoint] = frozenset()
        """The engines that are exported."""

    def of(self, wanted: Iterable[Family]) -> Mapping[Family, Numbers]:
        """The current sums of some families."""
        sums: dict[Family, Numbers] = {family: {} for family in wanted}
        for _ in self._add_up(sums):
            pass
        return sums

    def metrics(self) -> Iterator[Metric | None]:
        """Yields all families with their current sums, of which several in a row may have the same
        name; None after each few milliseconds of work."""
        sums: dict[Family, Numbers] = {family: {} for family in ALL}
        yield from self._add_up(sums)
        for family, numbers in sums.items():
            metric = Metric(family.full_name, family.help, family.type)
            yield from in_families(metric, self._samples(family, numbers))

    def _add_up(self, sums: Mapping[Family, Numbers]) -> Iterator[None]:
        """Add the rows of the families in `sums`. Yields after each few milliseconds."""
        wanted = {family.name: family for family in sums}
        known: dict[bytes, tuple[Family, list[float]] | None] = {}
        rows = chain.from_iterable(map(read_rows, self._workers))
        for place, (name, numbers) in enumerate(rows):
            if place % PIECE_ROWS == 0:
                yield None
            if name not in known:
                family_name, *labels = orjson.loads(name)
                family = wanted.get(family_name)
                known[name] = None
                if family is not None and self._is_exported(family, labels):
                    known[name] = family, numbers
                    sums[family][tuple(labels)] = numbers
            elif (found := known[name]) is not None:
                family, before = found
                before[:] = map(max if family.is_maximum else add, before, numbers)

    def _is_exported(self, family: Family, labels: Sequence[str]) -> bool:
        if family.labels[:2] != OF_ENGINE:
            return True
        role, url, *_ = labels
        return Endpoint(url, Role(role)) in self.engines

    def _samples(self, family: Family, series: Numbers) -> Iterator[Sample]:
        name, suffix = family.full_name, "_total" if family.type == "counter" else ""
        for values, numbers in series.items():
            labels = dict(zip(family.labels, values, strict=True))
            if family.type != "histogram":
                yield Sample(name + suffix, labels, numbers[0])
                continue
            exemplars, count = self._series.exemplars(family, values), 0.0
            for place, (bound, count) in enumerate(_cumulative(family, numbers)):
                le = "+Inf" if bound == float("inf") else str(bound)
                exemplar = exemplars.get(place)
                yield Sample(f"{name}_bucket", {**labels, "le": le}, count, exemplar=exemplar)
            yield Sample(f"{name}_count", labels, count)
            yield Sample(f"{name}_sum", labels, numbers[-1])


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the start, for the live page."""

    requests: Mapping[str, float] = field(default_factory=dict)
    """By outcome."""
    failures: float = 0.0
    """Requests that failed for other reasons than their clients."""
    decisions: Mapping[Pair, float] = field(default_factory=dict)
    """By mode and reason."""
    fallbacks: Mapping[Pair, float] = field(default_factory=dict)
    """By leg and reason."""
    answers: Mapping[Endpoint, float] = field(default_factory=dict)
    ttft: Buckets = field(default_factory=dict)
    """Of all streams, from the request's arrival on."""
    endpoint_ttft: Mapping[Endpoint, Buckets] = field(default_factory=dict)
    """Of each decode engine's streams and each prefill engine's prefills, from the engine request
    on."""


def totals_of(counts: WorkerSums) -> Totals:
    """The current totals. Any thread may call this."""
    sums = counts.of(
        (
            families.REQUESTS,
            families.FAILED,
            families.DECISIONS,
            families.FALLBACKS,
            families.ANSWERS,
            families.TTFT,
            families.ENDPOINT_TTFT,
        )
    )
    requests: dict[str, float] = {}
    for (_route, _mode, _status, outcome), [count] in sums[families.REQUESTS].items():
        _add(requests, outcome, count)
    answers: dict[Endpoint, float] = {}
    for (role, url, _status), [count] in sums[families.ANSWERS].items():
        _add(answers, Endpoint(url, Role(role)), count)
    ttft: dict[float, float] = {}
    for (_mode, stream), numbers in sums[families.TTFT].items():
        if stream == "true":
            for bound, count in _cumulative(families.TTFT, numbers):
                _add(ttft, bound, count)
    return Totals(
        requests=requests,
        failures=sum(count for [count] in sums[families.FAILED].values()),
        decisions={(mode, why): count for (mode, why), [count] in sums[families.DECISIONS].items()},
        fallbacks={(leg, why): count for (leg, why), [count] in sums[families.FALLBACKS].items()},
        answers=answers,
        ttft=ttft,
        endpoint_ttft={
            Endpoint(url, Role(role)): dict(_cumulative(families.ENDPOINT_TTFT, numbers))
            for (role, url), numbers in sums[families.ENDPOINT_TTFT].items()
        },
    )


def _cumulative(family: Family, numbers: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yields each upper bound of a histogram with the number of values up to it."""
    return zip(family.bounds, accumulate(numbers[:-1]), strict=True)


def _add(counts: dict[K, float], key: K, value: float) -> None:
    counts[key] = counts.get(key, 0.0) + value
