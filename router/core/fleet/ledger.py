"""In-flight leases: exact and immediate; none is leaked or released twice."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from router.core.candidate import Load, LocalLoad, OwnLoad
from router.core.kv_events import PromptFeedback
from router.core.prefix.held import PrefixClaim
from router.core.replicas import PeerBoard, SiblingLoad
from router.core.values import Endpoint

__all__ = ["Lease", "Ledger"]


class Ledger:
    """This router's requests on each endpoint; only leases change the counts.

    `load_of` creates an endpoint's load; by default it counts only this process. With `peers`,
    loads include those of sibling replicas.
    """

    def __init__(
        self,
        load_of: Callable[[Endpoint], OwnLoad] = lambda _: LocalLoad(),
        peers: PeerBoard | None = None,
    ) -> None:
        self._load_of = load_of
        self.peers = peers
        self._loads: dict[Endpoint, Load] = {}

    def load(self, endpoint: Endpoint) -> Load:
        """The endpoint's load; it changes with the leases."""
        load = self._loads.get(endpoint)
        return self.renew(endpoint) if load is None else load

    def renew(self, endpoint: Endpoint) -> Load:
        """A new load for a new engine at this endpoint. Leases on the previous engine do not count
        in it."""
        own = self._load_of(endpoint)
        load = own if self.peers is None else self.peers.load(own, endpoint)
        self._loads[endpoint] = load
        return load

    def siblings_on(self, endpoint: Endpoint) -> SiblingLoad | None:
        """What sibling replicas have there; None without siblings."""
        return None if self.peers is None else self.peers.siblings_on(endpoint)

    def forget(self, endpoint: Endpoint) -> None:
        """Remove an engine that has left. Its remaining leases are released as usual and no longer
        counted."""
        self._loads.pop(endpoint, None)
        if self.peers is not None:
            self.peers.drop(endpoint)

    def lease(
        self,
        endpoint: Endpoint,
        tokens: int,
        pending: int = 0,
        claim: PrefixClaim | None = None,
        feedback: PromptFeedback | None = None,
    ) -> "Lease":
        """Count a request of `tokens` estimated input tokens until the lease is released.

        The engine computes `pending` of them. `claim`: the prompt that its KV cache will then hold.
        `feedback`: receives what the answer shows of the prompt.
        """
        return Lease(self.load(endpoint), endpoint, tokens, pending, claim, feedback)

    def in_flight(self, endpoint: Endpoint) -> int:
        """This router's requests on the endpoint now."""
        return self.load(endpoint).own.requests

    def known(self, endpoint: Endpoint) -> int:
        """The same, plus the requests that sibling replicas report."""
        return self.load(endpoint).requests

    def own(self) -> dict[Endpoint, tuple[int, int]]:
        """Requests, and prompt tokens still to be computed, of this router on each endpoint that
        has any; sent to sibling replicas."""
        loads = ((endpoint, load.own) for endpoint, load in self._loads.items())
        return {
            endpoint: (load.requests, max(0, load.pending))
            for endpoint, load in loads
            if load.requests > 0
        }

    def tokens(self, endpoint: Endpoint) -> int:
        """The estimated input tokens of this router's requests on the endpoint."""
        return self.load(endpoint).tokens

    def total(self) -> int:
        """Number of all leases."""
        return sum(load.own.requests for load in self._loads.values())


class Lease:
    """One request on one endpoint. It is released once, on success, error or cancellation."""

    __slots__ = ("_claim", "_load", "endpoint", "feedback", "loads", "pending", "tokens")

    def __init__(
        self,
        load: Load,
        endpoint: Endpoint,
        tokens: int,
        pending: int,
        claim: PrefixClaim | None = None,
        feedback: PromptFeedback | None = None,
    ) -> None:
        self._load: Load | None = load
        self.pending = pending
        """Prompt tokens that the engine still has to compute for this request."""
        self.loads = 0
        """Prompt tokens whose KV cache it loads from another engine, where that is measured."""
        self._claim = claim
        self.feedback = feedback
        self.endpoint = endpoint
        self.tokens = tokens
        load.add(1, tokens, pending)

    @property
    def pending_there(self) -> int:
        """Prompt tokens that the endpoint has to compute for all its requests, including this one.

        0 if another engine computes this request's prompt, since it then does not queue for prefill
        here.
        """
        return self._load.pending if self._load is not None and self.pending else 0

    def prefilled(self, *, goes_on: bool = True) -> None:
        """Note that the engine has computed the prompt. Idempotent. With `goes_on` False the lease
        is about to be released, including what is pending."""
        if goes_on:
            pending, self.pending = self.pending, 0
            if pending and self._load is not None:
                self._load.add(0, 0, -pending)
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.confirm()

    def release(self) -> None:
        """End the lease. Idempotent."""
        load, self._load = self._load, None
        if load is not None:
            load.add(-1, -self.tokens, -self.pending)
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
