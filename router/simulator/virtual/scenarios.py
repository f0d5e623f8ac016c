"""The scenarios by name. Engine 0 is always one of the slowest; prefill engines come last."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from router.core.values import Role
from router.simulator.virtual.prefix_scenarios import LOADS, MOONCAKE_ENGINE, Load, of_sessions
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
    has_peers: bool = False
    """Whether replicas tell each other of their requests and prompts."""


def scenario(name: str, size: Size) -> Scenario:
    """The scenario of that name and size. Raises KeyError, or ValueError for a bad size."""
    made = SCENARIOS[name](_base(name, size), size)
    streams = made.workload.streams
    work = replace(
        made.workload,
        streams=(size.streams or streams) if streams else 0,
        requests=size.requests or made.workload.requests,
    )
    return _with_replicas(replace(made, workload=work), size)


def replayed(name: str, size: Size, sessions: tuple[Session, ...]) -> Scenario:
    """A trace in Mooncake's format on engines that it fits. Raises ValueError."""
    made = of_sessions(_base(name, size), MOONCAKE_ENGINE, sessions)
    return _with_replicas(made, size)


def _with_replicas(made: Scenario, size: Size) -> Scenario:
    replicas = size.replicas or made.replicas
    return replace(made, replicas=replicas, has_peers=size.has_peers and not made.has_workers)


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


def _workers(count: int, *changes: Change) -> _Maker:
    """As many worker processes of one router, under the same load as three routers."""

    def make(base: Scenario, size: Size) -> Scenario:
        return replace(_replicas(*changes)(base, size), replicas=count, has_workers=True)

    return make


def _few_slots(base: Scenario, _size: Size) -> Scenario:
    """Three routers, engines with eight slots, and requests that come at random and need 85 % of
    them: who knows less of the others' requests lets more of his wait beside a free slot."""
    model = replace(base.model, max_num_seqs=8)
    output = Lengths(60, 0.3, 240)
    rate = 0.85 * model.max_num_seqs / (model.step_seconds * output.mean) * base.engines
    work = replace(base.workload, streams=0, rate=rate, output=output)
    return replace(base, model=model, workload=work, replicas=3)


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


# Engines that differ.


def _pool(*models: EngineModel) -> _Maker:
    """These models in turn."""

    def make(base: Scenario, _size: Size) -> Scenario:
        specs = tuple(EngineSpec(models[n % len(models)]) for n in range(base.engines))
        return replace(base, specs=specs)

    return make


L40S = replace(H100, step_seconds=0.024, per_sequence_seconds=42e-6, kv_tokens=120_000)
"""A third of the memory bandwidth of an H100, and of its arithmetic."""


def _two_speeds(base: Scenario, size: Size) -> Scenario:
    """Half L40S, half H100, and as many streams as would keep the H100s half full."""
    slow = replace(L40S, prefill_tokens_per_second=H100.prefill_tokens_per_second / 3)
    made = _h100()(base, size)
    return _pool(slow, H100)(made, size)


def _serving(*served: Sequence[str]) -> _Maker:
    """What the engines list, in turn; the requests ask for each model in turn."""
    models = tuple(sorted({model for names in served for model in names}))

    def make(base: Scenario, _size: Size) -> Scenario:
        specs = [
            EngineSpec(base.model, serves=tuple(served[n * len(served) // base.engines]))
            for n in range(base.engines)
        ]
        # With fewer engines than sets the last models are served by the last engine.
        specs[-1] = replace(specs[-1], serves=tuple(sorted({*specs[-1].serves, *served[-1]})))
        known = {model for spec in specs for model in spec.serves}
        work = replace(base.workload, models=tuple(m for m in models if m in known))
        return replace(base, specs=tuple(specs), workload=work)

    return make


# Prefill engines.

LONG = 60_000
"""Prompt tokens, in a KV cache that holds six of them: as many as fit beside a 70B model."""


def _disaggregated(
    prefill: EngineModel,
    prompt: Lengths,
    *,
    streams: float = 4.0,
    requests: int = 50,
    gone_at: float | None = None,
) -> _Maker:
    """Half of the engines prefill; with `gone_at` all of them are away from then on.

    `streams` and `requests` are for each engine.
    """

    def make(base: Scenario, size: Size) -> Scenario:
        prefills = base.engines // 2
        decodes = base.engines - prefills
        specs = (
            *(EngineSpec(base.model) for _ in range(decodes)),
            *(EngineSpec(prefill, Role.PREFILL) for _ in range(prefills)),
        )
        work = replace(
            base.workload,
            prompt=prompt,
            streams=max(1, round(streams * base.engines)),
            requests=requests * base.engines,
        )
        changes: tuple[Change, ...] = ()
        if gone_at is not None:
            changes = tuple(Restart(gone_at, decodes + n, 1e6) for n in range(prefills))
        return replace(base, specs=specs, workload=work, changes=changes, threshold=512)

    return make


DENSE = EngineModel(
    max_num_seqs=256,
    step_seconds=0.02,
    per_sequence_seconds=2e-5,
    prefill_tokens_per_second=10_000.0,
    max_num_batched_tokens=2048,
)
"""A dense model of 70B parameters in FP8 on four H100: prompts hold its streams up for long."""


def _prefill_load(share: int, load: float) -> _Maker:
    """One of `share` engines prefills, and prompts come that need `load` of what these can compute.

    A transfer takes 20 ms and more: a round trip through the router, handshake and notification.
    """

    def make(base: Scenario, size: Size) -> Scenario:
        prefills = base.engines // share
        decodes = base.engines - prefills
        specs = (
            *(EngineSpec(DENSE) for _ in range(decodes)),
            *(
                EngineSpec(replace(DENSE, max_num_batched_tokens=8192), Role.PREFILL)
                for _ in range(prefills)
            ),
        )
        prompt = Lengths(1500, 1.0, 32_000)
        tokens = load * max(1, prefills) * DENSE.prefill_tokens_per_second
        work = replace(
            base.workload,
            streams=0,
            rate=tokens / prompt.mean,
            requests=size.requests or 375 * base.engines,
            prompt=prompt,
            output=Lengths(150, 0.5, 1000),
        )
        return replace(base, specs=specs, workload=work, threshold=AUTO, transfer_seconds=0.02)

    return make


# Engines and routers that fail.


def _alternating(base: Scenario, _size: Size) -> Scenario:
    """Engine 0 is slow and fast in turn, 5 s each."""
    changes = tuple(Speed(5.0 * n, 0, 8.0 if n % 2 else 1.0) for n in range(1, 9))
    return replace(base, changes=changes)


def _hung_core(base: Scenario, _size: Size) -> Scenario:
    """The API answers, takes requests on and is healthy; nothing is ever computed."""
    return replace(base, changes=(Freeze(4.0, 0, math.inf),), timeouts=Timeouts(idle=30.0))


def _all_slow(base: Scenario, _size: Size) -> Scenario:
    """From a moment on every engine takes eight times as long: nobody is slow then."""
    return replace(base, changes=tuple(Speed(3.0, n, 8.0) for n in range(base.engines)))


def _open_loop(base: Scenario, _size: Size) -> Scenario:
    """No streams: a Poisson process of three quarters of what the engines can serve."""
    model = base.model
    per_engine = model.max_num_seqs / (model.step_seconds * base.workload.output.mean)
    work = replace(base.workload, streams=0, rate=0.75 * per_engine * base.engines)
    return replace(base, workload=work)


def _router_restart(base: Scenario, _size: Size) -> Scenario:
    """One of three routers loses all that it knows while an engine is slow."""
    made = _replicas(Speed(0.0, 0, 8.0))(base, _size)
    return replace(made, changes=(*made.changes, RouterRestart(4.0, 0)))


def _slow_clients(*, is_everywhere: bool) -> _Maker:
    """Every 4 s clients stop reading for 3 s: all with a stream on engine 0, or a third of those on
    each. Answers are long, for only these fill the buffers on the way and make an engine wait."""

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


def _model_fails(*, is_everywhere: bool) -> _Maker:
    """Each engine serves two models; the second one fails from a moment on, as a broken adapter
    does: on engine 0, or on each."""

    def make(base: Scenario, size: Size) -> Scenario:
        made = _serving("ab")(base, size)
        failing = range(base.engines if is_everywhere else 1)
        changes = tuple(Faults(2.0, n, failed=1.0, model="b") for n in failing)
        return replace(made, changes=changes)

    return make


POISON = Turn(64, 50, tuple(range(1, 5)))
"""Four blocks, which policies know again and send where they were sent before."""


def _poisoned_prompt(base: Scenario, _size: Size) -> Scenario:
    """One request in twenty has the same prompt, and each engine answers it with a 500. Engines
    have prefix caches, so that it is sent to the same engines again."""
    model = replace(base.model, block_size=16)
    work = replace(base.workload, poison=POISON, poison_share=0.05)
    changes = tuple(Faults(0.0, n, failed=1.0, is_poison_only=True) for n in range(base.engines))
    return replace(base, model=model, workload=work, changes=changes)


WAVE_ENGINE = EngineModel(
    prefill_tokens_per_second=math.inf,
    jitter=0.0,
    is_on_grid=True,
    first_token_seconds=0.04,
)


def _waves(base: Scenario, _size: Size) -> Scenario:
    """Steps on a grid of 20 ms, no chance: requests that begin together end together, for ever."""
    return replace(base, model=WAVE_ENGINE, changes=(Speed(0.0, 0, 8.0),))


# Prompts with a beginning in common.


def _loaded(load: Load) -> _Maker:
    return lambda base, size: load.scenario(base, size.requests)


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
    "replicas-few-slots": _few_slots,
    "replicas-slow8": _replicas(Speed(0.0, 0, 8.0)),
    **{f"workers-{count}": _workers(count) for count in (1, 2, 4)},
    **{f"workers-{count}-slow8": _workers(count, Speed(0.0, 0, 8.0)) for count in (1, 2, 4)},
    "h100": _h100(),
    "h100-stall": _h100(Speed(3.0, 0, 8.0)),
    "waves": _waves,
    "open-loop": _open_loop,
    "alternating": _alternating,
    "all-slow": _all_slow,
    "two-speeds": _two_speeds,
    "mixed-slots": _pool(replace(ENGINE, max_num_seqs=32), replace(ENGINE, max_num_seqs=128)),
    "two-models": _serving("a", "b"),
    "three-models": _serving("a", "ab", "bc", "c"),
    "hung-core": _hung_core,
    "every-stream-breaks": _changed(Faults(2.0, 0, broken=1.0)),
    "fails-20-percent": _changed(Faults(2.0, 0, failed=0.2)),
    "model-fails": _model_fails(is_everywhere=True),
    "model-fails-on-one": _model_fails(is_everywhere=False),
    "poisoned-prompt": _poisoned_prompt,
    "refuses": _changed(Faults(2.0, 0, refused=0.5)),
    "slow-clients": _slow_clients(is_everywhere=False),
    "slow-clients-everywhere": _slow_clients(is_everywhere=True),
    "restart": _changed(Restart(4.0, 0, 5.0)),
    "router-restart": _router_restart,
    "disaggregated": _disaggregated(ENGINE, Lengths(2000, 0.8, 16_384)),
    "slow-prefills": _disaggregated(
        replace(ENGINE, prefill_tokens_per_second=2000.0),
        Lengths(20_000),
        streams=0.5,
        requests=10,
    ),
    **{
        f"{name}-{percent}": _prefill_load(share, percent / 100)
        for name, share in (("2p6d", 4), ("4p4d", 2))
        for percent in (30, 90, 150)
    },
    "prefill-pool-gone": _disaggregated(ENGINE, Lengths(LONG), gone_at=30.0),
    **{name: _loaded(load) for name, load in LOADS.items()},
}
