"""How fast a simulated engine is at what time: factors on its step, and when they change.

Pure: the time is an argument, in seconds after the job's first request.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FREEZE = None
# Eight times an eighth must be one, for any rounding of the sum.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Change:
    """From `at_s` on, the engine's step is `factor` times as long; with FREEZE there is none.

    Engines are numbered from 0, decode engines first. What changes at 0 holds before the job too.
    """

    at_s: float
    engine: int
    factor: float | None


class Pace:
    """Selects the beats of the healthy step at which one engine steps."""

    def __init__(self, changes: Sequence[Change] = ()) -> None:
        self._left = deque(sorted(changes, key=lambda change: change.at_s))
        self.factor: float | None = 1.0
        self._progress = 0.0

    def due(self, now_s: float) -> bool:
        """Whether this beat completes a step; call it once per beat."""
        while self._left and self._left[0].at_s <= now_s:
            self.factor = self._left.popleft().factor
        if self.factor is FREEZE:
            return False
        self._progress += 1 / self.factor
        if self._progress < 1 - ROUNDING:
            return False
        self._progress = max(self._progress - 1, 0.0)
        return True


def factors(changes: Sequence[Change], engines: int, now_s: float) -> list[float | None]:
    """The factor of each engine at a time."""
    found: list[float | None] = [1.0] * engines
    for change in sorted(changes, key=lambda change: change.at_s):
        if change.at_s <= now_s:
            found[change.engine] = change.factor
    return found


def frozen(changes: Sequence[Change]) -> tuple[float, float] | None:
    """When the first freeze begins and ends; None without one that ends."""
    for change in changes:
        if change.factor is FREEZE:
            later = [c.at_s for c in changes if c.engine == change.engine and c.at_s > change.at_s]
            return (change.at_s, min(later)) if later else None
    return None


def recovery(changes: Sequence[Change]) -> Change | None:
    """The last return of an engine to full speed during the job."""
    found = [change for change in changes if change.at_s > 0 and change.factor == 1.0]
    return max(found, key=lambda change: change.at_s, default=None)


def phases(changes: Sequence[Change]) -> list[tuple[float, float]]:
    """The times between changes, from 0 on: begin and end, the last one without end."""
    edges = sorted({0.0, *(change.at_s for change in changes)})
    return [*pairwise(edges), (edges[-1], float("inf"))]
