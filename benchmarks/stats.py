"""From readings to figures: medians with their spread, and ratios paired round by round.

Pure. Absence is None. It refuses to know how a reading was made.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.measure import Reading

Figures = Mapping[str, float | None]


@dataclass(frozen=True)
class Metric:
    """One line of the report."""

    key: str
    title: str
    digits: int
    streams_only: bool = False


METRICS = (
    Metric("cpu_us_per_chunk", "CPU µs per chunk", 1, streams_only=True),
    Metric("cpu_us_per_request", "CPU µs per request", 0),
    Metric("router_cores", "router CPU, cores", 2),
    Metric("requests_per_s", "requests/s", 0),
    Metric("chunks_per_s", "chunks/s", 0, streams_only=True),
    # What is merged on the way is cheaper: chunks cost the same only where this is the same.
    Metric("reads_per_chunk", "client reads per chunk", 2, streams_only=True),
    Metric("ttft_p50_ms", "TTFT p50, ms", 1),
    Metric("ttft_p99_ms", "TTFT p99, ms", 1),
    Metric("gap_p99_ms", "gap p99, ms", 1, streams_only=True),
    Metric("rss_mb", "peak RSS, MB", 0),
    Metric("failures", "failures", 0),
)


@dataclass(frozen=True)
class Summary:
    """A median and what it was taken from."""

    median: float
    low: float
    high: float
    rounds: int


def figures(reading: Reading) -> dict[str, float | None]:
    """The figures of one turn, one for each of METRICS."""
    load, wall, cpu = reading.load, reading.wall_s, reading.router_cpu_s
    return {
        "cpu_us_per_chunk": _per(cpu, load["events"], 1e6),
        "cpu_us_per_request": _per(cpu, load["requests"], 1e6),
        "router_cores": _per(cpu, wall),
        "requests_per_s": load["requests"] / wall,
        "chunks_per_s": load["events"] / wall if load["events"] else None,
        "reads_per_chunk": _per(load["reads"], load["events"]),
        "ttft_p50_ms": _times(load["first_p50_s"], 1e3),
        "ttft_p99_ms": _times(load["first_p99_s"], 1e3),
        "gap_p99_ms": _times(load["gap_p99_s"], 1e3),
        "rss_mb": _times(reading.router_rss_bytes, 1e-6),
        "failures": float(sum(load["failures"].values())),
    }


def _per(value: float | None, count: float, scale: float = 1.0) -> float | None:
    return None if value is None or not count else value / count * scale


def _times(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def summarise(values: Iterable[float | None]) -> Summary | None:
    """Median and range of what is there."""
    there = np.asarray([value for value in values if value is not None], dtype=float)
    if not len(there):
        return None
    low, high = float(there.min()), float(there.max())
    return Summary(float(np.median(there)), low, high, len(there))


def summaries(rounds: Sequence[Figures | None]) -> dict[str, Summary | None]:
    """One router's summary of each metric over its valid rounds (None: void)."""
    valid = [each for each in rounds if each is not None]
    return {metric.key: summarise(each[metric.key] for each in valid) for metric in METRICS}


def ratios(
    rounds: Sequence[Figures | None], base: Sequence[Figures | None]
) -> dict[str, Summary | None]:
    """How many times the base each metric is, paired by round: drift of the machine cancels."""
    pairs = [(a, b) for a, b in zip(rounds, base, strict=True) if a is not None and b is not None]
    return {
        metric.key: summarise(_ratio(a[metric.key], b[metric.key]) for a, b in pairs)
        for metric in METRICS
    }


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base
