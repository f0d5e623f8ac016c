"""Is an engine slow? Its seconds per token against those that are usual in its pool."""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "MIXED_SHARE",
    "RECOVERED",
    "SLOW",
    "SlowdownHistory",
    "pool_median",
    "slowdown",
    "updated_history",
]

SLOW = 3.0
"""From here on an engine gets only what it is expected to finish sooner than the others."""

MIN_SLOWDOWN = 0.5
"""No engine counts as more than twice as fast as usual: until its slots are known it would get
more than it can serve."""

RECOVERED = 1.5
"""Below this a slow engine is slow no more: with next to no work it looks better than it is."""

SAME_SPEED = 1.25
"""Up to here engines are the same: two that are have gaps some percent apart."""


def pool_median(measured: Iterable[float]) -> float | None:
    """The lower median: at least half of the engines are this fast, or None of none."""
    values = sorted(measured)
    return values[(len(values) - 1) // 2] if values else None


NOISE_SECONDS = 0.002
"""Between tokens; below it the way to the router is what is measured. It matters to tiny models."""


def slowdown(measured: float | None, median: float | None, noise: float = NOISE_SECONDS) -> float:
    """How many times slower than usual; 1 for what is about usual, or not known."""
    if measured is None or not median:
        return 1.0
    exact = (measured + noise) / (median + noise)
    return 1.0 if 1 / SAME_SPEED <= exact <= SAME_SPEED else max(MIN_SLOWDOWN, exact)


MIXED_SHARE = 1 / 3
"""When more than this share, and more than one, have been slow since they joined, they are a kind
of their own, not outliers."""

HABIT_WEIGHT = 0.01
"""Of a tick in what is usual for an engine: half a minute."""


class SlowdownHistory(NamedTuple):
    """An engine's ratio as it usually is (a moving average), and the best that this has been."""

    slowdown: float
    best: float


def updated_history(before: SlowdownHistory | None, slowdown_: float) -> SlowdownHistory:
    """The habit after a tick with this ratio."""
    if before is None:
        return SlowdownHistory(slowdown_, slowdown_)
    usually = before.slowdown + HABIT_WEIGHT * (slowdown_ - before.slowdown)
    return SlowdownHistory(usually, min(before.best, usually))
