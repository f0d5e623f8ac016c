"""The usual engines and requests, and scenarios of engines that differ by model, speed or role."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from router.core.values import Role
from router.simulator.virtual.values import (
    AUTO,
    Change,
    EngineModel,
    EngineSpec,
    Lengths,
    Restart,
    Scenario,
    Workload,
)

STREAMS_PER_ENGINE = 48
REQUESTS_PER_ENGINE = 750
"""384 streams and 6000 requests on 8 engines, as in the measurements of real routers."""

ENGINE = EngineModel()
WORKLOAD = Workload(0, 0, Lengths(32), Lengths(50))


@dataclass(frozen=True, slots=True)
class Size:
    """The size of any scenario; None means the scenario's own value."""

    engines: int = 8
    streams: int | None = None
    requests: int | None = None
    replicas: int | None = None
    has_peers: bool = False
    """Whether replicas report their requests and prompts to each other."""
    seed: int = 1
    """Of the loads that are drawn at random."""


def base_of(name: str, size: Size) -> Scenario:
    """A healthy cluster of that size."""
    work = replace(
        WORKLOAD,
        streams=STREAMS_PER_ENGINE * size.engines,
        requests=REQUESTS_PER_ENGINE * size.engines,
    )
    return Scenario(name, size.engines, ENGINE, work)


Maker = Callable[[Scenario, Size], Scenario]
"""Creates a scenario from the base and the chosen size."""


def changed(*changes: Change) -> Maker:
    """The base with these changes."""
    return lambda base, _size: replace(base, changes=changes)


H100 = EngineModel(
    max_num_seqs=1024,
    step_seconds=0.008,
    per_sequence_seconds=14e-6,
    prefill_tokens_per_second=50_000.0,
    max_num_batched_tokens=8192,
    kv_tokens=380_000,
)
"""Qwen3-8B in BF16: 256 streams of 128/128 tokens generate about 15,000 tokens/s, and 256 prompts
at once take 0.66 s. 16 GiB of weights leave room for 380,000 tokens of 147 kB."""

H100_STREAMS, H100_REQUESTS = 256, 2048
"""Per engine, the concurrency and 8 requests per stream of the AICR validator."""

L40S = replace(H100, step_seconds=0.024, per_sequence_seconds=42e-6, kv_tokens=120_000)
"""A third of the memory bandwidth and compute of an H100."""

DENSE = EngineModel(
    max_num_seqs=256,
    step_seconds=0.02,
    per_sequence_seconds=2e-5,
    prefill_tokens_per_second=10_000.0,
    max_num_batched_tokens=2048,
)
"""A dense model of 70B parameters in FP8 on four H100, on which prompts delay streams for long."""

LONG = 60_000
"""Prompt tokens. The KV cache holds six such prompts, as many as fit beside a 70B model."""


def h100(*changes: Change) -> Maker:
    def make(base: Scenario, _size: Size) -> Scenario:
        work = Workload(
            requests=H100_REQUESTS * base.engines,
            streams=H100_STREAMS * base.engines,
            prompt=Lengths(128),
            output=Lengths(128),
        )
        return replace(base, model=H100, workload=work, changes=changes)

    return make


def of_models(*models: EngineModel) -> Maker:
    """Engines with these models in turn."""

    def make(base: Scenario, _size: Size) -> Scenario:
        specs = tuple(EngineSpec(models[n % len(models)]) for n in range(base.engines))
        return replace(base, specs=specs)

    return make


def two_speeds(base: Scenario, size: Size) -> Scenario:
    """Half L40S, half H100, with as many streams as would half fill the H100s."""
    slow = replace(L40S, prefill_tokens_per_second=H100.prefill_tokens_per_second / 3)
    made = h100()(base, size)
    return of_models(slow, H100)(made, size)


def serving(*served: Sequence[str]) -> Maker:
    """The models that the engines list, in turn. The requests name each model in turn."""
    models = tuple(sorted({model for names in served for model in names}))

    def make(base: Scenario, _size: Size) -> Scenario:
        specs = [
            EngineSpec(base.model, serves=tuple(served[n * len(served) // base.engines]))
            for n in range(base.engines)
        ]
        # With fewer engines than sets, the last engine serves the remaining models.
        specs[-1] = replace(specs[-1], serves=tuple(sorted({*specs[-1].serves, *served[-1]})))
        known = {model for spec in specs for model in spec.serves}
        work = replace(base.workload, models=tuple(m for m in models if m in known))
        return replace(base, specs=tuple(specs), workload=work)

    return make


def disaggregated(
    prefill: EngineModel,
    prompt: Lengths,
    *,
    streams: float = 4.0,
    requests: int = 50,
    gone_at: float | None = None,
) -> Maker:
    """Half of the engines are prefill engines; from `gone_at` on these are all away.

    `streams` and `requests` are per engine.
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


def zones(crossing_factor: float) -> Maker:
    """Prefill and decode engines in two zones in turn."""

    def make(base: Scenario, size: Size) -> Scenario:
        made = disaggregated(ENGINE, Lengths(2000, 0.8, 16_384), requests=500)(base, size)
        specs = tuple(replace(spec, zone="ab"[n % 2]) for n, spec in enumerate(made.specs))
        return replace(made, specs=specs, crossing_factor=crossing_factor)

    return make


def prefill_load(share: int, load: float) -> Maker:
    """One of `share` engines is a prefill engine, and prompts arrive at `load` times the capacity
    of these.

    A transfer takes at least 20 ms: a round trip through the router, handshake and notification.
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
