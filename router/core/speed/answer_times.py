"""An engine's speed from short unary answers: their duration per prompt token ahead of them.

A unary answer arrives as a whole, so its time to first token is not observed. Its duration can
still be compared within a pool: the engines of a pool get the same mixture of requests. It is
divided by the prompt tokens that it waited for (its own and those queued ahead of it), so that a
long prompt or a long queue does not look like slowness.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from router.core.speed.prompt_costs import LineFit

__all__ = ["AnswerTimes", "Answers", "reliable_answers"]

MIN_BUCKETS = 4
"""Fewest ticks (0.25 s each) that a measurement uses."""

MAX_BUCKETS = 60
"""Most ticks: after 15 s without answers the speed counts as unknown. An engine that was avoided
then gets requests again, which is the only way to find out that it has recovered."""

DECAY = 1.0 - 1.0 / MAX_BUCKETS
"""Factor by which `recent` decays per tick, for the variance of the durations."""

RELIABLE_ANSWERS = 8.0
"""Fewest answers that make a measurement reliable. More are needed where they differ much:"""

RELIABLE_ERROR = 0.2
"""Enough to bring the relative error of their mean below this. Where some answers have one token
and others thirty, eight of them may take three times as long as eight others by chance."""


class Answers(NamedTuple):
    """Sums over a number of answers."""

    number: float = 0.0
    work: float = 0.0
    """Prompt tokens to be computed before their first tokens, other requests' included."""
    seconds: float = 0.0
    squares: float = 0.0
    """Sum of the squares of their durations."""

    @property
    def spread(self) -> float:
        """Relative variance of their durations, times their number."""
        mean = self.seconds / self.number if self.number else 0.0
        return max(0.0, self.squares / (mean * mean) - self.number) if mean else 0.0

    def faded_with(self, new: "Answers") -> "Answers":
        """The decayed sums of these, plus `new`."""
        return Answers(
            DECAY * self.number + new.number,
            DECAY * self.work + new.work,
            DECAY * self.seconds + new.seconds,
            DECAY * self.squares + new.squares,
        )


class AnswerTimes:
    """The short unary answers of one engine."""

    __slots__ = ("_buckets", "_number", "_seconds", "_squares", "_work", "fit", "recent")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: the engine was restarted or replaced."""
        self._number = self._work = self._seconds = self._squares = 0.0
        self.fit = LineFit()
        """Seconds by prompt tokens, of one answer per tick: a fit costs as much as a tenth of a
        request."""
        self.recent = Answers()
        """Exponentially decayed sums of recent answers."""
        self._buckets: deque[Answers] = deque(maxlen=MAX_BUCKETS)

    @property
    def new(self) -> Answers:
        """The sums since the last tick."""
        return Answers(self._number, self._work, self._seconds, self._squares)

    def add(self, work: int, seconds: float) -> None:
        """Count an answer that took `seconds`, with `work` prompt tokens computed before its first
        token."""
        if not self._number:
            self.fit.add(float(work), seconds)
        self._number += 1.0
        self._work += work
        self._seconds += seconds
        self._squares += seconds * seconds

    def add_others(self, others: Answers) -> None:
        """Count answers that this router's other worker processes saw."""
        self._number += others.number
        self._work += others.work
        self._seconds += others.seconds
        self._squares += others.squares

    def tick(self) -> None:
        """Close a bucket."""
        if self._buckets or self._number:
            new = self.new
            self._buckets.appendleft(new)
            self.recent = self.recent.faded_with(new)
            self._number = self._work = self._seconds = self._squares = 0.0
            if not any(bucket.number for bucket in self._buckets):
                self._buckets.clear()
                self.recent = Answers()

    def per_prompt_token(self, overhead: float, least: float = RELIABLE_ANSWERS) -> float | None:
        """Seconds per prompt token, where each answer counts as `overhead` additional tokens; None
        if there were fewer than `least` answers recently."""
        number = work = seconds = 0.0
        for place, bucket in enumerate(self._buckets):
            if place >= MIN_BUCKETS and number >= least:
                break
            number += bucket.number
            work += bucket.work
            seconds += bucket.seconds
        return seconds / (work + number * overhead) if number >= least else None


def reliable_answers(engines: Iterable[AnswerTimes]) -> float:
    """How many answers make a measurement reliable, from the variance of the durations within each
    engine (differences between engines do not count)."""
    recent = [engine.recent for engine in engines]
    number = sum(answers.number for answers in recent)
    spread = sum(answers.spread for answers in recent)
    variance = spread / number if number else 0.0
    return max(RELIABLE_ANSWERS, variance / (RELIABLE_ERROR * RELIABLE_ERROR))
