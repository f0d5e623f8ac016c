"""CPU time, memory and open files of all worker processes together.

The CPU time of ended workers stays in the sum: Prometheus takes a decreasing counter for a reset
one, and would count the other workers' total as new.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

__all__ = ["Processes"]

CPU = "pd_router_process_cpu_seconds"

MINIMA = ("pd_router_process_start_time_seconds", "pd_router_process_max_fds")
"""Metrics of which the minimum is exported; all others are summed."""


class Processes(Collector):
    """prometheus-client's ProcessCollector for several processes. `ended_cpu`: seconds of CPU time
    used by processes that have ended."""

    def __init__(self, pids: Callable[[], Iterable[int]], ended_cpu: Callable[[], float]) -> None:
        self._pids = pids
        self._ended_cpu = ended_cpu

    def collect(self) -> Iterator[Metric]:
        """The current sums."""
        while True:
            ended = self._ended_cpu()
            found = self._sums()
            if ended == self._ended_cpu():  # else one that has ended may count twice
                break
        if (cpu := found.get(CPU)) is not None:
            cpu.samples = [each._replace(value=each.value + ended) for each in cpu.samples]
        yield from found.values()

    def _sums(self) -> dict[str, Metric]:
        """The sums of the running processes."""
        found: dict[str, Metric] = {}
        for pid in self._pids():
            one = ProcessCollector("pd_router", pid=lambda pid=pid: pid, registry=None)  # type: ignore[misc]
            for metric in one.collect():
                before = found.setdefault(metric.name, metric)
                if before is not metric:
                    join = min if metric.name in MINIMA else _sum
                    before.samples = [
                        was._replace(value=join(was.value, now.value))
                        for was, now in zip(before.samples, metric.samples, strict=True)
                    ]
        return found


def _sum(one: float, other: float) -> float:
    return one + other
