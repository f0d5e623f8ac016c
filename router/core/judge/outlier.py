"""Outlier ejection after Envoy: engines that fail more than the others.

Consecutive failures, or a failure rate well above the pool's, eject an engine for the base time
times the ejections so far; each clean interval forgets one of them. Source: Envoy's "Outlier
detection" (consecutive_5xx, success_rate_request_volume, base_ejection_time, max_ejection_time).

Two rules differ, because requests that fail everywhere (a broken model, a poisoned prompt) must not
eject engines. Consecutive failures count only if the others' failure rate does not explain them.
Where all engines begin to fail at once, the first ones look alone for a moment: they are taken back
as soon as most of the others fail as well. And an engine's rate is compared with that of all others
together, by a two-proportion z-test, not by standard deviations of the engines' rates: if no other
engine fails, a single failure is any number of deviations away. Both rules compare model by model,
because engines may serve different ones: errors of a model are no fault of the few engines that
serve it. Chance, or prompts that go where their prefix is cached, may send one engine nearly all
requests that fail everywhere: an engine that its rate ejected is taken back if the others fail more
than before from then on.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from router.core.judge.tuning import (
    CHANCE,
    FAILURE_WEIGHT,
    MINIMUM_DIFFERENCE,
    MINIMUM_REQUESTS,
    SHARED_CHANCE,
    Z,
)

__all__ = [
    "HEALTHY",
    "NEVER_EJECTED",
    "Ejection",
    "Outlier",
    "OutlierConfig",
    "failures_follow_requests",
    "is_chance",
    "is_shared",
    "mean_failure_rate",
    "outlier_indexes",
    "summed",
    "tick",
    "usual_failure_rate",
    "without_ejection",
]


@dataclass(frozen=True, slots=True)
class OutlierConfig:
    """When an engine is ejected, and for how long."""

    consecutive: int = 5
    """Failures in a row; 0 switches ejection off."""
    base_seconds: float = 30.0
    max_seconds: float = 300.0
    interval_seconds: float = 10.0


@dataclass(slots=True, init=False)  # see CONTRIBUTING.md, "Compiled modules"
class Outlier:
    """An engine's answers and ejections. Answers are counted in place, since that is done for each
    request; each engine has its own."""

    streak: int
    """Failures in a row."""
    good: int
    total: int
    """Answers in this interval."""
    failure_rate: float | None
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
        failure_rate: float | None = None,
        ejections: int = 0,
        since: float | None = None,
        until: float | None = None,
        ejected_by: int = 0,
    ) -> None:
        self.streak = streak
        self.good = good
        self.total = total
        self.failure_rate = failure_rate
        self.ejections = ejections
        self.since = since
        self.until = until
        self.ejected_by = ejected_by

    def count(self, *, is_good: bool) -> None:
        """Count one more answer or failure."""
        rate = self.failure_rate or 0.0  # a first failure is no rate yet
        self.total += 1
        if is_good:
            self.streak = 0
            self.good += 1
            self.failure_rate = rate - FAILURE_WEIGHT * rate
        else:
            self.streak += 1
            self.failure_rate = rate + FAILURE_WEIGHT * (1.0 - rate)


HEALTHY = Outlier()
"""Not ejected, and no answers counted: for comparison. An engine has one of its own."""


class Ejection(NamedTuple):
    """What was found when an engine was ejected, to judge later whether that was right."""

    others: Outlier
    """Answers and failures of the other engines in that interval."""
    streaks: Mapping[str | None, int]
    """Its failures in a row for each model."""


NEVER_EJECTED = Ejection(HEALTHY, {})


def ejected(outlier: Outlier, now: float, rules: OutlierConfig, streak: int = 0) -> Outlier:
    """The state of an engine ejected at `now` by `streak` failures in a row; 0: by its rate."""
    times = outlier.ejections + 1
    seconds = min(rules.base_seconds * times, rules.max_seconds)
    return Outlier(ejections=times, since=now, until=now + seconds, ejected_by=streak)


def without_ejection(outlier: Outlier) -> Outlier:
    """The state of an engine whose ejection was a mistake."""
    return Outlier(ejections=outlier.ejections - 1)


def tick(outlier: Outlier, now: float) -> Outlier:
    """The state at `now`: back in use once its time is over."""
    if outlier.until is not None and now >= outlier.until:
        return Outlier(ejections=outlier.ejections)
    return outlier


def next_interval(outlier: Outlier) -> Outlier:
    """The state at the start of a new interval; an interval without failures forgets one earlier
    ejection."""
    is_clean = outlier.until is None and outlier.good == outlier.total
    return Outlier(
        streak=outlier.streak,
        failure_rate=outlier.failure_rate,
        ejections=max(0, outlier.ejections - is_clean),
        since=outlier.since,
        until=outlier.until,
        ejected_by=outlier.ejected_by,
    )


def is_chance(streak: int, mean: float) -> bool:
    """Whether the others' mean failure rate explains so many consecutive failures."""
    return mean**streak >= CHANCE


def mean_failure_rate(outliers: Iterable[Outlier]) -> float:
    """The mean of the engines' failure shares, 0 to 1, as far as they are known."""
    shares = [one.failure_rate for one in outliers if one.failure_rate is not None]
    return sum(shares) / len(shares) if shares else 0.0


def usual_failure_rate(outliers: Iterable[Outlier]) -> float:
    """The median of the engines' failure shares, 0 to 1. Not the mean, which a single broken engine
    would dominate."""
    shares = [one.failure_rate or 0.0 for one in outliers]
    return statistics.median_low(shares) if shares else 0.0


def is_shared(outlier: Outlier, usual: float) -> bool:
    """Whether the others' failure rate, `usual`, explains the streak that ejected this engine."""
    return outlier.ejected_by > 0 and usual**outlier.ejected_by >= SHARED_CHANCE


def outlier_indexes(engines: Sequence[Mapping[str | None, Outlier]]) -> list[int]:
    """Indexes of the engines that failed more often in this interval than the others did for the
    same models; none if they are more than half of those with requests, since then the cause is
    elsewhere. `engines`: the answers of each, by model."""
    models = {model for answers in engines for model in answers}
    pool = {model: summed(one[model] for one in engines if model in one) for model in models}
    found = [place for place, answers in enumerate(engines) if _is_worse(answers, pool)]
    busy = sum(any(one.total for one in answers.values()) for answers in engines)
    return found if 2 * len(found) <= busy else []


def _is_worse(answers: Mapping[str | None, Outlier], pool: Mapping[str | None, Outlier]) -> bool:
    """Whether an engine's failure rate is higher than the rate of the others, weighted like its
    own requests by model."""
    requests = 0
    difference = variance = 0.0
    for own, others in _comparisons(answers, pool):
        requests += own.total
        difference += own.total * (_rate(own) - _rate(others))
        variance += (own.total * _error(own, others)) ** 2
    return (
        requests >= MINIMUM_REQUESTS
        and difference >= MINIMUM_DIFFERENCE * requests
        and difference > Z * math.sqrt(variance)
    )


def _comparisons(
    answers: Mapping[str | None, Outlier], pool: Mapping[str | None, Outlier]
) -> list[tuple[Outlier, Outlier]]:
    """An engine's answers and those of the others, for each model. Models for which the others
    have few answers are compared together; those for which they have none, not at all."""
    found: list[tuple[Outlier, Outlier]] = []
    few: list[tuple[Outlier, Outlier]] = []
    for model, own in answers.items():
        every = pool[model]
        others = Outlier(good=every.good - own.good, total=every.total - own.total)
        if own.total and others.total:
            (found if others.total >= MINIMUM_REQUESTS else few).append((own, others))
    rest = summed(own for own, _ in few), summed(others for _, others in few)
    if rest[1].total >= MINIMUM_REQUESTS:
        found.append(rest)
    return found


def _rate(outlier: Outlier) -> float:
    """The share of this interval's requests that failed."""
    return (outlier.total - outlier.good) / outlier.total


def _error(some: Outlier, others: Outlier) -> float:
    """The standard error of the difference between two failure rates, if they are in truth the
    same."""
    pooled = _rate(summed((some, others)))
    return math.sqrt(pooled * (1.0 - pooled) * (1 / some.total + 1 / others.total))


def summed(outliers: Iterable[Outlier]) -> Outlier:
    """The answers of several engines in this interval."""
    good = total = 0
    for one in outliers:
        good += one.good
        total += one.total
    return Outlier(good=good, total=total)


def failures_follow_requests(before: Outlier, now: Outlier) -> bool:
    """Whether the other engines fail more since an engine is ejected than `before`: then the
    failures follow the requests. By however little: several engines share what one had."""
    if min(before.total, now.total) < MINIMUM_REQUESTS:
        return False
    return _rate(now) - _rate(before) > Z * _error(now, before)
