"""What short unary answers tell of an engine's speed: what they took, by the prompt tokens ahead.

Of an answer of a few tokens, which comes whole, nobody sees when its prompt was computed. But what
it took can be compared within a pool that shares requests: engines get the same mixture of answers,
and the prompt tokens that it had to wait for, its own and those ahead of it, are known: so a long
prompt or a long queue does not look like slowness.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from router.core.speed.prompt_costs import LineFit

__all__ = ["AnswerTimes", "Answers", "reliable_answers"]

MIN_BUCKETS = 4
"""Fewest ticks that a measurement uses."""

MAX_BUCKETS = 60
"""Most ticks: 15 s without answers, and nothing is known. An engine that is avoided gets requests
again then: nobody else can find out that it has recovered."""

MEMORY = 1.0 - 1.0 / MAX_BUCKETS
"""Weight of what was before each tick where it is asked how much answers differ."""

RELIABLE_ANSWERS = 8.0
"""Answers that make a measurement reliable, at least ..."""

RELIABLE_ERROR = 0.2
"""... and as many as bring the relative error of their mean below this: where some answers have one
token and others thirty, eight of them may take three times as long as eight others by chance."""


class Answers(NamedTuple):
    """Sums of some answers."""

    number: float = 0.0
    work: float = 0.0
    """Prompt tokens that were to be computed before their first tokens, others' included."""
    seconds: float = 0.0
    squares: float = 0.0
    """Of the seconds of each."""

    @property
    def spread(self) -> float:
        """Relative variance of their seconds, times their number."""
        mean = self.seconds / self.number if self.number else 0.0
        return max(0.0, self.squares / (mean * mean) - self.number) if mean else 0.0

    def faded_with(self, new: "Answers") -> "Answers":
        """These, counting less, and new ones."""
        return Answers(
            MEMORY * self.number + new.number,
            MEMORY * self.work + new.work,
            MEMORY * self.seconds + new.seconds,
            MEMORY * self.squares + new.squares,
        )


class AnswerTimes:
    """One engine's."""

    __slots__ = ("_buckets", "_number", "_seconds", "_squares", "_work", "fit", "lately")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: the engine was restarted or replaced."""
        self._number = self._work = self._seconds = self._squares = 0.0
        self.fit = LineFit()
        """Seconds by prompt tokens, of one answer per tick: a fit costs as much as a tenth of a
        request."""
        self.lately = Answers()
        """Those of late, older ones counting less."""
        self._buckets: deque[Answers] = deque(maxlen=MAX_BUCKETS)

    @property
    def new(self) -> Answers:
        """Those since the last tick."""
        return Answers(self._number, self._work, self._seconds, self._squares)

    def add(self, work: int, seconds: float) -> None:
        """An answer took `seconds`, with `work` prompt tokens to be computed before its first."""
        if not self._number:
            self.fit.add(float(work), seconds)
        self._number += 1.0
        self._work += work
        self._seconds += seconds
        self._squares += seconds * seconds

    def add_others(self, others: Answers) -> None:
        """Those of this router's other processes."""
        self._number += others.number
        self._work += others.work
        self._seconds += others.seconds
        self._squares += others.squares

    def tick(self) -> None:
        """Close a bucket."""
        if self._buckets or self._number:
            new = self.new
            self._buckets.appendleft(new)
            self.lately = self.lately.faded_with(new)
            self._number = self._work = self._seconds = self._squares = 0.0
            if not any(bucket.number for bucket in self._buckets):
                self._buckets.clear()
                self.lately = Answers()

    def per_prompt_token(self, overhead: float, least: float = RELIABLE_ANSWERS) -> float | None:
        """Seconds per prompt token, an answer counted as `overhead` more of them; None if there
        were fewer than `least` answers lately."""
        number = work = seconds = 0.0
        for place, bucket in enumerate(self._buckets):
            if place >= MIN_BUCKETS and number >= least:
                break
            number += bucket.number
            work += bucket.work
            seconds += bucket.seconds
        return seconds / (work + number * overhead) if number >= least else None


def reliable_answers(engines: Iterable[AnswerTimes]) -> float:
    """How many answers make a measurement reliable, as far as those of one engine differ. That one
    engine is slower than others does not count."""
    lately = [engine.lately for engine in engines]
    number = sum(answers.number for answers in lately)
    spread = sum(answers.spread for answers in lately)
    variance = spread / number if number else 0.0
    return max(RELIABLE_ANSWERS, variance / (RELIABLE_ERROR * RELIABLE_ERROR))
