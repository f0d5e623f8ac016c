"""Virtual time: a queue of events, ordered by time and then by insertion; and random speed."""

import math
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from router.core.fleet.probing import JITTER

DRIFT_SECONDS = 1.0
"""Correlation time in seconds of an engine's speed."""

Event = Callable[[float], None]
"""Called with its time."""


class Agenda:
    """A heap of events."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        """Number of events that have happened."""
        self._heap: list[tuple[float, int, Event]] = []
        self._planned = 0

    def at(self, when: float, event: Event) -> None:
        """Schedule an event. Of two at the same time the one scheduled first happens first."""
        self._planned += 1
        heappush(self._heap, (when, self._planned, event))

    def every(self, seconds: float, first: float, event: Event) -> None:
        """Schedule an event repeatedly, without end."""

        def again(now: float) -> None:
            event(now)
            self.at(now + seconds, again)

        self.at(first, again)

    def again(self, rng: Random, first: float, event: Callable[[float], float]) -> None:
        """Schedule an event repeatedly, each time after the seconds that it returns, with the
        jitter of the router's probes."""

        def again(now: float) -> None:
            self.at(now + event(now) * rng.uniform(1 - JITTER, 1 + JITTER), again)

        self.at(first, again)

    def run_while(self, is_going_on: Callable[[], bool], until: float) -> None:
        """Process events. Raises RuntimeError if it is still going on at `until`."""
        heap = self._heap
        while is_going_on():
            self.now, _, event = heappop(heap)
            if self.now > until:
                raise RuntimeError(f"the simulation did not end within {until:g} virtual seconds")
            self.events += 1
            event(self.now)


class Drift:
    """Random speed variations from second to second, as on shared hosts: a factor on the duration
    of an engine's steps with mean 1. Its logarithm is normally distributed with this standard
    deviation (an Ornstein-Uhlenbeck process)."""

    __slots__ = ("_at", "_rng", "_sigma", "_value")

    def __init__(self, sigma: float, rng: Random) -> None:
        self._sigma = sigma
        self._rng = rng
        self._value = rng.gauss(0.0, 1.0) if sigma else 0.0
        self._at = 0.0

    def factor(self, now: float) -> float:
        """The factor at this time, which must not decrease."""
        if not self._sigma:
            return 1.0
        kept = math.exp((self._at - now) / DRIFT_SECONDS)
        new = math.sqrt(1.0 - kept * kept) * self._rng.gauss(0.0, 1.0)
        self._value, self._at = kept * self._value + new, now
        return math.exp(self._sigma * (self._value - self._sigma / 2))
