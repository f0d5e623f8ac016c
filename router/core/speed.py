"""Is an engine slow? Its seconds per token against those that are usual in its pool."""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["MIXED_SHARE", "QUICK_AGAIN", "SLOW", "Habit", "habit", "ratio", "usual"]

SLOW = 3.0
"""From here on an engine gets only what it is expected to finish sooner than the others."""

QUICKEST = 0.5
"""No engine counts as more than twice as fast as usual: until its slots are known it would get
more than it can serve."""

QUICK_AGAIN = 1.5
"""Below this a slow engine is slow no more: with next to no work it looks better than it is."""

ALIKE = 1.25
"""Up to here engines are the same: two that are have gaps some percent apart."""


def usual(measured: Iterable[float]) -> float | None:
    """The lower median: at least half of the engines are this fast, or None of none."""
    values = sorted(measured)
    return values[(len(values) - 1) // 2] if values else None


NOISE_SECONDS = 0.002
"""Between tokens; below it the way to the router is what is measured. It matters to tiny models."""


def ratio(measured: float | None, usual_: float | None, noise: float = NOISE_SECONDS) -> float:
    """How many times slower than usual; 1 for what is about usual, or not known."""
    if measured is None or not usual_:
        return 1.0
    exact = (measured + noise) / (usual_ + noise)
    return 1.0 if 1 / ALIKE <= exact <= ALIKE else max(QUICKEST, exact)


MIXED_SHARE = 1 / 3
"""When more than this share, and more than one, have been slow since they joined, they are a kind
of their own, not outliers."""

HABIT_WEIGHT = 0.01
"""Of a tick in what is usual for an engine: half a minute."""


class Habit(NamedTuple):
    """An engine's ratio as it usually is (a moving average), and the best that this has been."""

    ratio: float
    best: float


def habit(before: Habit | None, ratio_: float) -> Habit:
    """The habit after a tick with this ratio."""
    if before is None:
        return Habit(ratio_, ratio_)
    usually = before.ratio + HABIT_WEIGHT * (ratio_ - before.ratio)
    return Habit(usually, min(before.best, usually))
