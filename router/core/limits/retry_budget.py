"""A budget for retries, so that failing engines are not asked three times as much as healthy ones.

A token bucket, as Finagle's: every request adds a share of a retry, every retry takes one.
"""

from typing import Final

__all__ = ["SHARE", "RetryBudget"]

SHARE: Final = 0.2
"""Retries per request in the long run, by default."""

BURST: Final = 1000.0
"""Retries that may come at once: the requests that wait for their first token on an engine that
crashes."""

RETRIES_PER_SECOND: Final = 10.0
"""Allowed however few requests come; Finagle's default."""


class RetryBudget:
    """`share`: retries per request in the long run. Times are seconds of one monotonic clock."""

    __slots__ = ("_balance", "_filled_at", "_share")

    def __init__(self, share: float) -> None:
        self._share = share
        self._balance = BURST
        self._filled_at = 0.0

    def request(self) -> None:
        """A request comes."""
        self._balance += self._share

    def has_one(self, now: float) -> bool:
        """Whether a retry may be made."""
        refill = RETRIES_PER_SECOND * max(0.0, now - self._filled_at)
        self._balance = min(BURST, self._balance + refill)
        self._filled_at = now
        return self._balance >= 1.0

    def take(self, now: float) -> bool:
        """Whether a retry may be made, which is counted."""
        if not self.has_one(now):
            return False
        self._balance -= 1.0
        return True
