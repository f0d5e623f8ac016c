"""What policies see of an endpoint, and the requests on it."""

import math
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final, Protocol

from router.core.shared_memory import Count
from router.core.values import Endpoint

__all__ = [
    "STEP_TOKENS",
    "Candidate",
    "Load",
    "LocalLoad",
    "PrefillProgress",
]


class Load(Protocol):
    """The requests on one endpoint that the router knows exactly: its own, and those reported by
    siblings (`core/replicas/peer_loads.py`). Its own are changed only by leases."""

    @property
    def own(self) -> "OwnLoad":
        """The part of this router."""

    @property
    def requests(self) -> int:
        """Number of requests."""

    @property
    def tokens(self) -> int:
        """Their estimated input tokens."""

    @property
    def pending(self) -> int:
        """Those of the input tokens that the engine still has to compute."""

    def add(self, requests: int, tokens: int, pending: int) -> None:
        """Add to the counts (negative: subtract). `tokens` change only with `requests`."""


class OwnLoad(Load, Protocol):
    """The `Load` of this router alone."""

    @property
    def admitted(self) -> Count:
        """Requests on this endpoint that admission has admitted; used by
        `core/limits/places.py`."""


class LocalLoad:
    """The `Load` of a router with a single process."""

    __slots__ = ("admitted", "pending", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = self.tokens = self.pending = 0
        self.admitted = Count()

    @property
    def own(self) -> OwnLoad:
        """Itself: there are no siblings."""
        return self

    def add(self, requests: int, tokens: int, pending: int) -> None:
        """Add to the counts (negative: subtract)."""
        self.requests += requests
        self.tokens += tokens
        self.pending += pending


STEP_TOKENS: Final = 2048
"""Prompt tokens that vLLM computes in one step, so that they add little delay
(max_num_batched_tokens is at least that)."""


class PrefillProgress(Protocol):
    """How far an engine is with the prompt that it computes."""

    def progress(self, now: float) -> float:
        """Tokens of the unfinished prompt that should be computed by `now`."""


@dataclass(slots=True, eq=False)
class Candidate:
    """What a policy sees of an endpoint. There is one object per endpoint, which changes.

    Each field has one writer, which is named at its end.
    """

    endpoint: Endpoint
    """(Fleet)"""
    ordinal: int
    """Number of engines that joined before it. (Fleet)"""
    load: Load = field(default_factory=LocalLoad)
    """The requests of this router and its siblings on it. (Fleet)"""
    other_requests: float | None = None
    """Other clients' requests on it, a moving average of the engine's gauges; None if unknown.
    (Scrapes)"""
    slowdown: float = 1.0
    """Its seconds per token over the median of engines that serve its models; 1 if unknown.
    (PoolJudge)"""
    lowest_slowdown: float = 1.0
    """The minimum of `slowdown` over the last two seconds. (PoolJudge)"""
    highest_slowdown: float = 1.0
    """The maximum. (PoolJudge)"""
    prompt_slowdown: float = 1.0
    """How many times slower than that it computes prompts, if significantly; at least 1.
    (PoolJudge)"""
    is_slow: bool = False
    """Whether it is excluded as slow. (PoolJudge)"""
    slow_start_weight: float = 1.0
    """Share of its normal load, 0 to 1, that it may get; below 1 during slow start. (PoolJudge)"""
    slots: float = math.inf
    """Sequences that it runs concurrently (vLLM's max_num_seqs); infinity if unknown.
    (PoolJudge)"""
    queue_factor: float = 1.0
    """How many times longer a request waits there, by its place in the queue, than on the endpoint
    that is known to run the most sequences; 1 if its own number is not known. (PoolJudge)"""
    prompt_cost: float = 0.0
    """The cost of a pending prompt token, in requests of mean length. (PoolJudge)"""
    first_token_weight: float = 0.0
    """The additional weight of a prompt token that has to be computed before a request's first
    token. (PoolJudge)"""
    eviction_cost: float = 0.0
    """The expected cost of evicting a token from its KV cache, in requests of mean length: that of
    computing it again, weighted with the share of evicted tokens that are requested again,
    including the evictions that this causes. (PoolJudge)"""
    negligible_tokens: float = float(STEP_TOKENS)
    """Pending prompt tokens that delay a first token too little to matter. (PoolJudge)"""
    held_keys: Container[int] = ()
    """Keys of the prompt chunks in its KV cache; a live view. (Fleet)"""
    chosen_at: int = 0
    """The scheduler's choice number when it was last chosen; 0: never. (Scheduler)"""
    prefill: PrefillProgress | None = None
    """How far it is with the prompt in progress; None if unknown. (Fleet)"""

    @property
    def in_flight(self) -> int:
        """This router's requests on the endpoint."""
        return self.load.own.requests

    @property
    def tokens(self) -> int:
        """Their estimated input tokens."""
        return self.load.tokens

    def pending(self, now: float) -> float:
        """Prompt tokens that it still has to compute. `load.pending` counts a prompt as a whole
        until its first token; here it counts less what should be computed of it by `now`."""
        pending = self.load.pending
        if pending <= STEP_TOKENS or self.prefill is None:  # a single step is not measured
            return float(pending)
        return max(0.0, pending - self.prefill.progress(now))
