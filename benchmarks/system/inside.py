"""What a router says of its own event loop on /metrics: its longest stall, how often it stalled.

Any router with the two metrics is read, by name; others have nothing to say and are not asked
twice.
"""

import re
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from typing import Any

HISTOGRAM = "pd_router_event_loop_lag_seconds_bucket"
GAUGE = "pd_router_event_loop_lag_max_seconds"
# The limit: a stall longer than this is one too many.
LIMIT_S = 0.02
TIMEOUT_S = 5.0
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
EDGE = re.compile(r'\ble="([^"]+)"')


@dataclass(frozen=True)
class Lag:
    """One look: the gauge, and the histogram's cumulative counts by upper edge in seconds."""

    max_s: float | None
    counts: dict[float, float]


@dataclass(frozen=True)
class Stalls:
    """What happened between two looks. `over` counts stalls longer than LIMIT_S."""

    max_s: float | None
    over: float | None

    def as_dict(self) -> dict[str, Any]:
        """For the results file."""
        return asdict(self)


def parse(text: str) -> Lag | None:
    """Read the metrics; several processes' samples are one. None where there are none."""
    gauges: list[float] = []
    counts: dict[float, float] = {}
    for name, labels, value in SAMPLE.findall(text):
        if name == GAUGE:
            gauges.append(float(value))
        elif name == HISTOGRAM and (edge := EDGE.search(labels)):
            bound = float(edge.group(1))
            counts[bound] = counts.get(bound, 0.0) + float(value)
    return Lag(max(gauges, default=None), counts) if gauges or counts else None


def look(base: str) -> Lag | None:
    """Ask a router now."""
    try:
        with urllib.request.urlopen(f"{base}/metrics", timeout=TIMEOUT_S) as answer:
            return parse(answer.read().decode(errors="replace"))
    except (urllib.error.URLError, OSError):
        return None


def between(before: Lag | None, after: Lag | None) -> Stalls | None:
    """The stalls since `before`; None where the router does not tell."""
    if after is None:
        return None
    counts = dict(after.counts)
    if before is not None:
        counts = {edge: count - before.counts.get(edge, 0.0) for edge, count in counts.items()}
    return Stalls(_longest(before, after, counts), _over(counts))


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
