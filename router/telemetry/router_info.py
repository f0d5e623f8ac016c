"""What this router is: its build, its configuration, and how often workers were restarted."""

import platform
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router import __version__
from router.core import fleet

__all__ = ["NO_CONFIG", "RouterInfo"]

NO_CONFIG: Final[Mapping[str, str]] = MappingProxyType({})


class RouterInfo(Collector):
    """Gauges of 1 whose labels tell. `config` are the settings to tell, by label."""

    def __init__(self, config: Mapping[str, str], restarts: Callable[[], int]) -> None:
        self._config = config
        self._restarts = restarts

    def collect(self) -> Iterator[Metric]:
        """The current values."""
        is_compiled = (fleet.__file__ or "").endswith(".so")
        build = {
            "version": __version__,
            "python": platform.python_version(),
            "compiled": "true" if is_compiled else "false",
        }
        yield _info("build", "The router's build.", build)
        yield _info("config", "The router's configuration.", self._config)
        yield CounterMetricFamily(
            "pd_router_worker_restarts",
            "Worker processes that ended and were started again.",
            value=self._restarts(),
        )


def _info(name: str, text: str, labels: Mapping[str, str]) -> Metric:
    info = GaugeMetricFamily(f"pd_router_{name}_info", text, labels=list(labels))
    info.add_metric(list(labels.values()), 1)
    return info
