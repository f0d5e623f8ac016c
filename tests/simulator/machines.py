"""Machines for the pure tests: made in a line, run by a clock that is typed in."""

from collections.abc import Iterable
from typing import Any

from router.simulator.config import EngineConfig
from router.simulator.model.language import Language
from router.simulator.model.machine import Machine
from router.simulator.model.sequence import Output, Prompt, RemoteRead, Sampling, Sequence

SIZE = 16
LANGUAGE = Language("sim", 0)


def machine(**config: Any) -> Machine:
    """An engine of 64 blocks, without time unless it is given."""
    values = {"total_blocks": 64, "max_model_len": 1024, **config}
    return Machine(EngineConfig(**values), "engine")


def tokens(count: int, seed: int = 0) -> list[int]:
    """A prompt of so many tokens; another seed gives one that shares no block."""
    return [97 + (seed * 7 + place * (seed + 3)) % 26 for place in range(count)]


def sequence(
    count: int = 40,
    answer: int = 4,
    *,
    seed: int = 0,
    prompt: list[int] | None = None,
    params: dict[str, Any] | None = None,
    keep: bool = False,
    name: str = "r",
    salt: str = "",
) -> Sequence:
    whole = Prompt.of(prompt or tokens(count, seed), LANGUAGE, SIZE, salt)
    remote = RemoteRead.parse(params) if params else None
    return Sequence(name, whole, Sampling(max_tokens=answer), remote=remote, keep=keep)


def submit(engine: Machine, *sequences: Sequence, now: float = 0.0) -> None:
    for each in sequences:
        engine.submit([each], now)


def run(engine: Machine, now: float = 0.0) -> tuple[float, list[Output]]:
    """Step until there is no work. Returns the time and the outputs."""
    outputs: list[Output] = []
    while (ends := engine.begin(now)) is not None:
        now = ends
        outputs += engine.finish(now)
    return now, outputs


def generated(each: Sequence) -> list[int]:
    return each.tokens[len(each.prompt) :]


def of(each: Sequence, outputs: Iterable[Output]) -> list[Output]:
    return [output for output in outputs if output.sequence is each]


def prefill(engine: Machine, now: float = 0.0, **options: Any) -> dict[str, Any]:
    """Run a prefill; the KV parameters of its answer."""
    each = sequence(answer=1, keep=True, **options)
    submit(engine, each, now=now)
    run(engine, now)
    assert each.kv_params is not None
    return each.kv_params


def pull(source: Machine, target: Machine, now: float = 0.0) -> Sequence:
    """Carry the KV cache over for the one sequence that waits for it."""
    assert target.begin(now) is None
    (each,) = target.loads
    target.loads = []
    assert each.remote is not None
    blocks = target.wanted(each)
    remote = each.remote
    contents = source.kv.references.pull(
        remote.engine_id, remote.request_id, blocks, remote.params, now
    )
    target.loaded(each, contents)
    return each
