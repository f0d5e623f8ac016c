"""Statistics for `compare` and the gate: percentiles, spreads over rounds, the steady middle.

Percentiles are linear between ranks, as numpy's and AIPerf's are. Absence is None.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

# The steady middle of a job, in shares of its completions: before it the clients are in step, after
# it the last answers of a slow engine leave the others idle. As `pd-router simulate` has it.
MIDDLE = (0.25, 0.75)
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def percentile(values: Any, q: float) -> float | None:
    """The q-th percentile, 0 to 100; None without values."""
    return float(np.percentile(values, q)) if len(values) else None


def middle_rate(ends: Sequence[float]) -> float | None:
    """Completions per second in the steady middle; None where there are too few."""
    ordered = np.sort(np.asarray(ends))
    low, high = (int(share * (len(ordered) - 1)) for share in MIDDLE)
    if high <= low or ordered[high] <= ordered[low]:
        return None
    return float((high - low) / (ordered[high] - ordered[low]))


@dataclass(frozen=True)
class Summary:
    """A median over rounds and its range."""

    median: float
    low: float
    high: float
    rounds: int


def summarise(values: Iterable[float | None]) -> Summary | None:
    """Median and range of the values that are not None; None without any."""
    there = np.asarray([value for value in values if value is not None], dtype=float)
    if not len(there):
        return None
    low, high = float(there.min()), float(there.max())
    return Summary(float(np.median(there)), low, high, len(there))


@dataclass(frozen=True, slots=True)
class Distribution:
    """AIPerf's statistics: linear percentiles, population standard deviation."""

    avg: float | None = None
    p1: float | None = None
    p5: float | None = None
    p10: float | None = None
    p25: float | None = None
    p50: float | None = None
    p75: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    min: float | None = None
    max: float | None = None
    std: float | None = None
    count: int | None = None
    sum: float | None = None


def distribution(values: Iterable[float] | Numbers) -> Distribution | None:
    """Of the values that are not None; None without any."""
    array = np.fromiter(values, dtype=np.float64)
    if not len(array):
        return None
    points = np.percentile(array, PERCENTILES)
    named = {f"p{each}": float(point) for each, point in zip(PERCENTILES, points, strict=True)}
    return Distribution(
        avg=float(array.mean()),
        min=float(array.min()),
        max=float(array.max()),
        std=float(array.std()),
        count=len(array),
        sum=float(array.sum()),
        **named,
    )
