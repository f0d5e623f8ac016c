"""Stored runs for the tests: as little of a file as the results read."""

from dataclasses import asdict, replace
from typing import Any

from benchmarks.comparison.scenarios import SCENARIOS
from benchmarks.reporting.stored import Stored

VERSIONS = {"python": "3.11.7", "uvloop": "0.23.0", "vllm-router": "0.1.17"}


def run(
    name: str,
    figures: dict[str, list[dict[str, float | None]]],
    *,
    at: str = "2026-11-21T06:00:00+00:00",
    void: dict[str, list[int]] | None = None,
    **load: Any,
) -> Stored:
    """A run of a scenario's row with these figures by router and round; `void` rounds by router."""
    scenario = replace(SCENARIOS[name], **load)
    turns = [
        {
            "router": router,
            "round": number,
            "void": ["late"] if number in (void or {}).get(router, []) else [],
            "figures": each,
        }
        for router, rounds in figures.items()
        for number, each in enumerate(rounds)
    ]
    body = {
        "command": f"python -m benchmarks compare --scenario {name}",
        "at": at,
        "machine": {"cpu": "a CPU", "cores": 2},
        "versions": VERSIONS,
        "revision": {"commit": "0123456789abcdef", "router_changed": True, "router": "compiled"},
        "scenario": asdict(scenario),
        "missing": {"nginx": "nginx is not installed"},
        "routers": list(figures),
        "turns": turns,
    }
    return Stored(f"{name}-{at}.json", body)


def chunks(*costs: float, **more: float) -> list[dict[str, float | None]]:
    """Figures of some rounds that differ in their CPU per chunk."""
    return [{"cpu_us_per_chunk": cost, **more} for cost in costs]
