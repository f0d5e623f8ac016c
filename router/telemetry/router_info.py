"""Metrics about this router: build, configuration, and how often workers were restarted."""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router import __version__
from router.core.fleet import fleet

__all__ = ["NEVER_RELOADED", "NO_CONFIG", "RouterInfo"]

NEVER_RELOADED: Final = (0, 0, 1)

NO_CONFIG: Final[Mapping[str, str]] = MappingProxyType({})


class RouterInfo(Collector):
    """Info metrics with the value 1. `config`: the exported settings by label. `reloads`: how many
    reloads were applied and rejected, and whether the last one was applied."""

    def __init__(
        self,
        config: Mapping[str, str],
        restarts: Callable[[], int],
        reloads: Sequence[int] = NEVER_RELOADED,
    ) -> None:
        self.config = config
        self._restarts = restarts
        self._reloads = reloads

    def collect(self) -> Iterator[Metric]:
        """The current values."""
        is_compiled = (fleet.__file__ or "").endswith(".so")
        build = {
            "version": __version__,
            "python": platform.python_version(),
            "compiled": "true" if is_compiled else "false",
        }
        yield _info("build", "The router's build.", build)
        yield _info("config", "The router's configuration.", self.config)
        yield CounterMetricFamily(
            "pd_router_worker_restarts",
            "Worker processes that ended and were started again.",
            value=self._restarts(),
        )
        yield from self._reload_metrics()

    def _reload_metrics(self) -> Iterator[Metric]:
        applied, rejected, is_last_good = self._reloads
        counter = CounterMetricFamily(
            "pd_router_config_reloads",
            "Reloads of the configuration while the router runs.",
            labels=["result"],
        )
        counter.add_metric(["applied"], applied)
        counter.add_metric(["rejected"], rejected)
        yield counter
        yield GaugeMetricFamily(
            "pd_router_config_last_reload_successful",
            "0 while the last reload of the configuration was rejected.",
            value=is_last_good,
        )


def _info(name: str, text: str, labels: Mapping[str, str]) -> Metric:
    info = GaugeMetricFamily(f"pd_router_{name}_info", text, labels=list(labels))
    info.add_metric(list(labels.values()), 1)
    return info
