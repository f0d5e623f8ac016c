"""Delays between failed attempts: exponential, with jitter."""

from random import Random

__all__ = ["FIRST_SECONDS", "LONGEST_SECONDS", "Backoff"]

FIRST_SECONDS = 0.5
"""Longest first delay in seconds: an API server that restarts behind a load balancer is quickly
available again."""

LONGEST_SECONDS = 30.0
"""Longest delay in seconds: a hundred routers then send a failing server seven requests a
second."""


class Backoff:
    """The delays of one caller, in seconds. Half of each is random, so that routers that lost the
    same server do not all return at the same moment."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._ceiling = FIRST_SECONDS

    def next(self) -> float:
        """The delay before the next attempt."""
        delay = self._ceiling * self._chance.uniform(0.5, 1.0)
        self._ceiling = min(2 * self._ceiling, LONGEST_SECONDS)
        return delay

    def reset(self) -> None:
        """Start over, because an attempt has succeeded."""
        self._ceiling = FIRST_SECONDS
