"""A cluster in virtual time: modelled engines, driven by the router's own fleet and policies.

    result = simulate(scenario("slow8", Size()), "oracle", seed=1)

Fleet, Scheduler, policies, plans and the rules of retries and probes are the ones that
`pd-router serve` runs, unchanged; engines, clients, sockets and the clock are models. Nothing
waits: an hour of a cluster takes as long as its events do.
"""

from router.simulator.virtual.cluster import simulate
from router.simulator.virtual.reporting.cost import selection_microseconds
from router.simulator.virtual.reporting.plots import PlotsUnavailable, plot
from router.simulator.virtual.reporting.results import EngineResult, Result
from router.simulator.virtual.routing.policies import ORACLE, POLICY_NAMES, policies_for
from router.simulator.virtual.scenarios.base import Size
from router.simulator.virtual.scenarios.catalogue import SCENARIOS, replayed, scenario
from router.simulator.virtual.values import (
    AUTO,
    Change,
    EngineModel,
    EngineSpec,
    Faults,
    Freeze,
    Lengths,
    Restart,
    RouterRestart,
    Scenario,
    Session,
    Speed,
    Timeouts,
    Turn,
    Unread,
    Workload,
)

__all__ = [
    "AUTO",
    "ORACLE",
    "POLICY_NAMES",
    "SCENARIOS",
    "Change",
    "EngineModel",
    "EngineResult",
    "EngineSpec",
    "Faults",
    "Freeze",
    "Lengths",
    "PlotsUnavailable",
    "Restart",
    "Result",
    "RouterRestart",
    "Scenario",
    "Session",
    "Size",
    "Speed",
    "Timeouts",
    "Turn",
    "Unread",
    "Workload",
    "plot",
    "policies_for",
    "replayed",
    "scenario",
    "selection_microseconds",
    "simulate",
]
