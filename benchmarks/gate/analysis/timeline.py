"""What every worker held and produced over time.

Pure. Times are seconds since the measured phase began.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.gate.analysis.records import Request, Run, WorkerSample

Numbers = NDArray[np.float64]

# Points of a timeline: about the width of a plot.
POINTS = 400
# A sample speaks for its worker until the next one, and for no longer than this many intervals.
STALE_INTERVALS = 5
# Loads are counted from requests only if nearly all of these name their worker.
ATTRIBUTED = 0.95
# A source with more than half of its samples missing is not used. A dead worker's are missing.
KNOWN = 0.5


@dataclass(frozen=True, slots=True)
class Timeline:
    """Requests held by each worker, at the same times; NaN if unknown.

    `source` of the counts: the requests themselves, the router, or the engines.
    """

    times: Numbers
    loads: dict[str, Numbers]
    source: str

    def others(self, worker: str) -> Numbers:
        """The median of the other workers at each time."""
        rest = np.array([load for name, load in self.loads.items() if name != worker])
        known = ~np.isnan(rest).all(axis=0)
        median = np.full(len(self.times), np.nan)
        median[known] = np.nanmedian(rest[:, known], axis=0)
        return median

    def most(self, worker: str) -> Numbers:
        """The most that any other worker held at each time."""
        rest = np.array([load for name, load in self.loads.items() if name != worker])
        return np.asarray(np.fmax.reduce(rest, axis=0), dtype=np.float64)

    def among(self, names: Iterable[str]) -> "Timeline":
        """Of these workers only."""
        return Timeline(self.times, {name: self.loads[name] for name in names}, self.source)


def end_of(run: Run) -> float:
    """When the last thing of the phase happened."""
    ends = [each.ended or each.last or each.sent for each in run.requests]
    return max([*ends, *(sample.at for sample in run.samples)], default=0.0)


def attributed(run: Run) -> bool:
    """Whether nearly all answers name their worker."""
    good = [each.worker is not None for each in run.requests if each.succeeded]
    return bool(good) and sum(good) >= ATTRIBUTED * len(good)


def workers_of(run: Run) -> list[str]:
    """All workers that were ever named, sorted."""
    named = {each.worker for each in run.requests} | {each.worker for each in run.samples}
    named |= {name for each in run.requests for name in each.left}
    return sorted(name for name in named if name is not None)


def serving(run: Run) -> list[str]:
    """Workers that answers name, sorted: prefill engines, seen in samples only, are not there."""
    return sorted({each.worker for each in run.requests if each.worker is not None})


def visits(run: Run) -> dict[str, list[Request]]:
    """Requests by worker: answered ones, and those that moved away before."""
    found: dict[str, list[Request]] = {name: [] for name in workers_of(run)}
    for each in run.requests:
        for name in {each.worker, *each.left}:
            if name is not None:
                found[name].append(each)
    return found


def stays(requests: Iterable[Request], worker: str) -> tuple[Numbers, Numbers]:
    """When requests came to a worker, and when they went: each sorted. One that moved was at the
    worker that it left until its first content, and from then on at the one that answered."""
    came, went = [], []
    for each in requests:
        mine, left = each.worker == worker, each.left
        if not (mine or worker in left):
            continue
        moved = None if not left else each.first if each.first is not None else each.ended
        if worker in left:
            came.append(each.sent)
            if moved is not None:
                went.append(moved)
        else:
            came.append(each.sent if moved is None else moved)
            if each.ended is not None:
                went.append(each.ended)
    return np.sort(np.array(came)), np.sort(np.array(went))


def timeline(run: Run) -> Timeline | None:
    """Requests held per worker, from the best source; None without any.

    The router's counts include requests that never ended. The engines' counts are second. Requests
    name their worker only in the answer, so unanswered ones are missing.
    """
    times = np.linspace(0.0, end_of(run), POINTS)
    names = workers_of(run)
    for source in ("router", "engines"):
        known = sum(_held(sample, source) is not None for sample in run.samples)
        if known and known >= KNOWN * len(run.samples):
            samples: dict[str, list[WorkerSample]] = {name: [] for name in names}
            for sample in run.samples:
                samples[sample.worker].append(sample)
            loads = {name: _sampled(mine, times, source) for name, mine in samples.items()}
            return Timeline(times, loads, source)
    if not attributed(run):
        return None
    loads = {name: _counted(mine, name, times) for name, mine in visits(run).items()}
    return Timeline(times, loads, "requests")


def _held(sample: WorkerSample, source: str) -> float | None:
    if source == "router":
        return sample.in_flight
    return None if sample.running is None else sample.running + (sample.waiting or 0.0)


def _sampled(samples: Sequence[WorkerSample], times: Numbers, source: str) -> Numbers:
    """What one worker held, by its samples."""
    held_at = ((each.at, _held(each, source)) for each in samples)
    mine = sorted((at, held) for at, held in held_at if held is not None)
    if not mine:
        return np.full(len(times), np.nan)
    at, held = (np.array(column, dtype=np.float64) for column in zip(*mine, strict=True))
    stale = STALE_INTERVALS * float(np.median(np.diff(at))) if len(at) > 1 else np.inf
    index = np.searchsorted(at, times, side="right") - 1
    known = (index >= 0) & (times - at[np.maximum(index, 0)] <= stale)
    return np.where(known, held[np.maximum(index, 0)], np.nan)


def _counted(requests: Iterable[Request], name: str, times: Numbers) -> Numbers:
    begun, over = (np.searchsorted(each, times, side="right") for each in stays(requests, name))
    return (begun - over).astype(np.float64)


def chunk_times(requests: Iterable[Request]) -> Numbers:
    """When content arrived, in order of time."""
    parts = [
        each.first + np.concatenate(([0.0], np.cumsum(each.gaps)))
        for each in requests
        if each.first is not None
    ]
    return np.sort(np.concatenate(parts)) if parts else np.empty(0)


def rate(at: Numbers, edges: Numbers) -> Numbers:
    """Events per second in each bin."""
    counts, _ = np.histogram(at, edges)
    return np.asarray(counts / np.diff(edges), dtype=np.float64)
