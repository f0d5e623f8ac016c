"""What became of a load, engine by engine: the figures that claims are made about."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from tests.e2e.judgement.engine import Engine
from tests.e2e.judgement.load import Request

__all__ = ["Figures", "Look", "Row", "Sample", "figures_of"]


class Sample(NamedTuple):
    """The engines at one moment, in the cluster's order."""

    at: float
    running: tuple[int, ...]
    waiting: tuple[int, ...]


class Look(NamedTuple):
    """A router's view of an engine at one moment."""

    at: float
    exclusion: str | None
    """ejected, stalled or slow."""
    slowdown: float | None
    """Its seconds per token in times of the pool's usual ones, as far as that is known."""
    slots: float | None
    """Requests that it is thought to serve side by side; None for no known limit."""


@dataclass(frozen=True, slots=True)
class Row:
    """One engine."""

    name: str
    requests: int
    """Those that reached it."""
    failed: int
    """Those of them that ended there without a whole answer."""
    moved: int
    """Those of them that were sent to another engine of its role afterwards."""
    running: tuple[int, ...]
    """In its batch, at every look while the load was sent."""
    waiting: tuple[int, ...]
    """In its queue."""
    looks: tuple[Look, ...]
    """The routers' views of it."""

    @property
    def exclusion(self) -> list[str]:
        """What it was called: ejected, stalled or slow."""
        return sorted({look.exclusion for look in self.looks if look.exclusion is not None})

    @property
    def queue(self) -> float:
        """Its mean queue."""
        return fmean(self.waiting) if self.waiting else 0.0

    @property
    def in_flight(self) -> tuple[int, ...]:
        return tuple(a + b for a, b in zip(self.running, self.waiting, strict=True))


@dataclass(frozen=True, slots=True)
class Figures:
    """All engines of one role, and the load itself."""

    rows: tuple[Row, ...]
    sent: int
    errors: Counter[str]
    """What was wrong with answers, and how often."""
    seconds: float
    """From the first request sent to the last one."""
    pause: float
    """The longest time, in seconds, in which this process had no turn: it makes engines late."""

    def __getitem__(self, place: int) -> Row:
        return self.rows[place]

    @property
    def failed(self) -> int:
        """Requests without a whole answer."""
        return self.errors.total()

    @property
    def fair(self) -> float:
        """An equal share, in requests."""
        return sum(row.requests for row in self.rows) / len(self.rows)

    @property
    def moved(self) -> int:
        """How often a request was sent to another engine."""
        return sum(row.moved for row in self.rows)

    def called(self, *reasons: str) -> set[str]:
        """The names of engines that were called ejected, stalled or slow."""
        return {row.name for row in self.rows if set(reasons) & set(row.exclusion)}

    def is_even(self, least: float = 0.5, most: float = 2.0) -> bool:
        """Whether every engine has between `least` and `most` fair shares."""
        fair = self.fair
        return all(least * fair <= row.requests <= most * fair for row in self.rows)

    def __str__(self) -> str:
        total = sum(row.requests for row in self.rows) or 1
        lines = [
            f"{self.sent} requests in {self.seconds:.1f} s, {self.failed} failed; this process "
            f"paused for up to {self.pause:.2f} s",
            f"engine requests share failed moved queue  {'in flight':<22}  "
            f"{'times usual':<28}  slots",
            *(_line(row, row.requests / total) for row in self.rows),
            *(f"{count} x {error}" for error, count in self.errors.most_common(5)),
        ]
        return "\n" + "\n".join(lines)


def _line(row: Row, share: float) -> str:
    slowdowns = [look.slowdown for look in row.looks if look.slowdown is not None]
    return (
        f"{row.name:<7}{row.requests:>8} {share:>5.0%} {row.failed:>6} {row.moved:>5} "
        f"{row.queue:>5.1f}  {_timeline(row.in_flight, 0):<22}  {_timeline(slowdowns, 1):<28}  "
        f"{_least_slots(row):<5} {' '.join(row.exclusion)}"
    )


def figures_of(
    engines: Sequence[Engine],
    requests: Sequence[Request],
    samples: Sequence[Sample],
    looks: Mapping[str, Sequence[Look]],
) -> Figures:
    """`engines` are those of one role; `samples` are theirs, `looks` (by URL) all there are."""
    first, last = requests[0].sent_at, requests[-1].sent_at
    over = max(request.ended_at or math.inf for request in requests)
    ours = {request.number for request in requests}
    failed = {request.number for request in requests if request.error is not None}
    ends_at = {
        visit.number: engine
        for visit, engine in sorted(
            ((visit, engine) for engine in engines for visit in engine.visits),
            key=lambda pair: pair[0].at,
        )
    }
    inside = [sample for sample in samples if first <= sample.at <= last]
    rows = []
    for place, engine in enumerate(engines):
        visits = {visit.number for visit in engine.visits} & ours
        stayed = {number for number in visits if ends_at[number] is engine}
        rows.append(
            Row(
                engine.name,
                len(visits),
                len(stayed & failed),
                len(visits - stayed),
                tuple(sample.running[place] for sample in inside),
                tuple(sample.waiting[place] for sample in inside),
                tuple(look for look in looks.get(engine.url, ()) if first <= look.at <= over),
            )
        )
    errors = Counter(request.error for request in requests if request.error is not None)
    pause = max((b.at - a.at for a, b in pairwise(inside)), default=0.0)
    return Figures(tuple(rows), len(requests), errors, last - first, pause)


def _least_slots(row: Row) -> str:
    slots = [look.slots for look in row.looks if look.slots is not None]
    return f"{min(slots):g}" if slots else "-"


COLUMNS = 7
"""Of the picture of a time line."""


def _timeline(values: Sequence[float], digits: int) -> str:
    """Means of equal parts of the time."""
    parts = min(COLUMNS, len(values))
    cuts = [len(values) * part // parts for part in range(parts + 1)] if parts else []
    return " ".join(f"{fmean(values[a:b]):.{digits}f}" for a, b in pairwise(cuts))
