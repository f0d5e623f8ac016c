"""CPU, memory and open files of all worker processes together."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

__all__ = ["Processes"]

LEAST = ("pd_router_process_start_time_seconds", "pd_router_process_max_fds")
"""Metrics of which the smallest is exported; all others are summed."""


class Processes(Collector):
    """prometheus-client's ProcessCollector, over several processes."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids

    def collect(self) -> Iterator[Metric]:
        """The current sums."""
        found: dict[str, Metric] = {}
        for pid in self._pids():
            one = ProcessCollector("pd_router", pid=lambda pid=pid: pid, registry=None)  # type: ignore[misc]
            for metric in one.collect():
                before = found.setdefault(metric.name, metric)
                if before is not metric:
                    join = min if metric.name in LEAST else _sum
                    before.samples = [
                        was._replace(value=join(was.value, now.value))
                        for was, now in zip(before.samples, metric.samples, strict=True)
                    ]
        yield from found.values()


def _sum(one: float, other: float) -> float:
    return one + other
