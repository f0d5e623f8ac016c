"""Value types shared by all of core."""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from router.core.admitted import Count, LocalCount
from router.core.prefix.prompt_tokens import PromptTokens

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "DECODE",
    "DIRECT",
    "MAX_N",
    "MESSAGES",
    "NO_KEYS",
    "PASS_THROUGH",
    "PREFILL",
    "REMOTE",
    "RESPONSES",
    "STEP_TOKENS",
    "Candidate",
    "Decision",
    "Destinations",
    "Endpoint",
    "Facts",
    "Failure",
    "FailureKind",
    "Gauges",
    "Load",
    "LocalLoad",
    "Mode",
    "PrefillProgress",
    "PrefixKeys",
    "PromptDelay",
    "Reply",
    "Role",
    "Route",
    "RouteKind",
]


class Role(StrEnum):
    """An engine's role, and the name of the leg that it serves."""

    PREFILL = "prefill"
    DECODE = "decode"

    # Endpoints are hashed several times per request, and Enum's own hash is a Python function.
    __hash__ = str.__hash__


# Enum members are looked up slowly in Python 3.11, so requests use these names.
PREFILL: Final = Role.PREFILL
DECODE: Final = Role.DECODE


class Mode(StrEnum):
    """Whether the prompt is prefilled on another engine than the one that decodes."""

    DIRECT = "direct"
    REMOTE = "remote_prefill"

    __hash__ = str.__hash__


DIRECT: Final = Mode.DIRECT
REMOTE: Final = Mode.REMOTE


class Endpoint(NamedTuple):
    """An engine in a role. `url` is normalised."""

    url: str
    role: Role


class RouteKind(StrEnum):
    """How a route is handled."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    PASS_THROUGH = "pass_through"


CHAT: Final = RouteKind.CHAT
COMPLETIONS: Final = RouteKind.COMPLETIONS
RESPONSES: Final = RouteKind.RESPONSES
MESSAGES: Final = RouteKind.MESSAGES
PASS_THROUGH: Final = RouteKind.PASS_THROUGH


@dataclass(frozen=True, slots=True)
class Route:
    """A path that the router serves, and its kind. Engine requests have the same path."""

    path: str
    kind: RouteKind
    generates: bool
    """Whether the route generates tokens, so that its prompt can be prefilled remotely."""
    max_body_bytes: int = 1 << 62
    """Limit in bytes for routes that need less than the setting allows."""


@dataclass(slots=True, unsafe_hash=True)  # reading a NamedTuple's fields takes ten times as long
class PrefixKeys:
    """The prefixes of a prompt. `keys[i]` identifies everything up to the end of chunk i; `ends[i]`
    is the estimated number of tokens up to there. Immutable."""

    keys: tuple[int, ...]
    ends: tuple[int, ...]


NO_KEYS: Final = PrefixKeys((), ())


class Destinations(NamedTuple):
    """The engines that a gateway has chosen for a request, in the order in which to try them."""

    prefill: tuple[Endpoint, ...]
    decode: tuple[Endpoint, ...]


MAX_N = 16_384
"""vLLM's limit of `n` (VLLM_MAX_N_SEQUENCES); it answers larger values with an error."""


NO_BODY: Final[Mapping[str, Any]] = MappingProxyType({})
"""The body of a request that is not a JSON object."""


@dataclass(slots=True, init=False)  # see CONTRIBUTING.md, "Compiled modules"
class Facts:
    """What routing needs to know about a request, from one parse of its body."""

    route: Route
    model: str | None
    stream: bool
    tokens: int
    """Estimated input tokens."""
    rule: str
    """The rule by which `tokens` was estimated."""
    direct_reason: str | None
    """Why this request must not be disaggregated, or None."""
    raw: bytes = field(repr=False)
    """The body as bytes, without the keys that clients may not send."""
    body: Mapping[str, Any] = field(repr=False)
    """The same body parsed (read-only); empty for pass-through routes that are not JSON."""
    query: bytes
    """The query string, without its question mark."""
    text_bytes: int
    """UTF-8 bytes of the prompt's text; 0 if some of it is token ids."""
    learnable_bytes: int
    """The same if usage shows the tokens of this text alone, otherwise 0; see `TokenRatios`."""
    scale: float
    """The probable number of prompt tokens over the estimated number; see `TokenRatios`."""
    prefix: PrefixKeys | None = field(repr=False)
    """Keys of the prompt's prefixes; None until they are needed."""
    is_looked_up: bool
    """Whether `known_tokens` has been looked up."""
    known_tokens: PromptTokens | None = field(repr=False)
    """The prompt's token ids if they are known; only with --prefix-cache events."""
    lead: tuple[bytes | memoryview, ...] = field(repr=False)
    """For a large body: the pieces before `raw`."""
    prefill: tuple[bytes, ...] = field(repr=False)
    """For a body parsed by another process: the prefill request's body in pieces."""
    ids: bytes | None = field(repr=False)
    """For such a body: the packed token ids of the prompt, if the client sent ids."""
    has_media: bool
    """For such a body: whether the prompt contains more than text."""
    destinations: Destinations | None
    """The engines chosen by a gateway; None if the router chooses."""
    draw: float | None = field(repr=False)
    """A random number, 0 to 1, that selects the considered subset of a large pool; None until it is
    needed."""

    def __init__(
        self,
        route: Route,
        model: str | None,
        stream: bool,
        tokens: int,
        rule: str,
        direct_reason: str | None,
        raw: bytes,
        body: Mapping[str, Any] = NO_BODY,
        query: bytes = b"",
        text_bytes: int = 0,
        learnable_bytes: int = 0,
        scale: float = 1.0,
        prefix: PrefixKeys | None = None,
        is_looked_up: bool = False,
        known_tokens: PromptTokens | None = None,
        lead: tuple[bytes | memoryview, ...] = (),
        prefill: tuple[bytes, ...] = (),
        ids: bytes | None = None,
        has_media: bool = False,
        destinations: Destinations | None = None,
        draw: float | None = None,
    ) -> None:
        self.route = route
        self.model = model
        self.stream = stream
        self.tokens = tokens
        self.rule = rule
        self.direct_reason = direct_reason
        self.raw = raw
        self.body = body
        self.query = query
        self.text_bytes = text_bytes
        self.learnable_bytes = learnable_bytes
        self.scale = scale
        self.prefix = prefix
        self.is_looked_up = is_looked_up
        self.known_tokens = known_tokens
        self.lead = lead
        self.prefill = prefill
        self.ids = ids
        self.has_media = has_media
        self.destinations = destinations
        self.draw = draw

    @property
    def sequences(self) -> int:
        """Number of sequences that the engine generates concurrently: `n` for each prompt."""
        n, prompt = self.body.get("n"), self.body.get("prompt")
        if n is None and type(prompt) is not list:  # in most requests
            return 1
        prompts = 1
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            prompts = len(prompt)
        return prompts * n if type(n) is int and 1 <= n <= MAX_N else prompts

    @property
    def path(self) -> str:
        """The request target for the engine."""
        return (
            f"{self.route.path}?{self.query.decode('latin-1')}" if self.query else self.route.path
        )


class Load(Protocol):
    """The requests on one endpoint that the router knows exactly: its own, and those reported by
    siblings (`core/shared/peer_loads.py`). Its own are changed only by leases."""

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
        self.admitted: Count = LocalCount()

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
    """What a policy sees of an endpoint. There is one object per endpoint, which changes."""

    endpoint: Endpoint
    ordinal: int
    """Number of engines that joined before it."""
    load: Load = field(default_factory=LocalLoad)
    """The requests of this router and its siblings on it."""
    other_requests: float | None = None
    """Other clients' requests on it, a moving average of the engine's gauges; None if unknown."""
    slowdown: float = 1.0
    """Its seconds per token over the median of engines that serve its models; 1 if unknown."""
    lasting_slowdown: float = 1.0
    """The minimum of `slowdown` over the last two seconds."""
    prompt_slowdown: float = 1.0
    """How many times slower than that it computes prompts, if significantly; at least 1."""
    is_slow: bool = False
    """Whether it is excluded as slow."""
    slow_start_weight: float = 1.0
    """Share of its normal load, 0 to 1, that it may get; below 1 during slow start."""
    slots: float = math.inf
    """Sequences that it runs concurrently (vLLM's max_num_seqs); infinity if unknown."""
    queue_factor: float = 1.0
    """How many times longer a request waits there, by its place in the queue, than on the endpoint
    that is known to run the most sequences; 1 if its own number is not known."""
    prompt_cost: float = 0.0
    """The cost of a pending prompt token, in requests of mean length."""
    first_token_weight: float = 0.0
    """The additional weight of a prompt token that has to be computed before a request's first
    token."""
    eviction_cost: float = 0.0
    """The expected cost of evicting a token from its KV cache, in requests of mean length: that of
    computing it again, weighted with the share of evicted tokens that are requested again,
    including the evictions that this causes."""
    held_keys: Container[int] = ()
    """Keys of the prompt chunks in its KV cache; a live view."""
    chosen_at: int = 0
    """The scheduler's choice number when it was last chosen; 0: never."""
    negligible_tokens: float = float(STEP_TOKENS)
    """Pending prompt tokens that delay a first token too little to matter."""
    prefill: PrefillProgress | None = None
    """How far it is with the prompt in progress; None if unknown."""

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


class PromptDelay(NamedTuple):
    """Expected seconds to a request's first token in each mode, including the weighted delay of
    other streams."""

    direct: float
    remote: float


@dataclass(slots=True)
class Decision:
    """The mode of a request, and the reason."""

    mode: Mode
    reason: str
    delay: PromptDelay | None = None
    """The compared delays; None if a rule decided."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """An engine's load according to /metrics; None for missing gauges."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    queued: int | None = None
    """The part of `waiting` that waits for capacity, rather than for a KV transfer, for example."""
    preemptions: int | None = None
    """Number since the engine's start."""
    generated: int | None = None
    """Tokens generated for all clients since the engine's start."""
    cache_tokens: int | None = None
    """Size of its KV cache in tokens."""
    cache_queries: int | None = None
    """Prompt tokens that it has looked up in its prefix cache since its start."""
    cache_hits: int | None = None
    """Prompt tokens found there."""
    block_tokens: int | None = None
    """Tokens per block of its KV cache."""
    finished: int | None = None
    """Requests that have ended since its start."""


@dataclass(slots=True, init=False)
class Reply:
    """An engine's complete answer, in memory."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = field(repr=False)

    def __init__(
        self, status: int, headers: tuple[tuple[bytes, bytes], ...] = (), body: bytes = b""
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class FailureKind(StrEnum):
    """How an engine failed to answer."""

    REFUSED = "refused"
    """No connection: the engine never saw the request."""
    RESET = "reset"
    """The connection was reset before the answer began; the engine may have received the
    request."""
    BROKEN = "broken"
    """The answer was incomplete or not valid HTTP."""
    TIMEOUT = "timeout"
    """Nothing was received for longer than the setting allows."""
    STALLED = "stalled"
    """The engine stalled before the first token of this request."""
    UNAUTHORIZED = "unauthorized"
    """The engine rejected the router's API key."""
    EXHAUSTED = "exhausted"
    """The router had no file descriptor, port or memory for a connection, so the engine got no
    request."""
    NO_ROOM = "no_room"
    """The answer budget was exhausted. The engine has done its work."""


UNSEEN: Final = (FailureKind.REFUSED, FailureKind.UNAUTHORIZED, FailureKind.EXHAUSTED)


@dataclass(frozen=True, slots=True)
class Failure:
    """An engine that did not answer."""

    kind: FailureKind
    message: str
    """For clients: without addresses and system errors."""
    cause: str = ""
    """For operators: what the system or the engine reported; empty if `message` is sufficient."""

    @property
    def is_unseen(self) -> bool:
        """Whether the engine never received the request, or refused it unread."""
        return self.kind in UNSEEN
