"""Budgets of a whole router: bytes in memory, and retries."""

from typing import Final

from router.core.errors import Overloaded

__all__ = ["RETRY_SHARE", "ByteBudget", "RetryBudget"]


class ByteBudget:
    """Up to `limit` bytes at a time, of all connections together: of bodies, or of answers. The
    limit may be lowered; bytes already held are kept."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        """Bytes currently held."""

    def check(self, size: int) -> None:
        """Raise Overloaded if `size` more bytes do not fit."""
        if self.held + size > self.limit:
            raise Overloaded("The router holds too many request bodies now.")

    def take(self, size: int) -> None:
        """Reserve `size` bytes. Raises Overloaded, and reserves nothing, if they do not fit."""
        held = self.held + size
        if held > self.limit and size > 0:
            self.check(size)
        self.held = held

    def try_take(self, size: int) -> bool:
        """Reserve `size` bytes if they fit, and return whether they did. A negative size always
        fits and releases bytes."""
        held = self.held + size
        if held > self.limit and size > 0:
            return False
        self.held = held
        return True

    def add(self, size: int) -> None:
        """Count `size` bytes that are already in memory, even beyond the limit; then nothing else
        fits until enough are released."""
        self.held += size

    def give(self, size: int) -> None:
        """Release `size` bytes."""
        self.held -= size


RETRY_SHARE: Final = 0.2
"""Retries per request in the long run, by default."""

BURST: Final = 1000.0
"""Size of the bucket: when an engine crashes, all requests that wait for their first token there
are retried at once."""

RETRIES_PER_SECOND: Final = 10.0
"""Allowed at any request rate; Finagle's default."""


class RetryBudget:
    """Bounds retries, so that they do not multiply the load of failing engines.

    A token bucket, as in Finagle (`RetryBudget`): each request adds `share` of a retry, each retry
    takes one. Times are seconds of one monotonic clock.
    """

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
