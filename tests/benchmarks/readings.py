"""Readings for the tests: a turn in which nothing was wrong, and changes to it."""

from dataclasses import replace
from typing import Any

from benchmarks.comparison.measure import Reading
from benchmarks.comparison.scenarios import SCENARIOS

SCENARIO = replace(SCENARIOS["relay"], clients=10, tokens=4, step_s=0.01)


def lateness(p99_s: float | None = 0.001, beats: int = 400, missed: int = 0) -> dict[str, Any]:
    return {"beats": beats, "missed": missed, "p99_s": p99_s, "max_s": p99_s}


def reading(
    *, load: dict[str, Any] | None = None, engines: dict[str, Any] | None = None, **changes: Any
) -> Reading:
    offered: dict[str, Any] = {
        "requests": 100,
        "events": 1000,
        "reads": 900,
        "connects": 10,
        "first_p50_s": 0.001,
        "first_p99_s": 0.004,
        "gap_p99_s": 0.012,
        "active_mean": 10.0,
        "failures": {},
        "lateness": lateness(),
    }
    served: dict[str, Any] = {"lateness": lateness(), "running_mean": 10.0, "seen": {}}
    served["spread"] = {"p50": 1.0, "p99": 2.0, "p100": 3.0}
    good = Reading(
        wall_s=4.0,
        router_cpu_s=0.02,
        router_rss_bytes=90_000_000,
        engine_cpu_s=0.4,
        client_cpu_s=0.4,
        machine_busy_s=1.0,
        load=offered | (load or {}),
        engines=served | (engines or {}),
    )
    return replace(good, **changes)


JOB = replace(
    SCENARIOS["healthy"],
    clients=10,
    tokens=4,
    step_s=0.01,
    decode_engines=2,
    requests=60,
    prefill_s=None,
)


def job_reading(
    *, load: dict[str, Any] | None = None, engines: dict[str, Any] | None = None, **changes: Any
) -> Reading:
    offered: dict[str, Any] = {
        "requests_per_s": 200.0,
        "middle_per_s": 240.0,
        "whole_p50_s": 0.04,
        "whole_p99_s": 0.05,
        "frozen_first_p99_s": None,
        "periods": [{"requests": 60, "first_p50_s": 0.02, "first_p99_s": 0.03}],
    }
    served: dict[str, Any] = {"arrivals": [[5, 5], [25, 25]]}
    served["periods"] = [{"fullest": 6.0, "emptiest": 4.0}]
    return reading(load=offered | (load or {}), engines=served | (engines or {}), **changes)
