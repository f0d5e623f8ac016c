"""When requests are meant to be sent: seconds since the phase began, in order.

Pure. Chance is in the seed, and time is stretched for a ramp, so that a pattern keeps its character
while its rate rises.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from benchmarks.gate.inputs.seeding import numbers

Times = NDArray[np.float64]


class Pattern(StrEnum):
    """How the gaps between requests vary."""

    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`rate` requests per second, reached in a straight line from 0 after `ramp` seconds.

    `burstiness` is the gamma distribution's shape, as vLLM's: 1 is Poisson, less comes in bursts,
    more is evener. Only for the pattern gamma.
    """

    rate: float
    pattern: Pattern = Pattern.POISSON
    burstiness: float = 1.0
    ramp: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.rate < float("inf") and 0 < self.burstiness < float("inf")):
            raise ValueError("rate and burstiness must be above 0")
        if not 0 <= self.ramp < float("inf"):
            raise ValueError("ramp must be 0 or more seconds")

    def expected(self, seconds: float) -> float:
        """Requests until then, on average."""
        if seconds < self.ramp:
            return self.rate * seconds**2 / (2 * self.ramp)
        return self.rate * (seconds - self.ramp / 2)


def times(
    arrivals: Arrivals, seed: int, *, count: int | None = None, duration: float | None = None
) -> Times:
    """`count` times, or those before `duration` seconds; with both, whichever ends first.

    Constant begins at 0, the others with a gap. The same for the same version of numpy.
    """
    if count is None and duration is None:
        raise ValueError("a count or a duration is needed")
    chance = numbers(seed, "arrivals")
    wanted = float("inf") if duration is None else arrivals.expected(duration)
    most = count if count is not None else _ample(wanted, arrivals.burstiness)
    events = _events(arrivals, chance, most)
    while count is None and events[-1] < wanted:
        events = np.concatenate([events, events[-1] + _gaps(arrivals, chance, most).cumsum()])
    return _stretched(events[events < wanted], arrivals)


def _ample(expected: float, burstiness: float) -> int:
    """So many gaps that they hardly ever are too few: six standard deviations more."""
    return int(expected + 6 * (expected / min(burstiness, 1.0)) ** 0.5) + 10


def _events(arrivals: Arrivals, chance: np.random.Generator, count: int) -> Times:
    """Times at a rate of 1."""
    if arrivals.pattern is Pattern.CONSTANT:
        return np.arange(count, dtype=np.float64)
    return _gaps(arrivals, chance, count).cumsum()


def _gaps(arrivals: Arrivals, chance: np.random.Generator, count: int) -> Times:
    if arrivals.pattern is Pattern.CONSTANT:
        return np.ones(count)
    shape = arrivals.burstiness if arrivals.pattern is Pattern.GAMMA else 1.0
    gaps: Times = chance.standard_gamma(shape, count) / shape
    return gaps


def _stretched(events: Times, arrivals: Arrivals) -> Times:
    """The inverse of `expected`: when so many are to have come."""
    rate, ramp = arrivals.rate, arrivals.ramp
    rising = np.sqrt(2 * ramp * events / rate)
    found: Times = np.where(events < rate * ramp / 2, rising, events / rate + ramp / 2)
    return found


def starts(streams: int, ramp: float) -> Times:
    """When each stream of a closed loop begins: all at once, or evenly over `ramp` seconds."""
    return np.linspace(0.0, ramp, streams, endpoint=False, dtype=np.float64)


def replayed(timestamps: Iterable[float], speed: float = 1.0) -> Times:
    """A trace's own times, in order, from its first on, `speed` times as fast."""
    if not 0 < speed < float("inf"):
        raise ValueError("speed must be above 0")
    found = np.sort(np.fromiter(timestamps, dtype=np.float64))
    return np.asarray((found - found[0]) / speed if len(found) else found, dtype=np.float64)


def share(schedule: Times, part: int, parts: int) -> Times:
    """One process's part of the schedule: every `parts`-th, so that all have the same rate."""
    return schedule[part::parts]
