"""Faults of single workers in a run: too many requests, a hang, the slowest answers.

Pure.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.gate.analysis.records import Request, Run
from benchmarks.gate.analysis.timeline import (
    Numbers,
    Timeline,
    attributed,
    chunk_times,
    end_of,
    rate,
    serving,
    stays,
    visits,
)

# Backed up: 1022 and 643 where 256 were fair, the others at 16 to 366 (1.14). Balanced runs: 296.
OF_FAIR, OF_OTHERS = 1.5, 2.0
# Also with a fair share, if the others have almost none (kv: 303 against 1).
OF_OTHERS_ALONE = 4.0
# Choosing at random spreads by the root of the share: no backup within four deviations.
DEVIATIONS = 4.0
# One worker's fault, where this much of the slow, of the failed or of the held was its own.
MOSTLY = 0.6
# Shorter than this share of the phase is a hiccup.
SUSTAINED = 0.05
# A worker with requests and less than this share of the others' tokens hangs.
STALLED_SHARE = 0.25
# The slowest 1 % are p99's.
SLOWEST = 99.0
# Others under this share of their usual rate are the end of the run, not a standard.
GOING = 0.5
BINS = 40

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Span:
    """Something that one worker did from a time to a time."""

    worker: str
    since: float
    until: float

    @property
    def seconds(self) -> float:
        """How long."""
        return self.until - self.since


def longest(mask: Mask) -> tuple[int, int] | None:
    """First and last index of the longest run of true; the first of equals."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    if not len(edges):
        return None
    begins, ends = edges[::2], edges[1::2]
    best = int(np.argmax(ends - begins))
    return int(begins[best]), int(ends[best]) - 1


def comparable(run: Run, seen: Timeline) -> Timeline:
    """Workers of one kind: those that requests name, and those with a fair share or more.

    Prefill engines hold requests only briefly, and are not comparable with decode engines.
    """
    if not attributed(run):
        return seen
    named, fair = serving(run), run.concurrency / len(seen.loads)
    holds = [name for name, load in seen.loads.items() if np.nansum(load >= fair)]
    return seen.among(sorted({*named, *holds} & seen.loads.keys()))


def holder(seen: Timeline, at: float) -> tuple[str, float, float] | None:
    """The worker that held most of all requests at a time, how many, and of how many; None if none
    did."""
    index = max(int(np.searchsorted(seen.times, at, side="right")) - 1, 0)
    loads = {name: float(load[index]) for name, load in seen.loads.items()}
    held = {name: load for name, load in loads.items() if not math.isnan(load)}
    total = sum(held.values())
    if len(held) < 2 or total <= 0:
        return None
    most = max(held, key=lambda name: held[name])
    return (most, held[most], total) if held[most] >= MOSTLY * total else None


def backed_up(seen: Timeline, worker: str, fair: float, last_sent: float) -> Span | None:
    """When a worker held far more than its share and than the others, for long enough.

    Only while requests were still sent: the last worker to finish is not backed up.
    """
    load = seen.loads[worker]
    with np.errstate(invalid="ignore"):
        # One alone: several that hold more than others are of another kind, as decode engines are.
        single = (load >= fair) & (load >= OF_FAIR * seen.most(worker))
        if not single.any():  # the usual case; medians of a thousand workers take their time
            return None
        others = seen.others(worker)
        much = (load >= OF_FAIR * fair) & (load >= OF_OTHERS * others)
        alone = load >= OF_OTHERS_ALONE * others
        more = (much | alone) & single & (load - others >= DEVIATIONS * math.sqrt(fair))
    found = longest(more & (seen.times <= last_sent))
    if found is None:
        return None
    span = Span(worker, float(seen.times[found[0]]), float(seen.times[found[1]]))
    return span if span.seconds >= SUSTAINED * float(seen.times[-1]) else None


def tokens_per_request(
    requests: Iterable[Request], name: str, chunks: Numbers, span: Span
) -> float | None:
    """Tokens per second and held request in the span; None without held requests."""
    came, went = (np.clip(each, span.since, span.until) for each in stays(requests, name))
    # Who never went was there until the end.
    held = float(np.sum(span.until - came) - np.sum(span.until - went))
    produced = int(np.count_nonzero((chunks >= span.since) & (chunks < span.until)))
    return produced / held if held > 0 else None


def chunks_of(run: Run) -> dict[str, Numbers]:
    """When content arrived, by worker."""
    requests = visits(run)
    return {
        name: chunk_times(each for each in requests[name] if each.worker == name)
        for name in serving(run)
    }


def slowest(run: Run) -> list[Request]:
    """The answered requests whose first content took longest: the slowest 1 %."""
    good = [each for each in run.requests if each.succeeded]
    waits = np.array([(each.first or 0.0) - each.sent for each in good])
    if not len(waits):
        return []
    limit = np.percentile(waits, SLOWEST)
    return [each for each, wait in zip(good, waits, strict=True) if wait >= limit]


def standstills(run: Run) -> list[Span]:
    """Workers with requests and almost no tokens while others continued, worst first."""
    end = end_of(run)
    if not attributed(run) or end <= 0:
        return []
    edges = np.linspace(0.0, end, BINS + 1)
    rates = {name: rate(chunks, edges) for name, chunks in chunks_of(run).items()}
    if len(rates) < 2:
        return []
    found, requests = [], visits(run)
    for name, mine in rates.items():
        others = np.median([each for other, each in rates.items() if other != name], axis=0)
        steady = float(np.median(others))
        going = np.flatnonzero(others >= GOING * steady)
        still = mine < STALLED_SHARE * steady
        if not (len(going) and still.any()):
            continue
        still &= _held_during(requests[name], name, edges)
        span = longest(still & (np.arange(BINS) <= going[-1]))
        # A lull that all share is no standstill of one worker.
        if span is not None and span[1] > span[0] and _alone(others, span, steady):
            seen = Span(name, float(edges[span[0]]), float(edges[span[1] + 1]))
            found.append(silence(run, seen) or seen)
    return sorted(found, key=lambda span: -span.seconds)


def silence(run: Run, span: Span) -> Span | None:
    """The longest time in which the worker sent no content at all, where it fills most of the span:
    when a standstill began and ended, to the token. None where requests do not name their
    worker."""
    if not attributed(run):
        return None
    chunks = chunk_times(each for each in run.requests if each.worker == span.worker)
    at = np.concatenate(([0.0], chunks, [end_of(run)]))
    within = np.minimum(at[1:], span.until) - np.maximum(at[:-1], span.since)
    longest_one = int(np.argmax(within))
    if within[longest_one] < MOSTLY * span.seconds:
        return None
    return Span(span.worker, float(at[longest_one]), float(at[longest_one + 1]))


def onset(seen: Timeline, span: Span, fair: float) -> float:
    """When the load of a backed-up worker began to rise: from then on it is a deviation above its
    share and above the others."""
    load, others = seen.loads[span.worker], seen.others(span.worker)
    with np.errstate(invalid="ignore"):
        usual = load <= np.fmax(others, fair) + math.sqrt(fair)
    before = np.flatnonzero(usual & (seen.times < span.since))
    return float(seen.times[before[-1] + 1]) if len(before) else span.since


def _alone(others: Numbers, span: tuple[int, int], steady: float) -> bool:
    """Whether the others went on meanwhile."""
    return float(others[span[0] : span[1] + 1].mean()) >= GOING * steady


def _held_during(requests: Iterable[Request], name: str, edges: Numbers) -> Mask:
    """Whether the worker had a request throughout each bin."""
    came, went = stays(requests, name)
    counts = np.searchsorted(came, edges[:-1], "right") - np.searchsorted(went, edges[1:], "left")
    return np.asarray(counts > 0)
