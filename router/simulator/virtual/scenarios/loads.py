"""Scenarios of arrival patterns."""

import math
from dataclasses import replace

from router.simulator.virtual.scenarios.base import Size
from router.simulator.virtual.values import EngineModel, Lengths, Scenario, Speed


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
