"""How long an engine takes for a prompt.

From first tokens: seconds as a function of the prompt tokens to be computed before it, or of those
whose KV cache is loaded from another engine. Both are lines fitted to recent legs: a base (network,
the step that is running) and seconds per token. `AutoThreshold` uses the lines of each engine; the
judge uses the base of a pool's prefill engines, and the seconds per token of its decode engines.

From short unary answers, whose first token is not observed: their duration per prompt token that
they waited for (their own and those queued ahead of them), so that a long prompt or a long queue
does not look like slowness. It can be compared within a pool, whose engines get the same mixture of
requests.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from router.core.speed.tuning import (
    ANSWER_MAX_BUCKETS,
    ANSWER_MIN_BUCKETS,
    COST_RIDGE,
    EQUAL_TOKENS,
    EXPECTED_FROM,
    MAX_COST_RATIO,
    MAX_OVERHEAD,
    MEMORY_SAMPLES,
    MIN_VARIANCE,
    PROMPT_OVERHEAD,
    RECENT_DECAY,
    RELIABLE_ANSWERS,
    RELIABLE_ERROR,
)

__all__ = [
    "NOTHING",
    "AnswerTimes",
    "Answers",
    "Line",
    "LineFit",
    "PromptCosts",
    "Samples",
    "Sums",
    "overhead_of",
    "reliable_answers",
    "seconds_per_token",
    "total",
]

ANSWER_DECAY: Final = 1.0 - 1.0 / ANSWER_MAX_BUCKETS
"""Factor by which `AnswerTimes.recent` decays per tick, for the variance of the durations."""


class Line(NamedTuple):
    """Seconds as a function of tokens."""

    base: float
    per_token: float

    def seconds(self, tokens: float) -> float:
        """Seconds for `tokens`."""
        return self.base + self.per_token * tokens


class Sums(NamedTuple):
    """Sums of a weighted linear regression of seconds (y) on tokens (x)."""

    samples: float = 0.0
    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def plus(self, other: "Sums", share: float = 1.0) -> "Sums":
        """The sum of this and of `share` times the other."""
        return Sums(
            self.samples + share * other.samples,
            self.weight + share * other.weight,
            self.x + share * other.x,
            self.y + share * other.y,
            self.xx + share * other.xx,
            self.xy + share * other.xy,
        )

    def line(self) -> Line | None:
        """The least-squares line, with base and slope at least 0; None without samples."""
        _, weight, x, y, xx, xy = self
        if weight <= 0.0:
            return None
        x, y = x / weight, y / weight
        ratio = y / (x + PROMPT_OVERHEAD)
        ridge = COST_RIDGE * (x + PROMPT_OVERHEAD) * (x + PROMPT_OVERHEAD)
        variance = max(0.0, xx / weight - x * x)
        covariance = xy / weight - x * y
        slope = max(0.0, (covariance + ridge * ratio) / (variance + ridge))
        # Where the base would be below 0, the line through the origin and the means is used.
        return Line(y - slope * x, slope) if slope * x <= y else Line(0.0, y / x)


NOTHING = Sums()


def total(many: Iterable[Sums]) -> Sums:
    """The sum of all of them. A thousand take a fraction of a millisecond."""
    columns = zip(*many, strict=True)
    return Sums(*map(sum, columns))


class Samples:
    """Samples since they were last taken, for the fit of an engine at each tick: fitting a line at
    each first token takes ten times as long."""

    __slots__ = ("samples", "weight", "x", "xx", "xy", "y")

    def __init__(self) -> None:
        self.samples = self.weight = self.x = self.y = self.xx = self.xy = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        """Count a first token that came after `seconds`, with `tokens` before it."""
        weight = 1.0 / (EQUAL_TOKENS + tokens)
        weighted = weight * tokens
        self.samples += 1.0
        self.weight += weight
        self.x += weighted
        self.y += weight * seconds
        self.xx += weighted * tokens
        self.xy += weighted * seconds

    def take(self) -> Sums:
        """Their sums; they are removed."""
        sums = Sums(self.samples, self.weight, self.x, self.y, self.xx, self.xy)
        self.samples = self.weight = self.x = self.y = self.xx = self.xy = 0.0
        return sums


class LineFit:
    """Fits a line to samples, exponentially decayed; it spans about `memory` of them."""

    __slots__ = ("_decay", "sums")

    def __init__(self, memory: float = MEMORY_SAMPLES) -> None:
        self.sums = NOTHING
        self._decay = 1.0 - 1.0 / memory
        """Share of its weight that a sample keeps at the next one."""

    def add(self, tokens: float, seconds: float) -> None:
        """Count a first token that came after `seconds`, with `tokens` before it."""
        one = Samples()
        one.add(tokens, seconds)
        self.add_all(one.take())

    def add_all(self, sums: Sums) -> None:
        """Count the samples with these sums. Outliers are capped together."""
        if not sums.samples:
            return
        before = self.sums
        if before.samples >= EXPECTED_FROM and (line := before.line()) is not None:
            expected = line.base * sums.weight + line.per_token * sums.x
            if sums.y > MAX_COST_RATIO * expected > 0.0:
                share = MAX_COST_RATIO * expected / sums.y
                sums = sums._replace(y=share * sums.y, xy=share * sums.xy)
        self.sums = sums.plus(before, self._decay**sums.samples)


def overhead_of(fits: Iterable[LineFit]) -> float | None:
    """The base in prompt tokens, fitted to the samples of all engines; None while there are too
    few."""
    sums = total(fit.sums for fit in fits)
    line = sums.line() if sums.samples >= EXPECTED_FROM else None
    if line is None or line.per_token <= 0.0:
        return None
    return min(max(PROMPT_OVERHEAD, line.base / line.per_token), MAX_OVERHEAD)


def seconds_per_token(fits: Iterable[LineFit]) -> float | None:
    """The slope, fitted to the samples of all engines; None while there are too few, or where their
    token counts are too equal to show it."""
    samples, weight, x, y, xx, xy = total(fit.sums for fit in fits)
    if samples < EXPECTED_FROM:
        return None
    x, y = x / weight, y / weight
    variance = xx / weight - x * x
    slope = xy / weight - x * y
    spread = x + PROMPT_OVERHEAD
    return slope / variance if slope > 0.0 and variance > MIN_VARIANCE * spread * spread else None


class PromptCosts:
    """The prompt costs of one engine, from the first tokens that `LegTimer` sees."""

    __slots__ = ("computing", "loading", "recent_tokens")

    def __init__(self) -> None:
        self.computing = LineFit()
        """Seconds by prompt tokens to be computed, including other requests' tokens ahead."""
        self.loading = LineFit()
        """Seconds of decode legs by prompt tokens whose KV cache came from another engine."""
        self.recent_tokens = 0.0
        """Prompt tokens computed in about the last `RECENT_PROMPT_SECONDS`, exponentially
        decayed."""

    def observe(self, ahead: int, own: int, loaded: int, seconds: float) -> None:
        """Count a first token that came after `seconds`: it waited for `ahead` prompt tokens to be
        computed, `own` of them its request's, or for `loaded` tokens of KV cache."""
        if own and ahead:
            self.computing.add(float(ahead), max(0.0, seconds))
        elif loaded:
            self.loading.add(float(loaded), max(0.0, seconds))

    def tick(self, computed: float) -> None:
        """A tick (0.25 s) has passed, in which `computed` prompt tokens were computed."""
        self.recent_tokens = RECENT_DECAY * self.recent_tokens + computed

    def reset(self) -> None:
        """Forget everything: the engine was restarted or replaced."""
        self.computing, self.loading = LineFit(), LineFit()
        self.recent_tokens = 0.0


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
            ANSWER_DECAY * self.number + new.number,
            ANSWER_DECAY * self.work + new.work,
            ANSWER_DECAY * self.seconds + new.seconds,
            ANSWER_DECAY * self.squares + new.squares,
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
        self._buckets: deque[Answers] = deque(maxlen=ANSWER_MAX_BUCKETS)

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
            if place >= ANSWER_MIN_BUCKETS and number >= least:
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
