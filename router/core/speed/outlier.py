"""Outlier ejection after Envoy: engines that fail more than the others.

Consecutive failures, or a failure rate well above the pool's, eject an engine for the base time
times the ejections so far; each clean interval forgets one of them. Source: Envoy's "Outlier
detection" (consecutive_5xx, success_rate_request_volume, base_ejection_time, max_ejection_time).

Two rules differ, because requests that fail everywhere (a broken model, a poisoned prompt) must not
eject engines. Consecutive failures count only if the others' failure rate does not explain them.
Where all engines begin to fail at once, the first ones look alone for a moment: they are taken back
as soon as most of the others fail as well. And an engine's rate is compared with that of all others
together, by a two-proportion z-test, not by standard deviations of the engines' rates: if no other
engine fails, a single failure is any number of deviations away. Chance, or prompts that go where
their prefix is cached, may send one engine nearly all requests that fail everywhere: an engine that
its rate ejected is taken back if the others fail more than before from then on.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = [
    "HEALTHY",
    "Outlier",
    "OutlierConfig",
    "after",
    "failing",
    "have_moved",
    "is_chance",
    "is_shared",
    "tick",
    "together",
    "usual_failing",
    "withdrawn",
]

MINIMUM_REQUESTS = 20
"""Fewest requests in an interval, of the engine and of the others together, for the rate rule."""

MINIMUM_DIFFERENCE = 0.1
"""Smallest difference of two failure rates that ejects."""

Z = 3.0
"""Standard errors between the two rates that eject; chance exceeds them once in 700 intervals."""

WEIGHT = 1 / 8
"""Weight of one answer in the moving share of failures: large enough that failures of the whole
pool show within some answers."""

CHANCE = 1e-9
"""Consecutive failures that are at least this probable at the others' failure rate do not eject."""

SHARED_CHANCE = 1e-2
"""An ejection is withdrawn if its streak is at least this probable at the median failure rate of
the others: five in a row where two in five fail. Far above `CHANCE`, because it is checked at every
tick: a single other engine of whose requests 3 % fail reaches a moving rate of a fifth every
minute."""


@dataclass(frozen=True, slots=True)
class OutlierConfig:
    """When an engine is ejected, and for how long."""

    consecutive: int = 5
    """Failures in a row; 0 switches ejection off."""
    base_seconds: float = 30.0
    max_seconds: float = 300.0
    interval_seconds: float = 10.0


@dataclass(slots=True, unsafe_hash=True, init=False)  # see CONTRIBUTING.md, "Compiled modules"
class Outlier:
    """An engine's answers and ejections. Treat it as immutable. It is not frozen, because one
    is made for each answer, and a frozen one takes twice as long."""

    streak: int
    """Failures in a row."""
    good: int
    total: int
    """Answers in this interval."""
    failing: float | None
    """Moving share of failures, 0 to 1; None before the first answer."""
    ejections: int
    since: float | None
    until: float | None
    """End of its ejection; None while it is in use."""
    ejected_by: int
    """Length of the streak that ejected it; 0 if its failure rate did."""

    def __init__(
        self,
        streak: int = 0,
        good: int = 0,
        total: int = 0,
        failing: float | None = None,
        ejections: int = 0,
        since: float | None = None,
        until: float | None = None,
        ejected_by: int = 0,
    ) -> None:
        self.streak = streak
        self.good = good
        self.total = total
        self.failing = failing
        self.ejections = ejections
        self.since = since
        self.until = until
        self.ejected_by = ejected_by


HEALTHY = Outlier()
"""Not ejected, and no answers counted."""


def after(outlier: Outlier, *, is_good: bool) -> Outlier:
    """The state after one more answer or failure."""
    failing = outlier.failing or 0.0  # a first failure is no rate yet
    return Outlier(  # not `replace`: it takes three times as long, for every answer
        0 if is_good else outlier.streak + 1,
        outlier.good + is_good,
        outlier.total + 1,
        failing + WEIGHT * ((not is_good) - failing),
        outlier.ejections,
        outlier.since,
        outlier.until,
        outlier.ejected_by,
    )


def ejected(outlier: Outlier, now: float, rules: OutlierConfig, streak: int = 0) -> Outlier:
    """The state of an engine ejected at `now` by `streak` failures in a row; 0: by its rate."""
    times = outlier.ejections + 1
    seconds = min(rules.base_seconds * times, rules.max_seconds)
    return Outlier(ejections=times, since=now, until=now + seconds, ejected_by=streak)


def withdrawn(outlier: Outlier) -> Outlier:
    """The state of an engine whose ejection was a mistake."""
    return Outlier(ejections=outlier.ejections - 1)


def tick(outlier: Outlier, now: float) -> Outlier:
    """The state at `now`: back in use once its time is over."""
    if outlier.until is not None and now >= outlier.until:
        return Outlier(ejections=outlier.ejections)
    return outlier


def interval(outlier: Outlier) -> Outlier:
    """The state at the start of a new interval; an interval without failures forgets one earlier
    ejection."""
    is_clean = outlier.until is None and outlier.good == outlier.total
    return Outlier(
        streak=outlier.streak,
        failing=outlier.failing,
        ejections=max(0, outlier.ejections - is_clean),
        since=outlier.since,
        until=outlier.until,
        ejected_by=outlier.ejected_by,
    )


def is_chance(streak: int, others: Iterable[Outlier]) -> bool:
    """Whether the others' failure rate explains so many consecutive failures."""
    shares = [other.failing for other in others if other.failing is not None]
    return bool(shares) and (sum(shares) / len(shares)) ** streak >= CHANCE


def usual_failing(outliers: Iterable[Outlier]) -> float:
    """The median of the engines' failure shares, 0 to 1. Not the mean, which a single broken engine
    would dominate."""
    shares = [one.failing or 0.0 for one in outliers]
    return statistics.median_low(shares) if shares else 0.0


def is_shared(outlier: Outlier, usual: float) -> bool:
    """Whether the others' failure rate, `usual`, explains the streak that ejected this engine."""
    return outlier.ejected_by > 0 and usual**outlier.ejected_by >= SHARED_CHANCE


def failing(outliers: Sequence[Outlier]) -> list[int]:
    """Indexes of the engines that failed more often than the others in this interval; none if they
    are more than half of those with requests, since then the cause is elsewhere."""
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
    return difference >= MINIMUM_DIFFERENCE and difference > Z * _error(
        all_failed, all_total, total
    )


def _error(all_failed: int, all_total: int, total: int) -> float:
    """The standard error of the difference between the failure rates of `total` and of the rest."""
    pooled = all_failed / all_total
    return math.sqrt(pooled * (1 - pooled) * (1 / total + 1 / (all_total - total)))


def together(outliers: Iterable[Outlier]) -> Outlier:
    """The answers of several engines in this interval."""
    good = total = 0
    for one in outliers:
        good += one.good
        total += one.total
    return Outlier(good=good, total=total)


def have_moved(before: Outlier, now: Outlier) -> bool:
    """Whether the other engines fail more since an engine is ejected than `before`: then the
    failures follow the requests. By however little: several engines share what one had."""
    if min(before.total, now.total) < MINIMUM_REQUESTS:
        return False
    failed = now.total - now.good
    failed_before = before.total - before.good
    difference = failed / now.total - failed_before / before.total
    error = _error(failed + failed_before, now.total + before.total, now.total)
    return difference > Z * error
