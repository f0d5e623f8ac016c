"""What short unary answers tell of an engine's speed: what they took, by the prompt tokens ahead.

Of an answer of a few tokens, which comes whole, nobody sees when its prompt was computed. But what
it took can be compared within a pool that shares requests: engines get the same mixture of answers,
and the prompt tokens that it had to wait for, its own and those ahead of it, are known: so a long
prompt or a long queue does not look like slowness.
"""

from collections import deque
from typing import NamedTuple

from router.core.prompt_costs import LineFit

__all__ = ["AnswerTimes", "Answers"]

MIN_BUCKETS = 4
"""Fewest ticks that a measurement uses."""

MAX_BUCKETS = 60
"""Most ticks: 15 s without answers, and nothing is known. An engine that is avoided gets requests
again then: nobody else can find out that it has recovered."""

RELIABLE_ANSWERS = 8
"""Answers that make a measurement reliable."""


class Answers(NamedTuple):
    """Sums of some answers."""

    number: float = 0.0
    work: float = 0.0
    """Prompt tokens that were to be computed before their first tokens, others' included."""
    seconds: float = 0.0


class AnswerTimes:
    """One engine's."""

    __slots__ = ("_buckets", "_number", "_seconds", "_work", "fit")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: the engine was restarted or replaced."""
        self._number = self._work = self._seconds = 0.0
        self.fit = LineFit()
        """Seconds by prompt tokens, of one answer per tick: a fit costs as much as a tenth of a
        request."""
        self._buckets: deque[Answers] = deque(maxlen=MAX_BUCKETS)

    @property
    def new(self) -> Answers:
        """Those since the last tick."""
        return Answers(self._number, self._work, self._seconds)

    def add(self, work: int, seconds: float) -> None:
        """An answer took `seconds`, with `work` prompt tokens to be computed before its first."""
        if not self._number:
            self.fit.add(float(work), seconds)
        self._number += 1.0
        self._work += work
        self._seconds += seconds

    def add_others(self, others: Answers) -> None:
        """Those of this router's other processes."""
        self._number += others.number
        self._work += others.work
        self._seconds += others.seconds

    def tick(self) -> None:
        """Close a bucket."""
        if self._buckets or self._number:
            self._buckets.appendleft(self.new)
            self._number = self._work = self._seconds = 0.0
            if not any(bucket.number for bucket in self._buckets):
                self._buckets.clear()

    def per_prompt_token(self, overhead: float) -> float | None:
        """Seconds per prompt token, an answer counted as `overhead` more of them; None if there
        were too few answers lately."""
        number = work = seconds = 0.0
        for place, bucket in enumerate(self._buckets):
            if place >= MIN_BUCKETS and number >= RELIABLE_ANSWERS:
                break
            number += bucket.number
            work += bucket.work
            seconds += bucket.seconds
        if number < RELIABLE_ANSWERS:
            return None
        return seconds / (work + number * overhead)
