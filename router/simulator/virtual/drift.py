"""Random speed variations from second to second, as on shared hosts."""

import math
from random import Random

SECONDS = 1.0
"""Correlation time in seconds of an engine's speed."""


class Drift:
    """A factor on the duration of an engine's steps with mean 1. Its logarithm is normally
    distributed with this standard deviation (an Ornstein-Uhlenbeck process)."""

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
        kept = math.exp((self._at - now) / SECONDS)
        new = math.sqrt(1.0 - kept * kept) * self._rng.gauss(0.0, 1.0)
        self._value, self._at = kept * self._value + new, now
        return math.exp(self._sigma * (self._value - self._sigma / 2))
