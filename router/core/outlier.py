"""Does an engine answer with errors, more than the others do? Outlier ejection after Envoy.

Consecutive failures, or a failure rate well above the pool's, eject an engine for the base time
times the ejections so far; each clean interval forgets one of them. Source: Envoy's "Outlier
detection" (consecutive_5xx, success_rate_request_volume, base_ejection_time, max_ejection_time).

Two rules differ, because requests that fail everywhere (a model that is broken on all engines, a
poisoned prompt) must eject nobody. Failures in a row count only when the others' failure rate does
not explain them. And an engine's rate is held against that of all others together, by a two-
proportion z-test, not against the standard deviation of the engines' rates: where all others have
no failure at all, a single one is any number of deviations away.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["FINE", "Outlier", "OutlierConfig", "after", "failing", "is_chance", "tick"]

MINIMUM_REQUESTS = 20
"""Of an engine, and of the others together, in an interval: fewer tell nothing."""

MINIMUM_DIFFERENCE = 0.1
"""Of two failure rates: below it an engine is worth keeping."""

Z = 3.0
"""Standard errors between an engine and the others: chance exceeds it once in 700 intervals."""

WEIGHT = 1 / 8
"""Of one answer in the share of failures: what begins to fail everywhere shows at once."""

CHANCE = 1e-9
"""Failures in a row that are at least so likely at the others' failure rate are no fault of the
engine's."""


@dataclass(frozen=True, slots=True)
class OutlierConfig:
    """When an engine is ejected, and for how long."""

    consecutive: int = 5
    """Failures in a row; 0 switches ejection off."""
    base_seconds: float = 30.0
    max_seconds: float = 300.0
    interval_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Outlier:
    """What is known of an engine's answers."""

    streak: int = 0
    """Failures in a row."""
    good: int = 0
    total: int = 0
    """Answers in this interval."""
    failing: float | None = None
    """The share of failures among its last answers, a moving average; None before the first."""
    ejections: int = 0
    since: float | None = None
    until: float | None = None
    """The end of its ejection; None while it is in use."""


FINE = Outlier()


def after(outlier: Outlier, *, is_good: bool) -> Outlier:
    """One more answer, or failure to give one."""
    failing = outlier.failing
    return Outlier(  # not `replace`: it takes three times as long, for every answer
        0 if is_good else outlier.streak + 1,
        outlier.good + is_good,
        outlier.total + 1,
        float(not is_good) if failing is None else failing + WEIGHT * ((not is_good) - failing),
        outlier.ejections,
        outlier.since,
        outlier.until,
    )


def ejected(outlier: Outlier, now: float, rules: OutlierConfig) -> Outlier:
    """Ejected from now on."""
    times = outlier.ejections + 1
    seconds = min(rules.base_seconds * times, rules.max_seconds)
    return Outlier(ejections=times, since=now, until=now + seconds)


def tick(outlier: Outlier, now: float) -> Outlier:
    """Back in use when its time is over."""
    if outlier.until is not None and now >= outlier.until:
        return Outlier(ejections=outlier.ejections)
    return outlier


def interval(outlier: Outlier) -> Outlier:
    """A new interval; a clean one forgets an ejection."""
    is_clean = outlier.until is None and outlier.good == outlier.total
    return Outlier(
        streak=outlier.streak,
        failing=outlier.failing,
        ejections=max(0, outlier.ejections - is_clean),
        since=outlier.since,
        until=outlier.until,
    )


def is_chance(streak: int, others: Iterable[Outlier]) -> bool:
    """Whether so many failures in a row are likely, as often as the others fail now."""
    shares = [other.failing for other in others if other.failing is not None]
    return bool(shares) and (sum(shares) / len(shares)) ** streak >= CHANCE


def failing(outliers: Sequence[Outlier]) -> list[int]:
    """The places of those that failed more often than the others in this interval; none when that
    is more than half of them: then it is not the engines."""
    all_failed = sum(one.total - one.good for one in outliers)
    all_total = sum(one.total for one in outliers)
    found = [
        place
        for place, one in enumerate(outliers)
        if _is_worse(one.total - one.good, one.total, all_failed, all_total)
    ]
    busy = sum(one.total > 0 for one in outliers)
    return found if 2 * len(found) <= busy else []


def _is_worse(failed: int, total: int, all_failed: int, all_total: int) -> bool:
    others = all_total - total
    if min(total, others) < MINIMUM_REQUESTS:
        return False
    difference = failed / total - (all_failed - failed) / others
    pooled = all_failed / all_total
    error = math.sqrt(pooled * (1 - pooled) * (1 / total + 1 / others))
    return difference >= MINIMUM_DIFFERENCE and difference > Z * error
