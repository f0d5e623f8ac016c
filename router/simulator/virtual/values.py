"""What a simulation is made of: frozen, and checked when it is made. Seconds and tokens."""

import math
from dataclasses import dataclass, field
from random import Random

__all__ = [
    "Change",
    "EngineModel",
    "Freeze",
    "Lengths",
    "Restart",
    "Scenario",
    "Speed",
    "Workload",
]


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A continuously batching engine.

    A step gives every decoding sequence one token and computes prompts with what is left of
    `max_num_batched_tokens`. It takes `step_seconds + per_sequence_seconds * sequences
    + prompt tokens / prefill_tokens_per_second`, times the engine's factor.
    """

    max_num_seqs: int = 64
    step_seconds: float = 0.02
    per_sequence_seconds: float = 0.0
    prefill_tokens_per_second: float = 40_000.0
    max_num_batched_tokens: int = 8192
    kv_tokens: int = 400_000
    """KV cache. A sequence reserves prompt and output when it is let in: nothing is preempted."""
    max_num_queued_reqs: int = 1022
    """Requests that may wait for a slot; beyond it the answer is 503."""
    jitter: float = 0.02
    """A step's share of chance, up or down: real engines do not run in lockstep."""

    def step(self, sequences: int, prompt_tokens: int = 0) -> float:
        """Seconds of a step at factor 1, without jitter."""
        prefill = prompt_tokens / self.prefill_tokens_per_second
        return self.step_seconds + self.per_sequence_seconds * sequences + prefill


@dataclass(frozen=True, slots=True)
class Speed:
    """From `at` on each step of the engine takes `factor` times as long."""

    at: float
    engine: int
    factor: float


@dataclass(frozen=True, slots=True)
class Freeze:
    """The engine does nothing for `seconds`, then goes on where it was; it goes on accepting."""

    at: float
    engine: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Restart:
    """The engine is killed: its connections break, and for `seconds` it refuses new ones."""

    at: float
    engine: int
    seconds: float


Change = Speed | Freeze | Restart


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt or output lengths in tokens: all `median`, or lognormal around it."""

    median: int
    sigma: float = 0.0
    """Of the logarithm; 0: all alike."""
    most: int = 1 << 30

    def draw(self, rng: Random) -> int:
        """One length, at least 1."""
        if not self.sigma:
            return self.median
        return min(self.most, max(1, round(self.median * math.exp(rng.gauss(0.0, self.sigma)))))

    @property
    def mean(self) -> float:
        """Of the distribution, without its limits."""
        return self.median * math.exp(self.sigma**2 / 2)


@dataclass(frozen=True, slots=True)
class Workload:
    """Streams that ask again as soon as they have their answer, and bursts from outside."""

    requests: int
    """In all; the run ends when each has ended."""
    streams: int
    prompt: Lengths
    output: Lengths
    burst_seconds: float = 0.0
    """Between two bursts; 0: none."""
    burst_requests: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """Engines, clients, routers, and what goes wrong when."""

    name: str
    engines: int
    model: EngineModel
    workload: Workload
    replicas: int = 1
    changes: tuple[Change, ...] = field(default=())

    def __post_init__(self) -> None:
        """Raises ValueError for what could never end."""
        if min(self.engines, self.replicas, self.workload.streams, self.workload.requests) < 1:
            raise ValueError("engines, replicas, streams and requests must be at least 1")
        longest = sum(
            lengths.most if lengths.sigma else lengths.median
            for lengths in (self.workload.prompt, self.workload.output)
        )
        if longest > self.model.kv_tokens:
            raise ValueError(f"a request of {longest} tokens does not fit in the KV cache")
        if any(change.engine >= self.engines for change in self.changes):
            raise ValueError("a change names an engine that is not there")
