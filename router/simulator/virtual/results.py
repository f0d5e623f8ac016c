"""The results of a run, in terms that users know."""

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from router.core.values import Role
from router.simulator.virtual.requests import VirtualRequest

STEADY_FROM, STEADY_TO = 0.25, 0.75
"""The steady middle, as shares of the ended requests, like in benchmarks/distributions.py."""


LEAST_SHARE = 0.5
"""An engine that gets less than this share of its fair share is starved."""

SMOOTHING_SAMPLES = 4
"""Samples (one second) over which an engine's load is averaged to judge its share, because the load
at one moment is random."""


SERIES = ("samples", "ttft", "e2e")
"""Fields for plots, too large for a table."""


class Sample(NamedTuple):
    """The state of the cluster at one time."""

    at: float
    ended: int
    """Requests that have ended."""
    loads: tuple[int, ...]
    """Requests on each engine."""
    fit: tuple[bool, ...] = ()
    """Whether each engine is up, without faults and at full speed."""
    queueing: tuple[bool, ...] = ()
    """Whether requests are queued there while another engine has a free slot for them."""
    slots: tuple[int, ...] = ()
    """Sequences that each engine can run concurrently."""


class Totals(NamedTuple):
    """Counts of one engine."""

    role: str
    group: Hashable
    """Engines of one group have equal fair shares, apart from their slots."""
    served: int
    longest_wait: float
    misdirected: int
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache, and those found."""
    prefix_hits: int = 0


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One engine's results. Times in seconds."""

    place: int
    role: str
    is_fit: bool
    """Whether it was up, without faults and at full speed all the time."""
    served: int
    """Number of answers, including prefills."""
    share: float
    """Share of all answers of its role."""
    mean_in_flight: float
    """Mean in the steady middle."""
    oscillation: float
    """Standard deviation of requests in flight over their mean, in the steady middle."""
    queueing_seconds: float
    """Seconds in which requests were queued here while another engine, which is up, without errors
    and no slower, had a free slot for them."""
    longest_wait: float
    """The most of these seconds that one request waited, whatever its outcome."""
    starved_seconds: float
    """Seconds in which it was up, without faults and at full speed, with less than half of its fair
    share: half of the mean load of engines of its group, or half of its slots if these are fewer.
    Engines of other groups do not count: between unequal engines it is fair that each request ends
    as early as possible, which leaves slower engines without work until the faster ones are
    full."""
    longest_starved: float
    """The most consecutive seconds of these."""
    misdirected: int
    """Requests that it got while it was excluded, although another engine was free and faster."""
    prefix_queries: int
    """Prompt tokens that it looked up in its prefix cache (vllm:prefix_cache_queries)."""
    prefix_hits: int
    """Prompt tokens that it found there (vllm:prefix_cache_hits)."""


@dataclass(frozen=True, slots=True)
class Result:
    """The results of one scenario under one policy. Times in seconds; percentiles are of successful
    requests."""

    scenario: str
    policy: str
    seed: int
    requests: int
    failed: int
    seconds: float
    """From the first request to the last answer."""
    requests_per_second: float
    """Successful requests over all these seconds."""
    steady_requests_per_second: float
    """The same during the steady middle."""
    tokens_per_second: float
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    e2e_p50: float
    e2e_p99: float
    itl_mean: float
    """Of the mean gaps between tokens of each answer, like `itl_p99`."""
    itl_p99: float
    threshold: str
    """Prompt tokens from which prompts were prefilled remotely, or "auto"; empty if none were."""
    remote_share: float
    """The share of requests that were prefilled remotely."""
    crossing_share: float
    """The share of these whose KV cache came from another zone; NaN without zones."""
    continues: bool
    """Whether streams could go on with other engines."""
    continued: int
    """Successful requests that did."""
    longest_pause: float
    """Of these, between two tokens of different engines."""
    has_deadlines: bool
    """Whether requests were refused that were expected to miss the limit of TTFT."""
    in_time_per_second: float
    """First tokens within the limit of TTFT, per second of arrivals; nan without a limit."""
    max_over_mean_load: float
    """Mean of this ratio over the steady middle, sampled every 0.25 s."""
    max_over_mean_served: float
    """Answers of the busiest decode engine over the mean, in the whole run."""
    prefix_hit_rate: float
    """Prompt tokens found in prefix caches over those looked up; NaN without prefix caches."""
    slowest_share: float
    """The share of requests answered by engine 0, which is one of the slowest in each scenario."""
    probes: int
    """The number of the routers' own requests."""
    leases_left: int
    """Leases that were never released; should be 0."""
    most_running: int
    """The most sequences that any engine ran at a time."""
    events: int
    engines: tuple[EngineResult, ...] = field(repr=False)
    samples: tuple[Sample, ...] = field(repr=False)
    ttft: tuple[float, ...] = field(repr=False, default=())
    """Of all successful requests in ascending order, like `e2e`."""
    e2e: tuple[float, ...] = field(repr=False, default=())

    def row(self) -> dict[str, Any]:
        """All results except samples and single requests, for JSON."""
        figures = {name: getattr(self, name) for name in self.__slots__ if name not in SERIES}
        return figures | {"engines": [asdict(engine) for engine in self.engines]}


def percentile(ordered: Sequence[float], share: float) -> float:
    """A percentile of sorted values, linearly interpolated between ranks; NaN if there are none."""
    if not ordered:
        return math.nan
    rank = share * (len(ordered) - 1)
    low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    return low + (high - low) * (rank % 1)


def result_of(
    names: tuple[str, str, int],
    ended: Sequence[VirtualRequest],
    samples: Sequence[Sample],
    *,
    probes: int,
    leases_left: int,
    most_running: int,
    events: int,
    totals: Sequence[Totals] = (),
    threshold: str = "",
    continues: bool = False,
    slo_ttft: float | None = None,
    has_deadlines: bool = False,
    has_zones: bool = False,
) -> Result:
    """The results of a run. `ended`: all requests in the order in which they ended."""
    good = [request for request in ended if request.is_good]
    times = [request.ended or 0.0 for request in ended]
    seconds = times[-1]
    ttft = sorted((request.first or 0.0) - request.issued for request in good)
    e2e = sorted((request.ended or 0.0) - request.issued for request in good)
    first, last = (int(share * (len(times) - 1)) for share in (STEADY_FROM, STEADY_TO))
    itl = sorted(gap for gap in map(_gap, good) if gap is not None)
    steady = times[last] - times[first]
    at = Counter(request.engine for request in good)
    pauses = [request.pause for request in good if request.pause]
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
        continues=continues,
        continued=len(pauses),
        has_deadlines=has_deadlines,
        in_time_per_second=_in_time(ended, ttft, slo_ttft),
        longest_pause=max(pauses, default=math.nan),
        remote_share=sum(request.is_remote for request in good) / max(1, len(good)),
        crossing_share=_crossing(good) if has_zones else math.nan,
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


def _in_time(
    ended: Sequence[VirtualRequest], ttft: Sequence[float], slo_ttft: float | None
) -> float:
    seconds = max(request.issued for request in ended)
    if slo_ttft is None or not seconds:
        return math.nan
    return sum(each <= slo_ttft for each in ttft) / seconds


def _crossing(good: Sequence[VirtualRequest]) -> float:
    remote = [request for request in good if request.is_remote]
    return sum(request.crosses for request in remote) / max(1, len(remote))


def _gap(request: VirtualRequest) -> float | None:
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
    """For each engine and sample, whether the engine was fit and starved."""
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
