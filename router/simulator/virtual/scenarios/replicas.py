"""Scenarios with several routers, or with several worker processes of one router."""

from dataclasses import replace

from router.simulator.virtual.scenarios.base import Maker, Size
from router.simulator.virtual.values import Change, Lengths, RouterRestart, Scenario, Speed


def three(*changes: Change) -> Maker:
    """Three routers, with answers of unequal length, so that the routers do not run in step."""

    def make(base: Scenario, _size: Size) -> Scenario:
        work = replace(base.workload, output=Lengths(50, 0.5, 512))
        return replace(base, workload=work, replicas=3, changes=changes)

    return make


def workers(count: int, *changes: Change) -> Maker:
    """So many worker processes of one router, with the load of the scenarios with three routers."""

    def make(base: Scenario, size: Size) -> Scenario:
        return replace(three(*changes)(base, size), replicas=count, has_workers=True)

    return make


def few_slots(base: Scenario, _size: Size) -> Scenario:
    """Three routers, engines with eight slots, and requests that arrive at random and need 85 % of
    the slots. The less a router knows of the others' requests, the more of its own wait while
    another engine has a free slot."""
    model = replace(base.model, max_num_seqs=8)
    output = Lengths(60, 0.3, 240)
    rate = 0.85 * model.max_num_seqs / (model.step_seconds * output.mean) * base.engines
    work = replace(base.workload, streams=0, rate=rate, output=output)
    return replace(base, model=model, workload=work, replicas=3)


def router_restart(base: Scenario, _size: Size) -> Scenario:
    """One of three routers loses its state while an engine is slow."""
    made = three(Speed(0.0, 0, 8.0))(base, _size)
    return replace(made, changes=(*made.changes, RouterRestart(4.0, 0)))
