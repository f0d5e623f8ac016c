"""How evenly streams lie on engines: the largest engine's number less the smallest's, over time.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.distributions import percentile
from benchmarks.loadgen.spans import PERIOD_S


class Spread:
    """Collects looks since the last `take`."""

    def __init__(self) -> None:
        self._seen: list[int] = []

    def look(self, streams: Sequence[int]) -> None:
        """Note the streams of each engine at one moment."""
        self._seen.append(max(streams) - min(streams))

    def take(self) -> dict[str, Any]:
        """The figures since the last call, in streams; start again."""
        seen, self._seen = self._seen, []
        return {f"p{q}": percentile(seen, q) for q in (50, 99, 100)}


@dataclass
class _Period:
    looks: int = 0
    fullest: int = 0
    emptiest: int = 0


class Extremes:
    """How full the fullest and the emptiest engine are, in each PERIOD_S of a job.

    Means over samples of the fullest, or emptiest, engine of the moment: oscillating engines show
    as much as one that is always too full.
    """

    def __init__(self) -> None:
        self._periods: list[_Period] = []

    def look(self, streams: Sequence[int], elapsed_s: float) -> None:
        """Note the streams of each engine, so many seconds after the job's first request."""
        if not streams:
            return
        number = int(elapsed_s // PERIOD_S)
        self._periods += [_Period() for _ in range(number + 1 - len(self._periods))]
        period = self._periods[number]
        period.looks += 1
        period.fullest += max(streams)
        period.emptiest += min(streams)

    def take(self) -> list[dict[str, float | None]]:
        """The figures since the last call, in streams; start again."""
        seen, self._periods = self._periods, []
        return [
            {
                "fullest": each.fullest / each.looks if each.looks else None,
                "emptiest": each.emptiest / each.looks if each.looks else None,
            }
            for each in seen
        ]
