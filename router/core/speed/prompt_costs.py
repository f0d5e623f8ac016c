"""How long an engine takes for a prompt: seconds to the first token, as a function of the prompt
tokens to be computed before it, or of those whose KV cache is loaded from another engine.

Both are lines fitted to recent legs: a base (network, the step that is running) and seconds per
token. `AutoThreshold` uses the lines of each engine; a pool's monitor uses the base of its prefill
engines, and the seconds per token of its decode engines.
"""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "MAX_OVERHEAD",
    "NOTHING",
    "Line",
    "LineFit",
    "PromptCosts",
    "Samples",
    "Sums",
    "overhead_of",
    "seconds_per_token",
    "total",
]

MEMORY_SAMPLES = 128.0
"""Samples that an engine's fit spans: some seconds under load, so that it follows the load."""

DECAY = 1.0 - 1.0 / MEMORY_SAMPLES
"""Share of its weight that a sample keeps at the next one."""

OVERHEAD = 64.0
"""Prompt tokens that take as long as the base, until samples show it."""

MAX_OVERHEAD = 8192.0
"""Upper bound of the base, in prompt tokens: with more, prompt lengths would hardly matter."""

EQUAL_TOKENS = 256.0
"""Samples are weighted by 1 / (this + tokens): errors of short prompts count in seconds, those of
long ones relatively. Otherwise long prompts would determine the base, which matters for short
ones."""

RIDGE = 0.01
"""Ridge of the regression: relative variance of the token counts below which no slope is told
apart, because prompts of equal length show none."""

MIN_VARIANCE = 0.1
"""Relative variance of the token counts from which `seconds_per_token` has a value, because they
show a slope."""

MAX_OUTLIER_RATIO = 8.0
"""Cap on a sample, as a multiple of its expected seconds: an engine that captures CUDA graphs for a
minute says nothing about prompts."""

EXPECTED_FROM = 8.0
"""Samples from which `MAX_OUTLIER_RATIO` applies, and `overhead_of` and `seconds_per_token` have a
value."""

RECENT_SECONDS = 10.0
"""Span of `recent_tokens`: long enough for several answers, and shorter than any time-out."""

RECENT_DECAY = 0.9753
"""The decay factor per tick (0.25 s) for it: exp(-0.25 / RECENT_SECONDS)."""


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
        ratio = y / (x + OVERHEAD)
        ridge = RIDGE * (x + OVERHEAD) * (x + OVERHEAD)
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
    """Fits a line to samples, exponentially decayed."""

    __slots__ = ("sums",)

    def __init__(self) -> None:
        self.sums = NOTHING

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
            if sums.y > MAX_OUTLIER_RATIO * expected > 0.0:
                share = MAX_OUTLIER_RATIO * expected / sums.y
                sums = sums._replace(y=share * sums.y, xy=share * sums.xy)
        self.sums = sums.plus(before, DECAY**sums.samples)


def overhead_of(fits: Iterable[LineFit]) -> float | None:
    """The base in prompt tokens, fitted to the samples of all engines; None while there are too
    few."""
    sums = total(fit.sums for fit in fits)
    line = sums.line() if sums.samples >= EXPECTED_FROM else None
    if line is None or line.per_token <= 0.0:
        return None
    return min(max(OVERHEAD, line.base / line.per_token), MAX_OVERHEAD)


def seconds_per_token(fits: Iterable[LineFit]) -> float | None:
    """The slope, fitted to the samples of all engines; None while there are too few, or where their
    token counts are too equal to tell it."""
    samples, weight, x, y, xx, xy = total(fit.sums for fit in fits)
    if samples < EXPECTED_FROM:
        return None
    x, y = x / weight, y / weight
    variance = xx / weight - x * x
    slope = xy / weight - x * y
    spread = x + OVERHEAD
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
        """Prompt tokens computed in about the last `RECENT_SECONDS` (exponentially decayed)."""

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
