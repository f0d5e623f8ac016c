"""Runs `pool` and `incident`: the gate's load on all engines; without and with a slow one."""

from collections.abc import Mapping
from typing import Any

from benchmarks.h100.engines import duty_cycle
from benchmarks.h100.stage import Stage

__all__ = ["incident", "pool"]

SLOWED = 1
"""The second engine, as in `pd-bench ab`."""


def pool(stage: Stage) -> Mapping[str, Any]:
    """Each load of the profile."""
    engines = stage.engines.need("pool")
    return {str(load.streams): stage.compare(engines, load) for load in stage.profile.loads}


def incident(stage: Stage) -> Mapping[str, Any]:
    """The first load, while one engine runs a quarter of the time."""
    engines = stage.engines.need("pool")
    with duty_cycle(engines[SLOWED]):
        return {"slowed": engines[SLOWED].url, **stage.compare(engines, stage.profile.loads[0])}
