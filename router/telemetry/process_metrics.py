"""Metrics about the router's processes: build, configuration, restarts, CPU time and memory."""

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import add
from types import MappingProxyType
from typing import Final

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router import __version__
from router.core.fleet import fleet
from router.core.shared_table import SharedTable

__all__ = ["NEVER_RELOADED", "NO_CONFIG", "Processes", "RouterInfo"]

NEVER_RELOADED: Final = (0, 0, 1)

NO_CONFIG: Final[Mapping[str, str]] = MappingProxyType({})

CPU: Final = "pd_router_process_cpu_seconds"

MINIMA: Final = ("pd_router_process_start_time_seconds", "pd_router_process_max_fds")
"""Metrics of which the minimum is exported; all others are summed."""


class RouterInfo(Collector):
    """Build and configuration as labels of metrics with the value 1, reloads and restarts.

    `config`: the exported settings by label. `reloads`: how many reloads were applied and rejected,
    and whether the last one was applied. `table`: that of all workers; None if there is only this
    process.
    """

    def __init__(
        self, config: Mapping[str, str], reloads: Sequence[int], table: SharedTable | None
    ) -> None:
        self.config = config
        self._reloads = reloads
        self._table = table

    def collect(self) -> Iterator[Metric]:
        """The current values."""
        is_compiled = (fleet.__file__ or "").endswith(".so")
        build = {
            "version": __version__,
            "python": platform.python_version(),
            "compiled": "true" if is_compiled else "false",
        }
        yield _info("build", "Build of the router.", build)
        yield _info("config", "Configuration of the router.", self.config)
        yield CounterMetricFamily(
            "pd_router_worker_restarts",
            "Restarts of worker processes.",
            value=0 if self._table is None else self._table.restarts(),
        )
        applied, rejected, is_last_good = self._reloads
        reloads = CounterMetricFamily(
            "pd_router_config_reloads",
            "Reloads of the configuration, by result.",
            labels=["result"],
        )
        reloads.add_metric(["applied"], applied)
        reloads.add_metric(["rejected"], rejected)
        yield reloads
        yield GaugeMetricFamily(
            "pd_router_config_last_reload_successful",
            "Whether the last reload of the configuration was applied (1) or rejected (0).",
            value=is_last_good,
        )


class Processes(Collector):
    """CPU time, memory and open files of all worker processes together; without a table, of this
    process.

    The CPU time of ended workers stays in the sum: Prometheus takes a decreasing counter for a
    reset one, and would count the other workers' total as new.
    """

    def __init__(self, table: SharedTable | None) -> None:
        self._table = table

    def collect(self) -> Iterator[Metric]:
        """The current sums."""
        table = self._table
        if table is None:
            yield from _sums([os.getpid()]).values()
            return
        while True:
            ended = table.ended_cpu()
            found = _sums(table.pids())
            if ended == table.ended_cpu():  # else one that has ended may count twice
                break
        if (cpu := found.get(CPU)) is not None:
            cpu.samples = [each._replace(value=each.value + ended) for each in cpu.samples]
        yield from found.values()


def _sums(pids: Iterable[int]) -> dict[str, Metric]:
    """prometheus-client's metrics of running processes, added up, by name."""
    found: dict[str, Metric] = {}
    for pid in pids:
        one = ProcessCollector("pd_router", pid=lambda pid=pid: pid, registry=None)  # type: ignore[misc]
        for metric in one.collect():
            before = found.setdefault(metric.name, metric)
            if before is not metric:
                join = min if metric.name in MINIMA else add
                before.samples = [
                    was._replace(value=join(was.value, now.value))
                    for was, now in zip(before.samples, metric.samples, strict=True)
                ]
    return found


def _info(name: str, text: str, labels: Mapping[str, str]) -> Metric:
    info = GaugeMetricFamily(f"pd_router_{name}_info", text, labels=list(labels))
    info.add_metric(list(labels.values()), 1)
    return info
