"""What one choice of an engine costs the router: CPU time of Scheduler.lease and Lease.release."""

import time
from random import Random

from router.core.fleet.pool_monitor import ExclusionConfig
from router.core.policies import POLICIES
from router.core.values import Role
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.engine import Engine
from router.simulator.virtual.routing.policies import Asking, cached_roles
from router.simulator.virtual.routing.replica import Replica, request_of
from router.simulator.virtual.values import EngineModel, Lengths, Scenario, Workload

IN_FLIGHT = 32
"""Requests in flight on each engine meanwhile."""

ROUNDS = 5
"""Rounds, of which the best counts: a busy machine only adds time."""


def selection_microseconds(
    engines: int, policy: str, *, slow: int = 0, choices: int = 2000
) -> float:
    """CPU microseconds of one choice and its release. `slow`: number of engines that are known to
    be 8x slow.

    Raises KeyError for an unknown policy.
    """
    agenda, rng = Agenda(), Random(0)
    modelled = [Engine(EngineModel(), agenda, rng, 1) for _ in range(engines)]
    scenario = Scenario("cost", engines, EngineModel(), Workload(1, 1, Lengths(1), Lengths(1)))
    policies = dict.fromkeys(Role, POLICIES[policy])
    exclusion, roles = ExclusionConfig(), cached_roles(policy)
    replica = Replica(0, modelled, scenario, policies, rng, exclusion, Asking(), roles, agenda)
    scheduler, facts = replica.scheduler, request_of(128)
    for member in replica.members[:slow]:
        member.view.slowdown = 8.0
    held = [
        scheduler.lease(Role.DECODE, request_of(128), frozenset(), 0.0)
        for _ in range(IN_FLIGHT * engines)
    ]
    best = float("inf")
    for _ in range(ROUNDS):
        before = time.process_time()
        for _ in range(choices):
            scheduler.lease(Role.DECODE, facts, frozenset(), 0.0).release()
        best = min(best, time.process_time() - before)
    for lease in held:
        lease.release()
    return best / choices * 1e6
