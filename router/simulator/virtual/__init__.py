"""A cluster in virtual time: modelled engines, driven by the router's own fleet and policies.

    from router.net.speed_prober import needs_probe
    result = simulate(scenario("slow8", Size()), "oracle", seed=1, needs_probe=needs_probe)

Fleet, Scheduler and policies are the ones that `pd-router serve` runs, unchanged; engines, clients
and the clock are models. Nothing waits: an hour of a cluster takes as long as its events do.
"""

from router.simulator.virtual.cluster import simulate
from router.simulator.virtual.cost import selection_microseconds
from router.simulator.virtual.plots import PlotsUnavailable, plot
from router.simulator.virtual.policies import ORACLE, POLICY_NAMES
from router.simulator.virtual.results import Result
from router.simulator.virtual.scenarios import SCENARIOS, Size, scenario
from router.simulator.virtual.values import (
    Change,
    EngineModel,
    Freeze,
    Lengths,
    Restart,
    Scenario,
    Speed,
    Workload,
)

__all__ = [
    "ORACLE",
    "POLICY_NAMES",
    "SCENARIOS",
    "Change",
    "EngineModel",
    "Freeze",
    "Lengths",
    "PlotsUnavailable",
    "Restart",
    "Result",
    "Scenario",
    "Size",
    "Speed",
    "Workload",
    "plot",
    "scenario",
    "selection_microseconds",
    "simulate",
]
