"""The scenarios by name. Engine 0 is always one of the slowest."""

from collections.abc import Callable
from dataclasses import dataclass, replace

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

__all__ = ["SCENARIOS", "Size", "scenario"]

STREAMS_PER_ENGINE = 48
REQUESTS_PER_ENGINE = 750
"""384 streams and 6000 requests on 8 engines, as in the measurements of real routers."""

ENGINE = EngineModel()
WORKLOAD = Workload(0, 0, Lengths(32), Lengths(50))

H100 = EngineModel(
    max_num_seqs=1024,
    step_seconds=0.008,
    per_sequence_seconds=14e-6,
    prefill_tokens_per_second=50_000.0,
    max_num_batched_tokens=8192,
    kv_tokens=380_000,
)
"""Qwen3-8B in BF16: 256 streams of 128/128 tokens make about 15,000 tokens/s, and 256 prompts at
once take 0.66 s. 16 GiB of weights leave room for 380,000 tokens of 147 kB."""

H100_STREAMS, H100_REQUESTS = 256, 2048
"""For each engine: the concurrency and 8 requests per stream of the AICR validator."""


@dataclass(frozen=True, slots=True)
class Size:
    """What may be chosen in any scenario; None is the scenario's own."""

    engines: int = 8
    streams: int | None = None
    requests: int | None = None
    replicas: int | None = None


def scenario(name: str, size: Size) -> Scenario:
    """The scenario of that name and size. Raises KeyError, or ValueError for a bad size."""
    made = SCENARIOS[name](_base(name, size), size)
    work = replace(
        made.workload,
        streams=size.streams or made.workload.streams,
        requests=size.requests or made.workload.requests,
    )
    return replace(made, workload=work, replicas=size.replicas or made.replicas)


def _base(name: str, size: Size) -> Scenario:
    work = replace(
        WORKLOAD,
        streams=STREAMS_PER_ENGINE * size.engines,
        requests=REQUESTS_PER_ENGINE * size.engines,
    )
    return Scenario(name, size.engines, ENGINE, work)


_Maker = Callable[[Scenario, Size], Scenario]


def _healthy(base: Scenario, _size: Size) -> Scenario:
    return base


def _changed(*changes: Change) -> _Maker:
    return lambda base, _size: replace(base, changes=changes)


def _slow(share: int, factor: float) -> _Maker:
    """The first of `share` engines are slower from the start."""

    def make(base: Scenario, _size: Size) -> Scenario:
        slow = range(max(1, base.engines // share))
        return replace(base, changes=tuple(Speed(0.0, engine, factor) for engine in slow))

    return make


def _rolling_restart(base: Scenario, _size: Size) -> Scenario:
    """Eight waves, 25 s apart; each engine is away for 20 s, and the run is longer for it."""
    wave = max(1, -(-base.engines // 8))
    changes = tuple(Restart(5.0 + 25.0 * (n // wave), n, 20.0) for n in range(base.engines))
    work = replace(base.workload, requests=12 * base.workload.requests)
    return replace(base, workload=work, changes=changes)


def _bursts(base: Scenario, size: Size) -> Scenario:
    """Half the streams, and every 3 s as many requests at once as there would be streams."""
    streams = size.streams or base.workload.streams
    work = replace(
        base.workload,
        streams=max(1, base.workload.streams // 2),
        burst_seconds=3.0,
        burst_requests=streams,
    )
    return replace(base, workload=work)


def _heavy_tails(base: Scenario, _size: Size) -> Scenario:
    """Most are short; 1 % of the prompts have over 1600 tokens, 1 % of the answers over 500."""
    prompt, output = Lengths(100, 1.2, 16_384), Lengths(50, 1.0, 2048)
    return replace(base, workload=replace(base.workload, prompt=prompt, output=output))


def _replicas(*changes: Change) -> _Maker:
    """Three routers; answers of unequal length, so that these do not move in step."""

    def make(base: Scenario, _size: Size) -> Scenario:
        work = replace(base.workload, output=Lengths(50, 0.5, 512))
        return replace(base, workload=work, replicas=3, changes=changes)

    return make


def _h100(*changes: Change) -> _Maker:
    def make(base: Scenario, _size: Size) -> Scenario:
        work = Workload(
            requests=H100_REQUESTS * base.engines,
            streams=H100_STREAMS * base.engines,
            prompt=Lengths(128),
            output=Lengths(128),
        )
        return replace(base, model=H100, workload=work, changes=changes)

    return make


SCENARIOS: dict[str, _Maker] = {
    "healthy": _healthy,
    "slow3": _changed(Speed(0.0, 0, 3.0)),
    "slow8": _changed(Speed(0.0, 0, 8.0)),
    "freeze": _changed(Freeze(4.0, 0, 10.0)),
    "two-slow": _slow(4, 8.0),
    "mixed": _slow(2, 2.0),
    "rolling-restart": _rolling_restart,
    "bursts": _bursts,
    "heavy-tails": _heavy_tails,
    "replicas": _replicas(),
    "replicas-slow8": _replicas(Speed(0.0, 0, 8.0)),
    "h100": _h100(),
    "h100-stall": _h100(Speed(3.0, 0, 8.0)),
}
