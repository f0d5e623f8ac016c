"""Scenarios of arrival patterns, of slow or failing engines, and of several routers."""

import math
from dataclasses import replace

from router.simulator.virtual.scenarios.pools import Maker, Size, serving
from router.simulator.virtual.values import (
    TIMEOUTS,
    Change,
    EngineModel,
    FaultRates,
    Freeze,
    Lengths,
    Restart,
    RouterRestart,
    Scenario,
    Speed,
    Turn,
    Unread,
)


def bursts(base: Scenario, size: Size) -> Scenario:
    """Half the streams, and every 3 s a burst with as many requests as there usually are
    streams."""
    streams = size.streams or base.workload.streams
    work = replace(
        base.workload,
        streams=max(1, base.workload.streams // 2),
        burst_seconds=3.0,
        burst_requests=streams,
    )
    return replace(base, workload=work)


def heavy_tails(base: Scenario, _size: Size) -> Scenario:
    """Most are short; 1 % of the prompts have over 1600 tokens, 1 % of the answers over 500."""
    prompt, output = Lengths(100, 1.2, 16_384), Lengths(50, 1.0, 2048)
    return replace(base, workload=replace(base.workload, prompt=prompt, output=output))


def open_loop(base: Scenario, _size: Size) -> Scenario:
    """No streams; a Poisson process with three quarters of the engines' capacity."""
    model = base.model
    per_engine = model.max_num_seqs / (model.step_seconds * base.workload.output.mean)
    work = replace(base.workload, streams=0, rate=0.75 * per_engine * base.engines)
    return replace(base, workload=work)


def overload(base: Scenario, size: Size) -> Scenario:
    """An open loop with twice the engines' capacity."""
    made = open_loop(base, size)
    work = replace(made.workload, rate=2.0 / 0.75 * made.workload.rate)
    return replace(made, workload=replace(work, requests=4 * work.requests))


WAVE_ENGINE = EngineModel(
    prefill_tokens_per_second=math.inf,
    jitter=0.0,
    is_on_grid=True,
    first_token_seconds=0.04,
)


def waves(base: Scenario, _size: Size) -> Scenario:
    """Steps on a grid of 20 ms without jitter, so that requests that begin together end
    together."""
    return replace(base, model=WAVE_ENGINE, changes=(Speed(0.0, 0, 8.0),))


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
    return replace(base, changes=(Freeze(4.0, 0, math.inf),), timeouts=replace(TIMEOUTS, idle=30.0))


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
        changes = tuple(FaultRates(2.0, n, failed=1.0, model="b") for n in failing)
        return replace(made, changes=changes)

    return make


POISON = Turn(64, 50, tuple(range(1, 5)))
"""Four blocks, by which cache-aware policies send it to the same engines again."""


def poisoned_prompt(base: Scenario, _size: Size) -> Scenario:
    """One request in twenty has the same prompt, and each engine answers it with a 500. Engines
    have prefix caches, so that it is sent to the same engines again."""
    model = replace(base.model, block_size=16)
    work = replace(base.workload, poison=POISON, poison_share=0.05)
    changes = tuple(
        FaultRates(0.0, n, failed=1.0, is_poison_only=True) for n in range(base.engines)
    )
    return replace(base, model=model, workload=work, changes=changes)


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
