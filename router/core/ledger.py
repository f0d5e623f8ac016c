"""In-flight leases: exact, immediate, and impossible to leak or to give back twice."""

from types import TracebackType
from typing import Self

from router.core.values import Endpoint, Load

__all__ = ["Lease", "Ledger"]


class Ledger:
    """Counts what this process has on each endpoint. A lease is the only way to change it."""

    def __init__(self) -> None:
        self._loads: dict[Endpoint, Load] = {}

    def load(self, endpoint: Endpoint) -> Load:
        """The endpoint's load, which goes on changing."""
        return self._loads.setdefault(endpoint, Load())

    def lease(self, endpoint: Endpoint, tokens: int, pending: int = 0) -> "Lease":
        """Count a request of `tokens` estimated input tokens until the lease is released.

        `pending` of them the engine has to compute itself.
        """
        return Lease(self.load(endpoint), endpoint, tokens, pending)

    def in_flight(self, endpoint: Endpoint) -> int:
        """Requests on the endpoint now."""
        return self.load(endpoint).requests

    def tokens(self, endpoint: Endpoint) -> int:
        """The estimated input tokens of the requests on the endpoint now."""
        return self.load(endpoint).tokens

    def total(self) -> int:
        """All leases."""
        return sum(load.requests for load in self._loads.values())


class Lease:
    """One request on one endpoint. Released once, by whichever exit comes first."""

    __slots__ = ("_load", "_pending", "endpoint", "tokens")

    def __init__(self, load: Load, endpoint: Endpoint, tokens: int, pending: int) -> None:
        self._load: Load | None = load
        self._pending = pending
        self.endpoint = endpoint
        self.tokens = tokens
        load.requests += 1
        load.tokens += tokens
        load.pending += pending

    @property
    def pending_there(self) -> int:
        """Prompt tokens that the endpoint has to compute, this request's included; 0: none of it.

        A request whose prompt another engine computes waits for nobody's prompt.
        """
        return self._load.pending if self._load is not None and self._pending else 0

    def prefilled(self) -> None:
        """The engine has computed the prompt; doing it again changes nothing."""
        pending, self._pending = self._pending, 0
        if self._load is not None:
            self._load.pending -= pending

    def release(self) -> None:
        """End the lease; doing it again changes nothing."""
        self.prefilled()
        load, self._load = self._load, None
        if load is not None:
            load.requests -= 1
            load.tokens -= self.tokens

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
