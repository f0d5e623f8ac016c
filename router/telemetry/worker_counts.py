"""The counts of all worker processes together, without those of engines that have left.

prometheus-client's own class (`multiprocess.MultiProcessCollector`) reads all files at once, and
each series once per worker. This one adds up the files by key, since keys are the same in all
files, parses each key once, and pauses so that an event loop can run in between.
"""

import struct
from collections.abc import Callable, Container, Iterator, Mapping
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Final

import orjson
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from router.telemetry.in_pieces import PIECE_SAMPLES, in_families

__all__ = ["WorkerCounts"]

PIECE_ENTRIES: Final = 2000
"""Entries of files that are added up at a time, in about 4 ms."""

JOINED_BY: Final[Mapping[str, Callable[[float, float], float]]] = {"gauge_max": max}
"""How the values of several workers are combined, by the type of their files; others are added
up."""

Labels = tuple[tuple[str, str], ...]


class _Family:
    """A family under construction."""

    def __init__(self, name: str, text: str, typ: str) -> None:
        self._metric = Metric(name, text, typ)
        self._single: list[Sample] = []
        """Samples that do not belong to a histogram."""
        self._histograms: dict[Labels, tuple[list[Sample], list[tuple[float, Sample]]]] = {}
        """By labels: the sum, and the count of each bucket by its bound."""

    def add(self, sample: Sample) -> None:
        """Add a sample as found in the files."""
        if self._metric.type != "histogram":
            self._single.append(sample)
            return
        labels = tuple(each for each in sample.labels.items() if each[0] != "le")
        sums, buckets = self._histograms.setdefault(labels, ([], []))
        if "le" in sample.labels:
            buckets.append((float(sample.labels["le"]), sample))
        else:
            sums.append(sample)

    def pieces(self) -> Iterator[Metric]:
        """Yields the metric as it is exported, some samples at a time."""
        return in_families(self._metric, chain(self._single, self._accumulated()))

    def _accumulated(self) -> Iterator[Sample]:
        """Yields each bucket with the counts of all lower ones added."""
        for labels, (sums, buckets) in self._histograms.items():
            yield from sums
            total = 0.0
            for _, sample in sorted(buckets, key=itemgetter(0)):
                total += sample.value
                yield sample._replace(value=total)
            if buckets:
                yield Sample(f"{self._metric.name}_count", dict(labels), total)


class WorkerCounts(Collector):
    """Reads the workers' files in `folder`. Any thread may use it. `exemplars`: those of the
    current worker, by key."""

    def __init__(self, folder: Path, exemplars: Mapping[str, Exemplar] | None = None) -> None:
        self._folder = folder
        self._exemplars = {} if exemplars is None else exemplars
        self.endpoints: frozenset[tuple[str, str]] = frozenset()
        """Roles and URLs of the engines that are exported."""

    def collect(self, only: Container[str] | None = None) -> Iterator[Metric]:
        """Yields the current sums, in families of which several in a row may have the same name.
        `only`: the names of the samples that are needed; None: all."""
        return (each for each in self.pieces(only) if each is not None)

    def pieces(self, only: Container[str] | None = None) -> Iterator[Metric | None]:
        """The same, with None after each few milliseconds of work."""
        sums: dict[str, dict[str, float]] = {}
        for path in sorted(self._folder.glob("*.db")):
            kind = path.name.rpartition("_")[0]
            yield from _add_up(path, sums.setdefault(kind, {}), JOINED_BY.get(kind))
        for kind, values in sums.items():
            typ = kind.partition("_")[0]
            families: dict[str, _Family] = {}
            for place, (key, value) in enumerate(values.items()):
                if only is not None and key.split('"', 4)[3] not in only:
                    continue
                family, name, labels, text = orjson.loads(key)
                if self._is_shown(labels):
                    if family not in families:
                        families[family] = _Family(family, text, typ)
                    exemplar = self._exemplars.get(key)
                    families[family].add(Sample(name, labels, value, exemplar=exemplar))
                if place % PIECE_SAMPLES == 0:
                    yield None
            for each in families.values():
                yield from each.pieces()

    def _is_shown(self, labels: Mapping[str, str]) -> bool:
        return "endpoint" not in labels or (labels["role"], labels["endpoint"]) in self.endpoints


def _add_up(
    path: Path, sums: dict[str, float], join: Callable[[float, float], float] | None
) -> Iterator[None]:
    """Add the values in a file to `sums`, by key."""
    try:
        entries = MmapedDict.read_all_values_from_file(str(path))  # type: ignore[no-untyped-call]
    except (FileNotFoundError, struct.error):  # another process creates it, or has no room for it
        return
    for place, (key, value, _timestamp, _position) in enumerate(entries):
        before = sums.get(key)
        if before is None:
            sums[key] = value
        else:
            sums[key] = before + value if join is None else join(before, value)
        if place % PIECE_ENTRIES == 0:
            yield None
