"""The counts of all worker processes together, without those of engines that are gone."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

__all__ = ["WorkerCounts"]


class WorkerCounts(Collector):
    """Reads the workers' files in `folder`; any thread may ask."""

    def __init__(self, folder: Path) -> None:
        self._inner = MultiProcessCollector(None, str(folder))  # type: ignore[no-untyped-call]
        self.endpoints: frozenset[tuple[str, str]] = frozenset()
        """Roles and URLs of the engines that are shown."""

    def collect(self) -> Iterator[Metric]:
        """The current sums."""
        metrics: Iterable[Metric] = self._inner.collect()  # type: ignore[no-untyped-call]
        for metric in metrics:
            metric.samples = [
                sample
                for sample in metric.samples
                if "endpoint" not in sample.labels
                or (sample.labels["role"], sample.labels["endpoint"]) in self.endpoints
            ]
            yield metric
