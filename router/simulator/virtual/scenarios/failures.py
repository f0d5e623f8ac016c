"""Scenarios with slow or failing engines, or with disturbing clients and prompts."""

import math
from dataclasses import replace

from router.simulator.virtual.scenarios.base import Maker, Size
from router.simulator.virtual.scenarios.pools import serving
from router.simulator.virtual.values import (
    Faults,
    Freeze,
    Lengths,
    Restart,
    Scenario,
    Speed,
    Timeouts,
    Turn,
    Unread,
)


def slow(share: int, factor: float) -> Maker:
    """One in `share` engines, the first ones, are slower from the start."""

    def make(base: Scenario, _size: Size) -> Scenario:
        engines = range(max(1, base.engines // share))
        return replace(base, changes=tuple(Speed(0.0, engine, factor) for engine in engines))

    return make


def rolling_restart(base: Scenario, _size: Size) -> Scenario:
    """Eight waves, 25 s apart. Each engine is away for 20 s, and the run is longer for that
    reason."""
    wave = max(1, -(-base.engines // 8))
    changes = tuple(Restart(5.0 + 25.0 * (n // wave), n, 20.0) for n in range(base.engines))
    work = replace(base.workload, requests=12 * base.workload.requests)
    return replace(base, workload=work, changes=changes)


def alternating(base: Scenario, _size: Size) -> Scenario:
    """Engine 0 alternates between slow and fast every 5 s."""
    changes = tuple(Speed(5.0 * n, 0, 8.0 if n % 2 else 1.0) for n in range(1, 9))
    return replace(base, changes=changes)


def hung_core(base: Scenario, _size: Size) -> Scenario:
    """The API responds, accepts requests and is healthy, but nothing is ever computed."""
    return replace(base, changes=(Freeze(4.0, 0, math.inf),), timeouts=Timeouts(idle=30.0))


def all_slow(base: Scenario, _size: Size) -> Scenario:
    """From 3 s on every engine takes eight times as long, so none is slower than its pool."""
    return replace(base, changes=tuple(Speed(3.0, n, 8.0) for n in range(base.engines)))


def slow_clients(*, is_everywhere: bool) -> Maker:
    """Every 4 s clients stop reading for 3 s: all with a stream on engine 0, or a third of those on
    each engine. Answers are long, because only these fill the buffers and make an engine wait."""

    def make(base: Scenario, _size: Size) -> Scenario:
        work = replace(
            base.workload, requests=base.workload.requests // 3, output=Lengths(400, 0.3, 1200)
        )
        places, share = (base.engines, 1 / 3) if is_everywhere else (1, 1.0)
        changes = tuple(
            Unread(4.0 * turn, place, 3.0, share)
            for turn in range(1, 13)
            for place in range(places)
        )
        return replace(base, workload=work, changes=changes)

    return make


def model_fails(*, is_everywhere: bool) -> Maker:
    """Each engine serves two models, of which the second one starts to fail, as a broken adapter
    does: on engine 0 or on all."""

    def make(base: Scenario, size: Size) -> Scenario:
        made = serving("ab")(base, size)
        failing = range(base.engines if is_everywhere else 1)
        changes = tuple(Faults(2.0, n, failed=1.0, model="b") for n in failing)
        return replace(made, changes=changes)

    return make


POISON = Turn(64, 50, tuple(range(1, 5)))
"""Four blocks, by which cache-aware policies send it to the same engines again."""


def poisoned_prompt(base: Scenario, _size: Size) -> Scenario:
    """One request in twenty has the same prompt, and each engine answers it with a 500. Engines
    have prefix caches, so that it is sent to the same engines again."""
    model = replace(base.model, block_size=16)
    work = replace(base.workload, poison=POISON, poison_share=0.05)
    changes = tuple(Faults(0.0, n, failed=1.0, is_poison_only=True) for n in range(base.engines))
    return replace(base, model=model, workload=work, changes=changes)
