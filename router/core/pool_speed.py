"""How slow an engine is: its seconds per token relative to its pool's median."""

import math
from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "MIXED_SHARE",
    "RECOVERED",
    "SAME_ANSWERS",
    "SLOW",
    "SlowdownHistory",
    "pool_median",
    "recovered_below",
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

MOST_RECOVERED = 2.5
"""Slowdown from which an engine is slow still, whatever it was before."""

SAME_SPEED = 1.25
"""Slowdowns up to this factor count as 1: gaps of equal engines differ by some percent."""

MOST_SAME = 2.0
"""The most that counts as 1, however much a pool's engines fluctuate."""

SAME_DEVIATIONS = 1.0
"""Standard deviations of measurements that count as the same speed. What is believed deviates less,
but not much: measurements of the same second deviate alike."""

MEDIAN_SQUARE = 0.455
"""Median of the squares of normally distributed differences, over their mean, the variance."""

FLUCTUATION_WEIGHT = 0.05
"""Weight of one tick in the fluctuation of a pool: it spans five seconds."""

DRIFT_VARIANCE = 0.03
"""Variance by which the logarithm of an engine's seconds per token changes in one tick."""

LEAST_SECONDS = 1e-7
"""Per token. Less is an error of the clock."""

SAME_ANSWERS = 1.5
"""The same of what short answers take: who else has requests there is not known exactly."""


def pool_median(measured: Iterable[float]) -> float | None:
    """The lower median, so that at least half of the engines are this fast; None of nothing."""
    values = sorted(measured)
    return values[(len(values) - 1) // 2] if values else None


NOISE_SECONDS = 0.002
"""Seconds between tokens below which network time dominates; matters for tiny models only."""


def slowdown(
    measured: float | None, median: float | None, noise: float = NOISE_SECONDS
) -> float | None:
    """How many times slower than the median; None if not known."""
    return (measured + noise) / (median + noise) if measured is not None and median else None


def counted_as(slowdown_: float, same: float = SAME_SPEED) -> float:
    """What a slowdown counts as: 1 if about equal (by `same`)."""
    return 1.0 if 1 / same <= slowdown_ <= same else max(MIN_SLOWDOWN, slowdown_)


class Fluctuation:
    """How much the seconds per token of a pool's engines fluctuate: mixed prompts delay the streams
    of one engine now, of another then, and none of them is slow.

    It is the median of the squared differences, in logarithms, of what is measured from what was
    believed before: one engine that becomes slow, or recovers, does not count.
    """

    __slots__ = ("_squares", "variance")

    def __init__(self) -> None:
        self.variance = 0.0
        self._squares: list[float] = []

    def add(self, difference: float) -> None:
        """One engine's difference."""
        self._squares.append(difference * difference)

    def tick(self) -> None:
        """Take what was added since the last tick."""
        square = pool_median(self._squares)
        if square is not None:
            self.variance += FLUCTUATION_WEIGHT * (square / MEDIAN_SQUARE - self.variance)
            self._squares.clear()

    @property
    def same(self) -> float:
        """Slowdowns up to this factor count as 1."""
        return min(MOST_SAME, max(SAME_SPEED, math.exp(SAME_DEVIATIONS * math.sqrt(self.variance))))


class SteadySeconds:
    """An engine's seconds per token without their fluctuation: a Kalman filter of the logarithm.

    Where a pool's engines do not fluctuate, it follows what is measured at once.
    """

    __slots__ = ("_log", "_variance", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        """None if not known."""
        self._log = self._variance = 0.0

    def measured(self, seconds: float, pool: Fluctuation) -> None:
        """Take a measurement; once per tick."""
        log = math.log(max(LEAST_SECONDS, seconds))
        if self.value is None:
            self._log, self._variance = log, pool.variance
        else:
            difference = log - self._log
            pool.add(difference)
            variance = self._variance + DRIFT_VARIANCE
            weight = variance / (variance + pool.variance)
            self._log += weight * difference
            self._variance = (1 - weight) * variance
        self.value = math.exp(self._log)

    def reset(self) -> None:
        """Forget it."""
        self.value = None


MIXED_SHARE = 1 / 3
"""If more than this share of a pool, and more than one engine, has been slow since it joined, the
pool is of mixed hardware and they are not outliers."""

AVERAGE_WEIGHT = 0.01
"""Weight of one tick in the moving average: it spans half a minute."""


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
