"""Delays between attempts that fail: doubled each time, with jitter."""

from random import Random

__all__ = ["FIRST_SECONDS", "LONGEST_SECONDS", "Backoff"]

FIRST_SECONDS = 0.5
"""Longest first delay: an API server that restarts behind a load balancer is back at once."""

LONGEST_SECONDS = 30.0
"""A hundred routers then ask a server that is in trouble seven times a second."""


class Backoff:
    """The delays of one caller, in seconds. Half of each is random, so that routers that lost the
    same server do not come back at the same moment."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._ceiling = FIRST_SECONDS

    def next(self) -> float:
        """The delay before the next attempt."""
        delay = self._ceiling * self._chance.uniform(0.5, 1.0)
        self._ceiling = min(2 * self._ceiling, LONGEST_SECONDS)
        return delay

    def reset(self) -> None:
        """An attempt has succeeded."""
        self._ceiling = FIRST_SECONDS
