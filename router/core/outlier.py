"""Does an engine answer with errors? Outlier ejection as Envoy defines it.

Consecutive failures, or a success rate far below the pool's, eject an engine for the base time
times the ejections so far; each clean interval forgets one of them. Source: Envoy's "Outlier
detection" (consecutive_5xx, success_rate_minimum_hosts, success_rate_request_volume,
success_rate_stdev_factor, base_ejection_time, max_ejection_time).
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["FINE", "Outlier", "Rules", "after", "failing", "tick"]

MINIMUM_HOSTS = 5
MINIMUM_REQUESTS = 100
STDEV_FACTOR = 1.9


@dataclass(frozen=True, slots=True)
class Rules:
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
    ejections: int = 0
    since: float | None = None
    until: float | None = None
    """The end of its ejection; None while it is in use."""


FINE = Outlier()


def after(outlier: Outlier, *, is_good: bool) -> Outlier:
    """One more answer, or failure to give one."""
    return Outlier(  # not `replace`: it takes three times as long, for every answer
        0 if is_good else outlier.streak + 1,
        outlier.good + is_good,
        outlier.total + 1,
        outlier.ejections,
        outlier.since,
        outlier.until,
    )


def ejected(outlier: Outlier, now: float, rules: Rules) -> Outlier:
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
    return replace(outlier, good=0, total=0, ejections=max(0, outlier.ejections - is_clean))


def failing(outliers: Sequence[Outlier]) -> list[int]:
    """The places of those whose success rate is far below the others' in this interval."""
    busy = [place for place, one in enumerate(outliers) if one.total >= MINIMUM_REQUESTS]
    if len(busy) < MINIMUM_HOSTS:
        return []
    rates = [outliers[place].good / outliers[place].total for place in busy]
    limit = statistics.mean(rates) - STDEV_FACTOR * statistics.pstdev(rates)
    return [place for place, rate in zip(busy, rates, strict=True) if rate < limit]
