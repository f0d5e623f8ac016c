"""Value types shared by all of core: roles, routes, failures, and what engines report."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "DECODE",
    "DIRECT",
    "ENCODE",
    "GENERATE",
    "MESSAGES",
    "PASS_THROUGH",
    "PREFILL",
    "REMOTE",
    "RESPONSES",
    "Decision",
    "Endpoint",
    "Failure",
    "FailureKind",
    "Gauges",
    "Mode",
    "PromptDelay",
    "Receiver",
    "Reply",
    "Role",
    "Route",
    "RouteKind",
    "TransferSource",
    "TransferTarget",
]


class Role(StrEnum):
    """An engine's role, and the name of the leg that it serves."""

    PREFILL = "prefill"
    DECODE = "decode"
    ENCODE = "encode"

    # Endpoints are hashed several times per request, and Enum's own hash is a Python function.
    __hash__ = str.__hash__


# Enum members are looked up slowly in Python 3.11, so requests use these names.
PREFILL: Final = Role.PREFILL
DECODE: Final = Role.DECODE
ENCODE: Final = Role.ENCODE


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
    GENERATE = "generate"
    """Token ids in, token ids out."""
    PASS_THROUGH = "pass_through"


CHAT: Final = RouteKind.CHAT
COMPLETIONS: Final = RouteKind.COMPLETIONS
RESPONSES: Final = RouteKind.RESPONSES
MESSAGES: Final = RouteKind.MESSAGES
GENERATE: Final = RouteKind.GENERATE
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
    is_asleep: bool = False
    """Whether it is in vLLM's sleep mode."""
    adapters: tuple[str, ...] = ()
    """The LoRA adapters that it probably has loaded: the last ones with requests, running or
    waiting, as many as it has room for."""
    adapters_are_full: bool = False
    """Whether its requests, running or waiting, need all of that room: one for another adapter
    waits."""


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
    SHUTTING_DOWN = "shutting_down"
    """The engine takes no requests any more, although its /health may still be good."""
    NO_ROOM = "no_room"
    """The answer budget was exhausted. The engine has done its work."""


UNSEEN: Final = (
    *(FailureKind.REFUSED, FailureKind.UNAUTHORIZED, FailureKind.EXHAUSTED),
    FailureKind.SHUTTING_DOWN,
)


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


class TransferSource(NamedTuple):
    """Where decode engines find a prefill engine that runs MooncakeConnector: the URL of its
    bootstrap server, and the id under which that lists it, a new one at each start."""

    bootstrap: str
    engine_id: str


class TransferTarget(NamedTuple):
    """Where a decode engine that runs MoRIIOConnector receives KV caches."""

    host: str
    handshake_port: int
    notify_port: int


class Receiver(NamedTuple):
    """The address at which a decode engine's LMCache receives KV caches (LMCache's `disagg_spec`).

    A prefill engine pushes to the ports of its own tensor-parallel rank, so both lists of ports
    have one entry per rank. `router/settings/checks.py` validates them at start-up.
    """

    host: str
    init_ports: tuple[int, ...]
    alloc_ports: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """Number of tensor-parallel ranks; each rank of the prefill engine reports its part as
        sent."""
        return len(self.init_ports)

    def spec(self, transfer_id: str) -> dict[str, Any]:
        """LMCache's `disagg_spec` for one transfer."""
        return {
            "req_id": transfer_id,
            "receiver_host": self.host,
            "receiver_init_port": self.init_ports,
            "receiver_alloc_port": self.alloc_ports,
        }
