"""What a run gave, in a user's terms."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from router.simulator.virtual.request import Request

__all__ = ["Result", "Sample", "percentile", "result_of"]

STEADY_FROM, STEADY_TO = 0.25, 0.75
"""The steady middle, in shares of the requests that have ended."""


class Sample(NamedTuple):
    """The cluster at a moment."""

    at: float
    ended: int
    """Requests so far."""
    loads: tuple[int, ...]
    """Requests on each engine."""


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
    """While the middle half of the requests ended."""
    tokens_per_second: float
    ttft_p50: float
    ttft_p99: float
    e2e_p50: float
    e2e_p99: float
    max_over_mean_load: float
    """The mean of this ratio over the steady middle, every quarter of a second."""
    slowest_share: float
    """The share of requests that engine 0 answered: in each scenario it is one of the slowest."""
    probes: int
    """The routers' own questions."""
    leases_left: int
    """Leases that nobody released; 0."""
    most_running: int
    """The most sequences that any engine ran at a time."""
    events: int
    samples: tuple[Sample, ...] = field(repr=False)

    def row(self) -> dict[str, Any]:
        """Everything but the samples, for JSON."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "samples"}


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of sorted values; not a number if there are none."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def result_of(
    names: tuple[str, str, int],
    ended: Sequence[Request],
    samples: Sequence[Sample],
    *,
    probes: int,
    leases_left: int,
    most_running: int,
    events: int,
) -> Result:
    """The figures of a run; `ended` are all requests in the order in which they ended."""
    good = [request for request in ended if request.is_good]
    times = [request.ended or 0.0 for request in ended]
    seconds = times[-1]
    ttft = sorted((request.first or 0.0) - request.issued for request in good)
    e2e = sorted((request.ended or 0.0) - request.issued for request in good)
    first, last = (int(share * (len(times) - 1)) for share in (STEADY_FROM, STEADY_TO))
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
        ttft_p50=percentile(ttft, 0.5),
        ttft_p99=percentile(ttft, 0.99),
        e2e_p50=percentile(e2e, 0.5),
        e2e_p99=percentile(e2e, 0.99),
        max_over_mean_load=_skew(samples, times[first], times[last]),
        slowest_share=at[0] / max(1, len(good)),
        probes=probes,
        leases_left=leases_left,
        most_running=most_running,
        events=events,
        samples=tuple(samples),
    )


def _skew(samples: Sequence[Sample], since: float, until: float) -> float:
    ratios = [
        max(sample.loads) * len(sample.loads) / sum(sample.loads)
        for sample in samples
        if since <= sample.at <= until and any(sample.loads)
    ]
    return sum(ratios) / len(ratios) if ratios else math.nan
