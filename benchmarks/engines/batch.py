"""Running and waiting requests of a simulated engine: continuous batching, first come first.

Pure: a step is a call, time is an argument, and a transport is any object that takes bytes.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from benchmarks.engines import frames

Key = TypeVar("Key", bound=Hashable)


class Writes(Protocol):
    """Where an answer is written to."""

    def write(self, data: bytes) -> None:
        """Send the bytes."""


@dataclass(slots=True)
class Answer:
    """An answer in progress: `left` steps to go, or (None) it is due at a time."""

    transport: Writes
    left: int | None
    tail: bytes
    # Goes out with the first token.
    lead: bytes = b""
    # Nothing is written before the tail: an answer without a stream, a prefill.
    whole: bool = False
    # When its prefill is done, in the clock of `Batch.step`.
    prefilled_at: float = -math.inf
    has_begun: bool = False


class Batch(Generic[Key]):
    """At most `slots` answers make progress, the rest wait in order of arrival; None: no limit."""

    def __init__(self, slots: int | None = None, tokens: Sequence[bytes] = frames.TOKENS) -> None:
        self._slots, self._tokens = slots, tokens
        self.running: dict[Key, Answer] = {}
        self.waiting: dict[Key, Answer] = {}

    @property
    def begun(self) -> int:
        """Answers that have had their first token."""
        return sum(one.has_begun for one in self.running.values())

    def add(self, key: Key, answer: Answer) -> None:
        """Give an answer a slot, or append it to the queue."""
        room = self._slots is None or len(self.running) < self._slots
        (self.running if room else self.waiting)[key] = answer

    def remove(self, key: Key) -> Answer | None:
        """Remove an answer; a slot that it had goes to the first in the queue."""
        if (queued := self.waiting.pop(key, None)) is not None:
            return queued
        answer = self.running.pop(key, None)
        if answer is not None and self.waiting:
            first = next(iter(self.waiting))
            self.running[first] = self.waiting.pop(first)
        return answer

    def step(self, now: float = math.inf) -> list[Key]:
        """One token for every answer that has a slot and is prefilled by `now`; returns the answers
        to `finish`."""
        finished = []
        for key, one in self.running.items():
            if one.left is None or one.prefilled_at > now:
                continue
            if self.advance(one):
                finished.append(key)
        return finished

    def advance(self, one: Answer) -> bool:
        """A token more for an answer that has steps to go; whether it was the last one, which
        `finish` writes."""
        one.has_begun = True
        one.left = (one.left or 0) - 1
        if one.left <= 0:
            return True
        if not one.whole:
            token = self._tokens[one.left % len(self._tokens)]
            one.transport.write(one.lead + token if one.lead else token)
            one.lead = b""
        return False

    def finish(self, key: Key) -> None:
        """Write the end of an answer, unless its client has left."""
        if one := self.remove(key):
            one.transport.write(one.lead + one.tail)
