"""A retry budget, so that retries do not multiply the load of failing engines.

A token bucket, as in Finagle (`RetryBudget`): each request adds a share of a retry, each retry
takes one.
"""

from typing import Final

__all__ = ["SHARE", "RetryBudget"]

SHARE: Final = 0.2
"""Retries per request in the long run, by default."""

BURST: Final = 1000.0
"""Size of the bucket: when an engine crashes, all requests that wait for their first token there
are retried at once."""

RETRIES_PER_SECOND: Final = 10.0
"""Allowed at any request rate; Finagle's default."""


class RetryBudget:
    """`share`: retries per request in the long run. Times are seconds of one monotonic clock."""

    __slots__ = ("_balance", "_filled_at", "_share")

    def __init__(self, share: float) -> None:
        self._share = share
        self._balance = BURST
        self._filled_at = 0.0

    def request(self) -> None:
        """Count a request."""
        self._balance += self._share

    def has_one(self, now: float) -> bool:
        """Whether a retry may be made now."""
        refill = RETRIES_PER_SECOND * max(0.0, now - self._filled_at)
        self._balance = min(BURST, self._balance + refill)
        self._filled_at = now
        return self._balance >= 1.0

    def take(self, now: float) -> bool:
        """Take one retry from the budget if there is one; whether there was."""
        if not self.has_one(now):
            return False
        self._balance -= 1.0
        return True
