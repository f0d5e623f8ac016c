"""What an engine takes for a prompt: seconds to the first token, by the tokens to be computed ahead
of it or to be loaded from another engine.

Both are lines, fitted to the legs of late: a base (network, the step that is going on) and seconds
per token. `AutoThreshold` asks for those of each engine, where there is one; a pool's monitor asks
for the base of its prefill engines.
"""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "MAX_OVERHEAD",
    "NOTHING",
    "Line",
    "LineFit",
    "PromptCosts",
    "Sums",
    "overhead_of",
    "total",
]

MEMORY_SAMPLES = 128.0
"""Samples that an engine's fit spans: some seconds under load, so that it follows the load."""

KEPT = 1.0 - 1.0 / MEMORY_SAMPLES
"""Share of its weight that a sample keeps at the next one."""

OVERHEAD = 64.0
"""Tokens that take as long as the base does, as long as samples do not say."""

MAX_OVERHEAD = 8192.0
"""Prompts would hardly count at all with more."""

EQUAL_TOKENS = 256.0
"""Weights fall with the length: up to here errors count in seconds, far above it relatively. Long
prompts would else decide about the base, which matters for short ones."""

RIDGE = 0.01
"""Relative variance of the tokens from which samples tell a slope: prompts that are all equally
long do not."""

MOST_OVER = 8.0
"""A sample counts for at most so many times what was expected: an engine that captures CUDA graphs
for a minute says nothing of prompts."""

EXPECTED_FROM = 8.0
"""Samples from which something is expected."""

RECENT_SECONDS = 10.0
"""Span of `recent_tokens`: several answers, and less than anybody's patience."""

RECENT_DECAY = 0.9753
"""Factor per tick (0.25 s) that goes with it: e to the -0.025."""


class Line(NamedTuple):
    """Seconds as a function of tokens."""

    base: float
    per_token: float

    def seconds(self, tokens: float) -> float:
        """For so many tokens."""
        return self.base + self.per_token * tokens


class Sums(NamedTuple):
    """What a fit needs of its samples: their number, and weighted sums."""

    samples: float = 0.0
    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def plus(self, other: "Sums", share: float = 1.0) -> "Sums":
        """The sums of both; of the other one a share."""
        return Sums(
            self.samples + share * other.samples,
            self.weight + share * other.weight,
            self.x + share * other.x,
            self.y + share * other.y,
            self.xx + share * other.xx,
            self.xy + share * other.xy,
        )

    def line(self) -> Line | None:
        """The line of least squares, with base and slope not below 0; None without samples."""
        _, weight, x, y, xx, xy = self
        if weight <= 0.0:
            return None
        x, y = x / weight, y / weight
        ratio = y / (x + OVERHEAD)
        ridge = RIDGE * (x + OVERHEAD) * (x + OVERHEAD)
        variance = max(0.0, xx / weight - x * x)
        covariance = xy / weight - x * y
        slope = max(0.0, (covariance + ridge * ratio) / (variance + ridge))
        # Through the means: a base below 0 is made up for by the slope.
        return Line(y - slope * x, slope) if slope * x <= y else Line(0.0, y / x)


NOTHING = Sums()


def total(many: Iterable[Sums]) -> Sums:
    """The sums of all: of a thousand in a fraction of a millisecond."""
    columns = zip(*many, strict=True)
    return Sums(*map(sum, columns))


class LineFit:
    """Fits a line to samples, older ones counting less."""

    __slots__ = ("sums",)

    def __init__(self) -> None:
        self.sums = NOTHING

    def add(self, tokens: float, seconds: float) -> None:
        """Count a first token that came after `seconds`."""
        samples, weights, x, y, xx, xy = self.sums  # a field by its name takes ten times as long
        if samples >= EXPECTED_FROM and (line := self.sums.line()) is not None:
            seconds = min(seconds, MOST_OVER * line.seconds(tokens))
        weight = 1.0 / (EQUAL_TOKENS + tokens)
        self.sums = Sums(
            KEPT * samples + 1.0,
            KEPT * weights + weight,
            KEPT * x + weight * tokens,
            KEPT * y + weight * seconds,
            KEPT * xx + weight * tokens * tokens,
            KEPT * xy + weight * tokens * seconds,
        )


def overhead_of(fits: Iterable[LineFit]) -> float | None:
    """The prompt tokens that take as long as the base does, by all samples together; None while
    there are too few."""
    sums = total(fit.sums for fit in fits)
    line = sums.line() if sums.samples >= EXPECTED_FROM else None
    if line is None or line.per_token <= 0.0:
        return None
    return min(max(OVERHEAD, line.base / line.per_token), MAX_OVERHEAD)


class PromptCosts:
    """Of one engine, as `LegTimer` sees its first tokens."""

    __slots__ = ("computing", "loading", "recent_tokens")

    def __init__(self) -> None:
        self.computing = LineFit()
        """By the prompt tokens to be computed there, others' ahead of the own ones included."""
        self.loading = LineFit()
        """By the prompt tokens whose KV cache came from another engine: what a decode leg takes."""
        self.recent_tokens = 0.0
        """Prompt tokens computed in the last seconds, about: `RECENT_SECONDS`."""

    def observe(self, ahead: int, own: int, loaded: int, seconds: float) -> None:
        """A first token came: it waited for `ahead` tokens, of which `own` were its request's, or
        for so many to be loaded."""
        if own and ahead:
            self.computing.add(float(ahead), max(0.0, seconds))
        elif loaded:
            self.loading.add(float(loaded), max(0.0, seconds))

    def tick(self, computed: float) -> None:
        """A quarter of a second has passed, in which so many prompt tokens were computed."""
        self.recent_tokens = RECENT_DECAY * self.recent_tokens + computed

    def reset(self) -> None:
        """It is a new engine."""
        self.computing, self.loading = LineFit(), LineFit()
        self.recent_tokens = 0.0
