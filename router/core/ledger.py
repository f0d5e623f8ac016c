"""In-flight leases: exact, immediate, and impossible to leak or to give back twice."""

from collections import Counter
from types import TracebackType
from typing import Self

from router.core.values import Endpoint

__all__ = ["Lease", "Ledger"]


class Ledger:
    """Counts what this process has on each endpoint. A lease is the only way to change it."""

    def __init__(self) -> None:
        self._requests: Counter[Endpoint] = Counter()
        self._tokens: Counter[Endpoint] = Counter()

    def lease(self, endpoint: Endpoint, tokens: int) -> "Lease":
        """Count a request of `tokens` estimated input tokens until the lease is released."""
        self._requests[endpoint] += 1
        self._tokens[endpoint] += tokens
        return Lease(self, endpoint, tokens)

    def in_flight(self, endpoint: Endpoint) -> int:
        """Requests on the endpoint now."""
        return self._requests[endpoint]

    def tokens(self, endpoint: Endpoint) -> int:
        """The estimated input tokens of the requests on the endpoint now."""
        return self._tokens[endpoint]

    def total(self) -> int:
        """All leases."""
        return self._requests.total()

    def _end(self, endpoint: Endpoint, tokens: int) -> None:
        self._requests[endpoint] -= 1
        self._tokens[endpoint] -= tokens


class Lease:
    """One request on one endpoint. Released once, by whichever exit comes first."""

    __slots__ = ("_ledger", "endpoint", "tokens")

    def __init__(self, ledger: Ledger, endpoint: Endpoint, tokens: int) -> None:
        self._ledger: Ledger | None = ledger
        self.endpoint = endpoint
        self.tokens = tokens

    def release(self) -> None:
        """End the lease; doing it again changes nothing."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger._end(self.endpoint, self.tokens)  # noqa: SLF001 - the ledger's other half

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
