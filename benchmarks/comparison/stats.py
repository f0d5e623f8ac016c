"""From readings to figures: medians with their spread, and ratios paired round by round.

Pure. Absence is None.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.comparison.bound import bound
from benchmarks.comparison.measure import Reading
from benchmarks.comparison.scenarios import Scenario
from benchmarks.distributions import Summary, summarise
from benchmarks.engines import shares
from benchmarks.engines.speed import frozen, recovery

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
    Metric("stall_ms", "longest loop stall, ms", 1),
    Metric("stalls_over_20ms", "loop stalls over 20 ms", 0),
    Metric("spread_p50", "streams, fullest less emptiest engine, p50", 0, streams_only=True),
    Metric("spread_p99", "streams, fullest less emptiest engine, p99", 0, streams_only=True),
    Metric("failures", "failures", 0),
)

JOB_METRICS = (
    Metric("requests_per_s", "requests/s", 0),
    Metric("middle_per_s", "requests/s, steady middle", 0),
    Metric("of_bound", "requests/s of the bound", 2),
    Metric("whole_p50_ms", "end-to-end p50, ms", 0),
    Metric("whole_p99_ms", "end-to-end p99, ms", 0),
    Metric("ttft_p50_ms", "TTFT p50, ms", 1),
    Metric("ttft_p99_ms", "TTFT p99, ms", 1),
    Metric("failures", "failures", 0),
    Metric("cpu_us_per_request", "CPU µs per request", 0),
    Metric("router_cores", "router CPU, cores", 2),
    Metric("rss_mb", "peak RSS, MB", 0),
    Metric("stall_ms", "longest loop stall, ms", 1),
    Metric("stalls_over_20ms", "loop stalls over 20 ms", 0),
)
ACCEPT_METRIC = Metric("accept_p99_ms", "wait before the accept p99, ms", 1)
SATURATED_METRICS = (*JOB_METRICS, ACCEPT_METRIC)
# One request per client: rates and a steady middle have no meaning.
BURST_METRICS = tuple(
    metric
    for metric in SATURATED_METRICS
    if metric.key not in {"requests_per_s", "middle_per_s", "of_bound"}
)
FREEZE_METRICS = (Metric("frozen_ttft_p99_ms", "TTFT p99 of those sent in the freeze, ms", 1),)
RECOVERY_METRICS = (
    Metric("back_after_s", "s from recovery to 0.8 of the fair share", 0),
    Metric("overshoot", "most over the fair share", 2),
)


ADDED_METRIC = Metric("added_ttft_p50_ms", "TTFT p50 over direct, ms", 2)
SLOW_METRIC = Metric("growth_kib_per_slow", "RSS growth in the window, KiB per slow client", 1)
OPEN_METRIC = Metric("kib_per_stream", "RSS per open stream, KiB", 1)


def metrics(scenario: Scenario) -> tuple[Metric, ...]:
    """The lines of the report on a scenario: its own figure comes first."""
    if scenario.burst:
        return SATURATED_METRICS if scenario.saturated else BURST_METRICS
    if not scenario.requests:
        common = tuple(each for each in METRICS if scenario.stream or not each.streams_only)
        return _own(scenario) + common
    extra = FREEZE_METRICS if frozen(scenario.changes) else ()
    return JOB_METRICS + extra + (RECOVERY_METRICS if recovery(scenario.changes) else ())


def _own(scenario: Scenario) -> tuple[Metric, ...]:
    own = (
        (scenario.over_direct, ADDED_METRIC),
        (bool(scenario.slow_clients), SLOW_METRIC),
        (scenario.endless, OPEN_METRIC),
    )
    return tuple(metric for applies, metric in own if applies)


def figures(reading: Reading, scenario: Scenario) -> dict[str, float | None]:
    """The figures of one turn, one for each metric of the scenario."""
    if scenario.requests:
        return job_figures(reading, scenario) | _inside(reading) | _accepted(reading, scenario)
    return window_figures(reading) | _memory(reading, scenario) | _inside(reading)


def _inside(reading: Reading) -> dict[str, float | None]:
    seen = reading.stalls
    return {
        "stall_ms": _times(seen.max_s, 1e3) if seen else None,
        "stalls_over_20ms": seen.over if seen else None,
    }


def _accepted(reading: Reading, scenario: Scenario) -> dict[str, float | None]:
    """If clients connect during the turn: their wait until the router accepts them."""
    seen = reading.stalls
    wait_s = seen.accept_p99_s if seen else None
    return {ACCEPT_METRIC.key: _times(wait_s, 1e3)} if scenario.burst else {}


def _memory(reading: Reading, scenario: Scenario) -> dict[str, float | None]:
    idle, opened = reading.router_rss_idle_bytes, reading.router_rss_open_bytes
    closed = reading.router_rss_close_bytes
    found = {}
    if scenario.endless:
        found["kib_per_stream"] = _grown(idle, closed, scenario.clients)
    if scenario.slow_clients:
        found["growth_kib_per_slow"] = _grown(opened, closed, scenario.slow_clients)
    return found


def _grown(before: int | None, after: int | None, count: int) -> float | None:
    return None if before is None or after is None else (after - before) / count / 1024


def over_direct(
    rounds: Sequence[Figures | None], direct: Sequence[Figures | None]
) -> list[Figures | None]:
    """The figures with the difference to the direct connection's TTFT p50, paired by round."""
    found: list[Figures | None] = []
    for mine, base in zip(rounds, direct, strict=True):
        if mine is None:
            found.append(None)
            continue
        with_it, without = mine["ttft_p50_ms"], base["ttft_p50_ms"] if base else None
        added = None if with_it is None or without is None else with_it - without
        found.append({**mine, ADDED_METRIC.key: added})
    return found


def window_figures(reading: Reading) -> dict[str, float | None]:
    """The figures of one timed window, one for each of METRICS."""
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
        "spread_p50": reading.engines["spread"]["p50"],
        "spread_p99": reading.engines["spread"]["p99"],
        "failures": float(sum(load["failures"].values())),
    }


def job_figures(reading: Reading, scenario: Scenario) -> dict[str, float | None]:
    """The figures of one finite job, one for each of its metrics."""
    load = reading.load
    found: dict[str, float | None] = {
        "requests_per_s": load["requests_per_s"],
        "middle_per_s": load["middle_per_s"],
        "of_bound": _per(load["requests_per_s"], bound(scenario)),
        "whole_p50_ms": _times(load["whole_p50_s"], 1e3),
        "whole_p99_ms": _times(load["whole_p99_s"], 1e3),
        "ttft_p50_ms": _times(load["first_p50_s"], 1e3),
        "ttft_p99_ms": _times(load["first_p99_s"], 1e3),
        "failures": float(sum(load["failures"].values())),
        "cpu_us_per_request": _per(reading.router_cpu_s, load["requests"], 1e6),
        "router_cores": _per(reading.router_cpu_s, reading.wall_s),
        "rss_mb": _times(reading.router_rss_bytes, 1e-6),
    }
    if frozen(scenario.changes):
        found["frozen_ttft_p99_ms"] = _times(load["frozen_first_p99_s"], 1e3)
    if back := returned(reading, scenario):
        found |= {key: back[key] for key in ("back_after_s", "overshoot")}
    return found


def returned(reading: Reading, scenario: Scenario) -> dict[str, Any] | None:
    """How the recovered engine was used again, second by second; None where none recovered."""
    change = recovery(scenario.changes)
    if change is None:
        return None
    decode = reading.engines["arrivals"][: scenario.decode_engines]
    # The engine changes at this time: a second in which it was slow for a part does not count.
    return shares.returned(shares.share(decode, change.engine, math.ceil(change.at_s)))


def _per(value: float | None, count: float, scale: float = 1.0) -> float | None:
    return None if value is None or not count else value / count * scale


def _times(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def summaries(rounds: Sequence[Figures | None], keys: Iterable[str]) -> dict[str, Summary | None]:
    """One router's summary of each metric over its valid rounds (None: void)."""
    valid = [each for each in rounds if each is not None]
    return {key: summarise(each.get(key) for each in valid) for key in keys}


def ratios(
    rounds: Sequence[Figures | None], base: Sequence[Figures | None], keys: Iterable[str]
) -> dict[str, Summary | None]:
    """How many times the base each metric is, paired by round: drift of the machine cancels."""
    pairs = [(a, b) for a, b in zip(rounds, base, strict=True) if a is not None and b is not None]
    return {key: summarise(_ratio(a.get(key), b.get(key)) for a, b in pairs) for key in keys}


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base
