"""A router's own metrics: lateness of its event loop, and wait of connections before the accept.

Any router with these metrics is read, by name; others are not asked twice.
"""

import math
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

HISTOGRAM = "pd_router_event_loop_lag_seconds_bucket"
ACCEPTS = "pd_router_accept_delay_seconds_bucket"
GAUGE = "pd_router_event_loop_lag_max_seconds"
# Stalls longer than this are counted.
LIMIT_S = 0.02
TIMEOUT_S = 5.0
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
EDGE = re.compile(r'\ble="([^"]+)"')


@dataclass(frozen=True)
class Lag:
    """One look: the gauge, and the histograms' cumulative counts by upper edge in seconds, of the
    loop's lateness and of the waits before an accept."""

    max_s: float | None
    counts: dict[float, float]
    accepts: dict[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stalls:
    """What happened between two looks. `over` counts stalls longer than LIMIT_S."""

    max_s: float | None
    over: float | None
    accept_p99_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the results file."""
        return asdict(self)


def parse(text: str) -> Lag | None:
    """Read the metrics; several processes' samples are one. None where there are none."""
    gauges: list[float] = []
    histograms: dict[str, dict[float, float]] = {HISTOGRAM: {}, ACCEPTS: {}}
    for name, labels, value in SAMPLE.findall(text):
        if name == GAUGE:
            gauges.append(float(value))
        elif name in histograms and (edge := EDGE.search(labels)):
            counts, bound = histograms[name], float(edge.group(1))
            counts[bound] = counts.get(bound, 0.0) + float(value)
    if not gauges and not any(histograms.values()):
        return None
    return Lag(max(gauges, default=None), histograms[HISTOGRAM], histograms[ACCEPTS])


def look(base: str) -> Lag | None:
    """Read a router's metrics now."""
    try:
        with urllib.request.urlopen(f"{base}/metrics", timeout=TIMEOUT_S) as answer:
            return parse(answer.read().decode(errors="replace"))
    except (urllib.error.URLError, OSError):
        return None


def between(before: Lag | None, after: Lag | None) -> Stalls | None:
    """The stalls since `before`; None if the router does not report them."""
    if after is None:
        return None
    counts = _since(before.counts if before else {}, after.counts)
    accepts = _since(before.accepts if before else {}, after.accepts)
    return Stalls(_longest(before, after, counts), _over(counts), quantile(accepts, 0.99))


def _since(before: Mapping[float, float], after: Mapping[float, float]) -> dict[float, float]:
    return {edge: count - before.get(edge, 0.0) for edge, count in after.items()}


def quantile(counts: Mapping[float, float], share: float) -> float | None:
    """As Prometheus' histogram_quantile: inside a bucket values are taken to be evenly spread, and
    above the highest finite edge they are at that edge. None without values."""
    rank = share * max(counts.values(), default=0.0)
    lower, below = 0.0, 0.0
    for edge, count in sorted(counts.items()):
        if edge == math.inf:
            return lower if count else None
        if count >= rank and count > below:
            return lower + (edge - lower) * (rank - below) / (count - below)
        lower, below = edge, count
    return None


def _longest(before: Lag | None, after: Lag, counts: dict[float, float]) -> float | None:
    """The gauge where it rose; else it is of before, and the highest bucket that grew bounds it."""
    if after.max_s is None or before is None or before.max_s is None:
        return after.max_s
    if after.max_s > before.max_s or not counts:
        return after.max_s
    total = max(counts.values())
    return min(after.max_s, *(edge for edge, count in counts.items() if count >= total))


def _over(counts: dict[float, float]) -> float | None:
    if LIMIT_S not in counts:
        return None
    return max(counts.values()) - counts[LIMIT_S]
