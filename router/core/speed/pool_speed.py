"""How slow an engine is: its seconds per token relative to its pool's median."""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "MEDIAN_DRIFT",
    "MIXED_SHARE",
    "NOISE_SECONDS",
    "RECOVERED",
    "SAME_ANSWERS",
    "SAME_PROMPTS",
    "SAME_SPEED",
    "SLOW",
    "SlowdownHistory",
    "lowest_median",
    "pool_median",
    "prompt_slowdown",
    "recovered_below",
    "rise",
    "slowdown",
    "updated_history",
]

SLOW = 3.0
"""Slowdown from which an engine gets only requests that it would still finish first."""

MIN_SLOWDOWN = 0.5
"""No engine counts as more than twice as fast as the median: until its slots are known it would
get more than it can serve."""

RECOVERED = 1.5
"""Slowdown below which every engine is no longer slow. Well below `SLOW`, because an engine with
little work looks faster than it is."""

MEDIAN_DRIFT = 1.05
"""Factor per tick by which the lowest median of a pool is forgotten: it doubles in 3.5 s. An engine
has not recovered because the others have become slower for some seconds, as all do that need the
processor of a busy host. (With bursts of noise that slow the others by 2 to 8 for up to 3 s, an
engine that stayed slow was taken back 1.9 times a minute without this, and never with it; one that
had recovered was taken back after 2.0 instead of 1.4 s in the mean, without noise after 1.3 s.)"""

MOST_RECOVERED = 2.5
"""Upper bound of the slowdown below which an engine has recovered, whatever it was at its best."""

SAME_SPEED = 1.25
"""Slowdowns up to this factor count as 1: equal engines differ by some percent."""

SAME_ANSWERS = 1.5
"""The same for speeds from short answers: other clients' requests there are not known exactly."""

SAME_PROMPTS = 2.0
"""The same for seconds per prompt token: the fixed cost of a step weighs more in short prompts."""


def pool_median(measured: Iterable[float]) -> float | None:
    """The lower median, so that at least half of the engines are this fast; None if `measured` is
    empty."""
    values = sorted(measured)
    return values[(len(values) - 1) // 2] if values else None


NOISE_SECONDS = 0.002
"""Seconds between tokens below which network time dominates; matters for tiny models only."""


def slowdown(
    measured: float | None,
    median: float | None,
    noise: float = NOISE_SECONDS,
    same: float = SAME_SPEED,
) -> float:
    """How many times slower than the median: at least `MIN_SLOWDOWN`, and 1 if about equal (within
    the factor `same`) or not known. `noise`: seconds added to both, so that tiny values do not
    differ."""
    if measured is None or not median:
        return 1.0
    exact = (measured + noise) / (median + noise)
    return 1.0 if 1 / same <= exact <= same else max(MIN_SLOWDOWN, exact)


def prompt_slowdown(measured: float | None, median: float | None, slowdown_: float) -> float:
    """The factor, at least 1, by which an engine is slower with prompts than its slowdown says.
    `measured`: its seconds per prompt token; `median`: the pool's. 1 if not known."""
    return max(1.0, slowdown(measured, median, 0.0, SAME_PROMPTS) / max(1.0, slowdown_))


MIXED_SHARE = 1 / 3
"""If more than this share of a pool, and more than one engine, has been slow since it joined, the
pool is of mixed hardware and they are not outliers."""

AVERAGE_WEIGHT = 0.01
"""Weight of one tick in the moving average: it spans half a minute."""


def lowest_median(before: float | None, median: float | None) -> float | None:
    """The lowest median of a pool after a tick with this median; None if none is known."""
    if before is None or median is None:
        return median
    return min(before * MEDIAN_DRIFT, median)


def rise(median: float | None, lowest: float | None) -> float:
    """By which factor the pool has become slower lately; at least 1."""
    if median is None or lowest is None:
        return 1.0
    return (median + NOISE_SECONDS) / (lowest + NOISE_SECONDS)


class SlowdownHistory(NamedTuple):
    """Moving average of an engine's slowdown, and the lowest that the average has been."""

    slowdown: float
    best: float


def updated_history(before: SlowdownHistory | None, slowdown_: float) -> SlowdownHistory:
    """The history after a tick with this slowdown."""
    if before is None:
        return SlowdownHistory(slowdown_, slowdown_)
    average = before.slowdown + AVERAGE_WEIGHT * (slowdown_ - before.slowdown)
    return SlowdownHistory(average, min(before.best, average))


def recovered_below(history: SlowdownHistory | None) -> float:
    """Slowdown below which an engine is no longer slow: about what it was at its best."""
    if history is None or history.best >= MOST_RECOVERED:
        return RECOVERED
    return max(RECOVERED, min(MOST_RECOVERED, SAME_SPEED * history.best))
