"""What a run gave, in a user's terms."""

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from router.core.values import Role
from router.simulator.virtual.request import Request

STEADY_FROM, STEADY_TO = 0.25, 0.75
"""The steady middle, in shares of the requests that have ended: as benchmarks/distributions.py has
it."""


LEAST_SHARE = 0.5
"""Of its fair share; an engine that gets less is starved."""

SMOOTHING_SAMPLES = 4
"""Samples (a second) whose mean counts as an engine's load where its share is judged: a few
requests more or less at one moment are chance."""


SERIES = ("samples", "ttft", "e2e")
"""For plots; too much for a table."""


class Sample(NamedTuple):
    """The cluster at a moment."""

    at: float
    ended: int
    """Requests so far."""
    loads: tuple[int, ...]
    """Requests on each engine."""
    fit: tuple[bool, ...] = ()
    """Whether each engine is up, honest and of its full speed."""
    queueing: tuple[bool, ...] = ()
    """Whether requests wait there for a slot while another engine has one free for them."""
    slots: tuple[int, ...] = ()
    """Sequences that each engine can run side by side."""


class Totals(NamedTuple):
    """What was counted for one engine."""

    role: str
    group: Hashable
    """Engines of one group are alike in all that matters for their share, but for their slots."""
    served: int
    longest_wait: float
    misdirected: int
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache, and those found."""
    prefix_hits: int = 0


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One engine's part in a run. Seconds."""

    place: int
    role: str
    is_fit: bool
    """Whether it was up, honest and of its full speed all the time."""
    served: int
    """Answers; a prefill is one."""
    share: float
    """Of all answers of its role."""
    mean_in_flight: float
    """In the steady middle."""
    oscillation: float
    """The standard deviation of requests in flight over their mean, in the steady middle."""
    queueing_seconds: float
    """In which requests waited there for a slot while another engine had one free for them: one
    that is in service, makes no errors and is no slower."""
    longest_wait: float
    """The most of these that one request waited, whatever became of it."""
    starved_seconds: float
    """While it was up, honest and of full speed, with less than half of its fair share: half of
    what engines that are like it had on average, or half of its slots if these are fewer. Engines
    of another kind do not count: between unequal engines it is fair that each request ends as soon
    as it can, and that leaves a slower kind without work until the faster ones are full."""
    longest_starved: float
    """Of these seconds in a row."""
    misdirected: int
    """Requests that it got while it was set aside, though another engine was free and faster."""
    prefix_queries: int
    """Prompt tokens that it looked up in its prefix cache, as vllm:prefix_cache_queries."""
    prefix_hits: int
    """Prompt tokens that it found there, as vllm:prefix_cache_hits."""


@dataclass(frozen=True, slots=True)
class Result:
    """One scenario under one policy. Seconds; percentiles are of the requests that went well."""

    scenario: str
    policy: str
    seed: int
    requests: int
    failed: int
    seconds: float
    """From the first request to the last answer."""
    requests_per_second: float
    """Of those that went well, over all these seconds."""
    steady_requests_per_second: float
    """While the steady middle of the requests ended."""
    tokens_per_second: float
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    e2e_p50: float
    e2e_p99: float
    itl_mean: float
    """Of the mean gaps between tokens of each answer; so is `itl_p99`."""
    itl_p99: float
    threshold: str
    """Prompt tokens from which prompts were prefilled remotely, or "auto"; empty if never."""
    remote_share: float
    """The share of requests that were."""
    max_over_mean_load: float
    """The mean of this ratio over the steady middle, every quarter of a second."""
    max_over_mean_served: float
    """Answers of the busiest decode engine over the mean, in the whole run."""
    prefix_hit_rate: float
    """Prompt tokens found in prefix caches over those looked up; not a number without caches."""
    slowest_share: float
    """The share of requests that engine 0 answered: in each scenario it is one of the slowest."""
    probes: int
    """The routers' own questions."""
    leases_left: int
    """Leases that were never released; should be 0."""
    most_running: int
    """The most sequences that any engine ran at a time."""
    events: int
    engines: tuple[EngineResult, ...] = field(repr=False)
    samples: tuple[Sample, ...] = field(repr=False)
    ttft: tuple[float, ...] = field(repr=False, default=())
    """Of all requests that went well, in ascending order; so is `e2e`."""
    e2e: tuple[float, ...] = field(repr=False, default=())

    def row(self) -> dict[str, Any]:
        """Everything but the samples and single requests, for JSON."""
        figures = {name: getattr(self, name) for name in self.__slots__ if name not in SERIES}
        return figures | {"engines": [asdict(engine) for engine in self.engines]}


def percentile(ordered: Sequence[float], share: float) -> float:
    """The percentile of sorted values, linear between ranks; not a number if there are none."""
    if not ordered:
        return math.nan
    rank = share * (len(ordered) - 1)
    low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    return low + (high - low) * (rank % 1)


def result_of(
    names: tuple[str, str, int],
    ended: Sequence[Request],
    samples: Sequence[Sample],
    *,
    probes: int,
    leases_left: int,
    most_running: int,
    events: int,
    totals: Sequence[Totals] = (),
    threshold: str = "",
) -> Result:
    """The figures of a run; `ended` are all requests in the order in which they ended."""
    good = [request for request in ended if request.is_good]
    times = [request.ended or 0.0 for request in ended]
    seconds = times[-1]
    ttft = sorted((request.first or 0.0) - request.issued for request in good)
    e2e = sorted((request.ended or 0.0) - request.issued for request in good)
    first, last = (int(share * (len(times) - 1)) for share in (STEADY_FROM, STEADY_TO))
    itl = sorted(gap for gap in map(_gap, good) if gap is not None)
    steady = times[last] - times[first]
    at = Counter(request.engine for request in good)
    scenario, policy, seed = names
    return Result(
        scenario=scenario,
        policy=policy,
        seed=seed,
        requests=len(ended),
        failed=len(ended) - len(good),
        seconds=seconds,
        requests_per_second=len(good) / seconds if seconds else math.nan,
        steady_requests_per_second=(last - first) / steady if steady else math.nan,
        tokens_per_second=sum(r.output for r in good) / seconds if seconds else math.nan,
        ttft_mean=statistics.fmean(ttft) if ttft else math.nan,
        ttft_p50=percentile(ttft, 0.5),
        ttft_p99=percentile(ttft, 0.99),
        e2e_p50=percentile(e2e, 0.5),
        e2e_p99=percentile(e2e, 0.99),
        itl_mean=statistics.fmean(itl) if itl else math.nan,
        itl_p99=percentile(itl, 0.99),
        threshold=threshold,
        remote_share=sum(request.is_remote for request in good) / max(1, len(good)),
        max_over_mean_load=_skew(samples, times[first], times[last]),
        max_over_mean_served=_spread(totals),
        prefix_hit_rate=_hit_rate(totals),
        slowest_share=at[0] / max(1, len(good)),
        probes=probes,
        leases_left=leases_left,
        most_running=most_running,
        events=events,
        engines=_engines(totals, samples, times[first], times[last]),
        samples=tuple(samples),
        ttft=tuple(ttft),
        e2e=tuple(e2e),
    )


def _gap(request: Request) -> float | None:
    """The mean gap between the tokens of its answer; None if there was none."""
    if request.output < 2 or request.first is None or request.ended is None:
        return None
    return (request.ended - request.first) / (request.output - 1)


def _skew(samples: Sequence[Sample], since: float, until: float) -> float:
    slowdowns = [
        max(sample.loads) * len(sample.loads) / sum(sample.loads)
        for sample in samples
        if since <= sample.at <= until and any(sample.loads)
    ]
    return sum(slowdowns) / len(slowdowns) if slowdowns else math.nan


def _spread(totals: Sequence[Totals]) -> float:
    served = [one.served for one in totals if one.role == Role.DECODE]
    return max(served) / statistics.fmean(served) if any(served) else math.nan


def _hit_rate(totals: Sequence[Totals]) -> float:
    queries = sum(one.prefix_queries for one in totals)
    return sum(one.prefix_hits for one in totals) / queries if queries else math.nan


def _engines(
    totals: Sequence[Totals], samples: Sequence[Sample], since: float, until: float
) -> tuple[EngineResult, ...]:
    steady = [sample for sample in samples if since <= sample.at <= until]
    seconds = samples[1].at - samples[0].at if len(samples) > 1 else 0.0
    answers = Counter[str]()
    for one in totals:
        answers[one.role] += one.served
    starved = _starved(totals, samples)
    results = []
    for place, one in enumerate(totals):
        loads = [sample.loads[place] for sample in steady]
        mean = statistics.fmean(loads) if loads else math.nan
        results.append(
            EngineResult(
                place=place,
                role=one.role,
                is_fit=all(sample.fit[place] for sample in samples),
                served=one.served,
                share=one.served / max(1, answers[one.role]),
                mean_in_flight=mean,
                oscillation=statistics.pstdev(loads) / mean if loads and mean else math.nan,
                queueing_seconds=seconds * sum(sample.queueing[place] for sample in samples),
                longest_wait=one.longest_wait,
                starved_seconds=seconds * sum(starved[place]),
                longest_starved=seconds * _longest_run(starved[place]),
                misdirected=one.misdirected,
                prefix_queries=one.prefix_queries,
                prefix_hits=one.prefix_hits,
            )
        )
    return tuple(results)


def _starved(totals: Sequence[Totals], samples: Sequence[Sample]) -> list[list[bool]]:
    """For each engine and sample whether it was fit and had too little."""
    starved = [[False] * len(samples) for _ in totals]
    groups: dict[Hashable, list[int]] = {}
    for place, one in enumerate(totals):
        groups.setdefault(one.group, []).append(place)
    for number, sample in enumerate(samples):
        window = samples[max(0, number - SMOOTHING_SAMPLES + 1) : number + 1]
        for places in groups.values():
            fit = [place for place in places if sample.fit[place]]
            loads = [statistics.fmean(one.loads[place] for one in window) for place in fit]
            fair = statistics.fmean(loads) if loads else 0.0
            for place, load in zip(fit, loads, strict=True):
                least = LEAST_SHARE * min(fair, sample.slots[place])
                starved[place][number] = fair >= 1 and load < least
    return starved


def _longest_run(flags: Sequence[bool]) -> int:
    return max((len(list(run)) for is_set, run in groupby(flags) if is_set), default=0)
