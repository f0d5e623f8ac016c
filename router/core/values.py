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

    # Endpoints are looked up several times per request, and Enum's own hash is a Python function.
    __hash__ = str.__hash__


# Python 3.11 looks an Enum's members up in a slow way: the path of a request uses these names.
PREFILL: Final = Role.PREFILL
DECODE: Final = Role.DECODE


class Mode(StrEnum):
    """Whether the prompt is prefilled on another engine than it is decoded on."""

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
    """How a route is treated."""

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
    """A path that the router serves, and its kind. Engines are asked for the same path."""

    path: str
    kind: RouteKind
    generates: bool
    """Whether the route generates tokens, and so may be prefilled remotely."""
    max_body_bytes: int = 1 << 62
    """Of routes that need less than the setting allows."""


@dataclass(slots=True, unsafe_hash=True)  # fields of a NamedTuple take ten times as long to read
class PrefixKeys:
    """A prompt's prefixes. `keys[i]` stands for everything up to the end of chunk i, `ends[i]` is
    the estimated number of tokens up to there. It does not change."""

    keys: tuple[int, ...]
    ends: tuple[int, ...]


NO_KEYS: Final = PrefixKeys((), ())


class Destinations(NamedTuple):
    """The engines that a gateway has chosen for a request, in the order in which to try them."""

    prefill: tuple[Endpoint, ...]
    decode: tuple[Endpoint, ...]


MAX_N = 16_384
"""vLLM's own limit of `n` (VLLM_MAX_N_SEQUENCES); a larger one is answered with an error."""


NO_BODY: Final[Mapping[str, Any]] = MappingProxyType({})
"""Of a request that is no JSON object."""


@dataclass(slots=True, init=False)  # see CONTRIBUTING.md, "Compiled modules"
class Facts:
    """What routing needs to know of a request, from one parse of its body."""

    route: Route
    model: str | None
    stream: bool
    tokens: int
    """Estimated input tokens."""
    rule: str
    """The rule that gave `tokens`."""
    direct_reason: str | None
    """Why this request must not be disaggregated, or None."""
    raw: bytes = field(repr=False)
    """The body as bytes, without the keys that clients may not send."""
    body: Mapping[str, Any] = field(repr=False)
    """The same body parsed (read-only); empty for pass-through routes that are not JSON."""
    query: bytes
    """The query string, without its question mark."""
    text_bytes: int
    """The UTF-8 bytes of its prompt's text; 0 where some of it is token ids."""
    learnable_bytes: int
    """The same where usage tells the tokens of this text and of nothing else; see `TokenRatios`."""
    scale: float
    """Tokens that its prompt probably has, as a multiple of the estimate; see `TokenRatios`."""
    prefix: PrefixKeys | None = field(repr=False)
    """Keys of its prompt's prefixes; None until they are needed."""
    is_looked_up: bool
    """Whether `known_tokens` has been looked for."""
    known_tokens: PromptTokens | None = field(repr=False)
    """The token ids of its prompt, where they are known; for --prefix-cache events only."""
    lead: tuple[bytes, ...] = field(repr=False)
    """Of a body that is too large to be joined (`core/routing/large_body.py`): what comes before
    `raw`."""
    prefill: tuple[bytes, ...] = field(repr=False)
    """The prefill request's body in pieces, of a body that another process has read."""
    ids: bytes | None = field(repr=False)
    """The prompt's token ids where the client sent ids, packed; of such a body only."""
    has_media: bool
    """Whether the prompt is more than text; of such a body only."""
    destinations: Destinations | None
    """The engines that a gateway has chosen; None where the router chooses."""
    draw: float | None = field(repr=False)
    """A random number, 0 to 1: which subset of a large pool it considers; None until needed."""

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
        lead: tuple[bytes, ...] = (),
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
        """Sequences that the engine generates side by side: `n` for each prompt."""
        n, prompt = self.body.get("n"), self.body.get("prompt")
        if n is None and type(prompt) is not list:  # as in most requests
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
    """The requests on one endpoint that the router knows exactly: its own, and what siblings tell
    of theirs (`core/shared/peer_loads.py`). Its own part is changed by leases only."""

    @property
    def own(self) -> "OwnLoad":
        """This router's own part."""

    @property
    def requests(self) -> int:
        """Requests there now."""

    @property
    def tokens(self) -> int:
        """Their estimated input tokens."""

    @property
    def pending(self) -> int:
        """Those of them that the engine still has to compute."""

    def add(self, requests: int, tokens: int, pending: int) -> None:
        """Add to the counts (negative: subtract). `tokens` change only with `requests`."""


class OwnLoad(Load, Protocol):
    """The `Load` that is a router's own."""

    @property
    def admitted(self) -> Count:
        """Requests that admission has let in there; where it is asked (`core/limits/places.py`)."""


class LocalLoad:
    """The `Load` of a router that is one process."""

    __slots__ = ("admitted", "pending", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = self.tokens = self.pending = 0
        self.admitted: Count = LocalCount()

    @property
    def own(self) -> OwnLoad:
        """All of it: there are no siblings."""
        return self

    def add(self, requests: int, tokens: int, pending: int) -> None:
        """Add to the counts (negative: subtract)."""
        self.requests += requests
        self.tokens += tokens
        self.pending += pending


@dataclass(slots=True, eq=False)
class Candidate:
    """What a policy sees of an endpoint; one live object per endpoint."""

    endpoint: Endpoint
    ordinal: int
    """How many engines joined before it."""
    load: Load = field(default_factory=LocalLoad)
    """The requests there of this router and of its siblings."""
    other_requests: int | None = None
    """Other clients' requests there, from the engine's gauges; None if not known."""
    slowdown: float = 1.0
    """Its seconds per token over the median of those that serve its models; 1 if not known."""
    lasting_slowdown: float = 1.0
    """The lowest that `slowdown` has been in the last two seconds."""
    prompt_slowdown: float = 1.0
    """How many times slower than that it is with prompts, if much; at least 1."""
    is_slow: bool = False
    """Whether it is excluded as slow."""
    slow_start_weight: float = 1.0
    """Share of its normal load that it may get, 0 to 1: below 1 during slow start."""
    slots: float = math.inf
    """Sequences that it runs side by side (vLLM's max_num_seqs); infinite if not known."""
    prompt_cost: float = 0.0
    """The cost of a pending prompt token, in requests of mean length."""
    first_token_weight: float = 0.0
    """The weight of a prompt token that must be computed before a request's first token, beyond
    its `prompt_cost`."""
    eviction_cost: float = 0.0
    """The expected cost of evicting a token from its KV cache, in requests of mean length: that of
    computing it again, by how much of what its pool evicts is asked for again, and what that
    evicts in turn."""
    held_keys: Container[int] = ()
    """Keys of the chunks of prompts that its KV cache holds, live."""
    chosen_at: int = 0
    """Number of the scheduler's last choice of it; 0: never chosen."""

    @property
    def in_flight(self) -> int:
        """Requests of this router that are on the endpoint now."""
        return self.load.own.requests

    @property
    def tokens(self) -> int:
        """Their estimated input tokens."""
        return self.load.tokens


class PromptDelay(NamedTuple):
    """Expected seconds to a request's first token in each mode, what others lose included."""

    direct: float
    remote: float


@dataclass(slots=True)
class Decision:
    """The mode of a request, and why."""

    mode: Mode
    reason: str
    delay: PromptDelay | None = None
    """What was compared; None where a rule decided."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """An engine's load by its /metrics; None where a gauge is missing."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    queued: int | None = None
    """The part of `waiting` that waits for capacity, not for example for a KV transfer."""
    preemptions: int | None = None
    """Since the engine started."""
    generated: int | None = None
    """Tokens generated since the engine started, for all clients."""
    cache_tokens: int | None = None
    """Tokens that its KV cache has room for."""
    cache_queries: int | None = None
    """Prompt tokens that were looked up in its prefix cache since it started."""
    cache_hits: int | None = None
    """Prompt tokens that were found there."""
    block_tokens: int | None = None
    """Tokens of a block of its KV cache."""
    finished: int | None = None
    """Requests that have ended since it started."""


@dataclass(slots=True)
class Reply:
    """An engine's whole answer, in memory."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = field(repr=False, default=b"")


class FailureKind(StrEnum):
    """How an engine failed to answer."""

    REFUSED = "refused"
    """No connection: the engine never saw the request."""
    RESET = "reset"
    """The connection broke before the answer began; the engine may have seen the request."""
    BROKEN = "broken"
    """The answer began and broke off, or is not HTTP."""
    TIMEOUT = "timeout"
    """Nothing was received for longer than the setting allows."""
    STALLED = "stalled"
    """The engine stopped producing tokens before the first one of this request."""
    UNAUTHORIZED = "unauthorized"
    """The engine rejected the router's API key."""
    EXHAUSTED = "exhausted"
    """The router had no descriptor, port or memory for a connection: the engine was not asked."""
    NO_ROOM = "no_room"
    """The router held too many answers to keep this one: the engine has done its work."""


UNSEEN: Final = (FailureKind.REFUSED, FailureKind.UNAUTHORIZED, FailureKind.EXHAUSTED)


@dataclass(frozen=True, slots=True)
class Failure:
    """An engine that did not answer."""

    kind: FailureKind
    message: str
    """For clients: it names no address and quotes no system error."""
    cause: str = ""
    """For operators: what the system or the engine said; empty if `message` says it all."""

    @property
    def is_unseen(self) -> bool:
        """Whether the engine never saw the request, or has turned it away unread."""
        return self.kind in UNSEEN
