"""Continuous batching like vLLM's, without tokens and KV blocks: which sequences run, and for how
long.

Pure; time is an argument. It is shared by the HTTP engine (`machine.py`, real time) and the virtual
one (`virtual/engine.py`, which counts decoding sequences instead of iterating over them).
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Prefill(Protocol):
    """A sequence that waits for its first token."""

    @property
    def left(self) -> int:
        """Tokens that have to be computed before the next one is generated."""


T = TypeVar("T", bound=Prefill)


@dataclass(frozen=True, slots=True)
class BatchModel:
    """Limits and speed of an engine, with vLLM's names.

    A step generates one token of each decoding sequence and uses the rest of
    `max_num_batched_tokens` for prompts. It takes `step_seconds + per_sequence_seconds * sequences
    + prompt tokens / prefill_tokens_per_second`, times the engine's factor.
    """

    max_num_seqs: int = 64
    step_seconds: float = 0.02
    per_sequence_seconds: float = 0.0
    prefill_tokens_per_second: float = 40_000.0
    max_num_batched_tokens: int = 8192
    max_num_queued_reqs: float = 1022
    """Most queued requests; further ones get 503."""

    def step(self, sequences: int, prompt_tokens: int = 0) -> float:
        """Seconds of a step at factor 1."""
        prefill = prompt_tokens / self.prefill_tokens_per_second
        return self.step_seconds + self.per_sequence_seconds * sequences + prefill


class Batch(Generic[T]):
    """The queue limit and the prompts that are being computed; decoding sequences are kept by the
    user of the class."""

    def __init__(self, model: BatchModel) -> None:
        self.model = model
        self.factor = 1.0
        """Factor on the duration of each step, for a slow engine."""
        self.waiting: deque[T] = deque()
        self.prefilling: deque[T] = deque()
        """Prompts with a slot; the first one is computed first."""

    def has_room(self, waiting: int) -> bool:
        """Whether one more request may be queued."""
        return waiting < self.model.max_num_queued_reqs

    def compose(
        self,
        decoding: int,
        admit: Callable[[], T | None],
        may_run: Callable[[T], bool] = lambda _: True,
    ) -> Iterator[tuple[T, int]]:
        """Yields the prompts of the next step, with the number of their tokens that it computes.

        Prompts that have begun come first, then those that `admit` takes from the queue until it
        returns None. A prompt that may not run yet is not overtaken. `prefilling` may change only
        after the iteration.
        """
        budget = self.model.max_num_batched_tokens - decoding
        place = 0
        while budget > 0:
            if place == len(self.prefilling):
                if (admitted := admit()) is None:
                    break
                self.prefilling.append(admitted)
            one = self.prefilling[place]
            if not may_run(one):
                break
            tokens = min(one.left, budget)
            yield one, tokens
            budget -= tokens
            place += 1

    def seconds(self, sequences: int, prompt_tokens: int) -> float:
        """The duration of a step in seconds."""
        return self.factor * self.model.step(sequences, prompt_tokens)
