"""Continuous batching in vLLM's manner, without tokens and KV blocks: who runs, and for how long.

Pure; time is an argument. The engine behind HTTP (`machine.py`, real time) and the one in virtual
time (`virtual/engine.py`, which counts what decodes in place of walking through it) share it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Prompt(Protocol):
    """What waits for its first token."""

    @property
    def left(self) -> int:
        """Tokens that are to be computed before the next one comes out."""


T = TypeVar("T", bound=Prompt)


@dataclass(frozen=True, slots=True)
class BatchModel:
    """Limits and speed of an engine; names are vLLM's.

    A step gives every decoding sequence one token and computes prompts with what is left of
    `max_num_batched_tokens`. It takes `step_seconds + per_sequence_seconds * sequences
    + prompt tokens / prefill_tokens_per_second`, times the engine's factor.
    """

    max_num_seqs: int = 64
    step_seconds: float = 0.02
    per_sequence_seconds: float = 0.0
    prefill_tokens_per_second: float = 40_000.0
    max_num_batched_tokens: int = 8192
    max_num_queued_reqs: float = 1022
    """Requests that may wait for a slot; beyond it the answer is 503."""

    def step(self, sequences: int, prompt_tokens: int = 0) -> float:
        """Seconds of a step at factor 1."""
        prefill = prompt_tokens / self.prefill_tokens_per_second
        return self.step_seconds + self.per_sequence_seconds * sequences + prefill


class Batch(Generic[T]):
    """The queue, and the prompts that are being computed; what decodes is its user's to keep."""

    def __init__(self, model: BatchModel) -> None:
        self.model = model
        self.factor = 1.0
        """Of a slow engine: on the time of every step."""
        self.waiting: deque[T] = deque()
        self.prefilling: deque[T] = deque()
        """They have a slot; the first is computed first."""

    def has_room(self, waiting: int) -> bool:
        """Whether one more may wait."""
        return waiting < self.model.max_num_queued_reqs

    def compose(
        self,
        decoding: int,
        admit: Callable[[], T | None],
        may_run: Callable[[T], bool] = lambda _: True,
    ) -> Iterator[tuple[T, int]]:
        """The prompts of the next step, and how many tokens of each are computed in it.

        Prompts that have begun go first; then those that `admit` takes from the queue, until it
        gives None. None overtakes one that may not run yet. `prefilling` may change when it is
        through, not before.
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
        """How long a step takes."""
        return self.factor * self.model.step(sequences, prompt_tokens)
