"""What all requests share: engine connections, scheduler, limits and time-outs."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from router.core.continuation.move_queue import MoveQueue
from router.core.events import Event, RequestEnded
from router.core.gateway.protocol import Gateway
from router.core.limits.budgets import ByteBudget
from router.core.plans.steps import Plans
from router.core.request_facts import Facts, ImageRules, PrefixKeys, session_keys
from router.core.routing.engine_timeouts import EngineTimeouts
from router.core.routing.model_names import ModelNames
from router.core.routing.schedule import Scheduler
from router.core.values import Endpoint, Failure, Route
from router.net.engine.pool import EnginePool
from router.net.limits.admission_gate import AdmissionGate
from router.net.limits.read_limiter import ReadLimiter
from router.net.limits.start_limiter import StartLimiter
from router.net.limits.timers import IdleTimeoutSweep
from router.net.watched_files import KeyFile

__all__ = [
    "Active",
    "BodyParser",
    "KVReady",
    "Limits",
    "Network",
    "RequestTrace",
    "Timeouts",
    "Tracing",
]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time-outs of requests, in seconds."""

    prefill: EngineTimeouts
    """From the engine request to the whole reply of a prefill engine."""
    encode: EngineTimeouts
    """The same for an encode engine."""
    stream: EngineTimeouts
    kv_ready: float
    """For LMCache's notifications, from the prefill reply on."""
    sse_keep_alive: float = 0.0
    """Of silence before a stream's first content, until its client is sent a comment; 0: none."""

    @property
    def shortest(self) -> float:
        """The shortest of those that the idle sweep enforces."""
        shortest = min(self.encode.shortest, self.prefill.shortest, self.stream.shortest)
        return min(shortest, self.sse_keep_alive) if self.sse_keep_alive else shortest


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for clients, in bytes and seconds."""

    body_bytes: int
    body_seconds: float
    stall_seconds: float
    keep_alive_seconds: float


class KVReady(Protocol):
    """Notifications from prefill engines that a KV cache has been transferred."""

    async def wait(self, transfer_id: str, count: int, timeout: float) -> bool:
        """Whether `count` notifications for `transfer_id` arrive within `timeout` seconds."""


class RequestTrace(Protocol):
    """The trace of one request: a span for the request, and one for each of its legs, which follow
    each other."""

    @property
    def exported_trace_id(self) -> str | None:
        """The trace id in hexadecimal; None if the trace is not sampled."""

    def begin_leg(self, endpoint: Endpoint, path: str) -> None:
        """Start the span of a leg."""

    def headers(self) -> bytes:
        """Header lines that make the leg's span the parent of the engine's span."""

    def first_token(self) -> None:
        """Note that the client has been sent the first content of a stream."""

    def end_leg(self, status: int, failure: Failure | None) -> None:
        """End the span of a leg. `status` is 0 if no answer began."""

    def end(self, record: RequestEnded) -> None:
        """End the request's span, and that of a leg that has not ended."""


class Tracing(Protocol):
    """Creates traces."""

    def begin(
        self, route: Route, traceparent: bytes | None, tracestate: bytes | None
    ) -> RequestTrace:
        """Start the trace of a request, as a part of the client's trace if it sent one."""


class BodyParser(Protocol):
    """Parses large bodies outside the event loop."""

    async def read(
        self, route: Route, content_type: bytes, pieces: list[bytes], query: bytes = b""
    ) -> Facts:
        """Parse a body that arrived in `pieces`. Raises a RouterError."""


class Active(Protocol):
    """A request in progress."""

    def abort(self) -> None:
        """End the request with an error, because the router is shutting down."""


@dataclass(slots=True)
class Network:
    """What all requests share."""

    plans: Plans
    pools: dict[Endpoint, EnginePool]
    observe: Callable[[Event], None]
    idle_sweep: IdleTimeoutSweep
    start_limiter: StartLimiter
    byte_budget: ByteBudget
    """Budget for the bytes of request bodies."""
    answer_budget: ByteBudget
    """Budget for the bytes of answers that are read whole, or held back before their first token.
    It is separate from `byte_budget`, so that work of engines is not lost when many bodies
    arrive."""
    move_queue: MoveQueue
    read_limiter: ReadLimiter
    body_parser: BodyParser
    engine_api_key: str | None = None
    kv_ready: KVReady | None = None
    tracing: Tracing | None = None
    find_models: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Asks the engines for their models, after which a request for an unknown one is decided
    again; None: it is refused at once."""
    gateway: Gateway | None = None
    """None unless a gateway may choose the engines."""
    active: set[Active] = field(default_factory=set)
    """Requests in progress."""
    rng: Random = field(default_factory=Random)

    # By the settings, at the start and at each reload.

    scheduler: Scheduler = field(init=False)
    timeouts: Timeouts = field(init=False)
    limits: Limits = field(init=False)
    model_names: ModelNames | None = None
    """None without aliases."""
    image_rules: ImageRules | None = None
    """The tokens of images, by model, as operators state them; None without any."""
    sample: float = 0.0
    """Share of routing decisions, 0 to 1, that are logged in full."""
    session_header: bytes | None = None
    """Header whose value names a request's session; None: sessions are not followed."""
    has_deadlines: bool = False
    """Whether clients may set deadlines by headers."""
    names_engines: bool = False
    """Whether responses name the engine that served them."""
    api_keys: KeyFile | None = None
    """None if no API key is required."""
    admission: AdmissionGate | None = None
    """None if the number of requests in flight is not limited."""

    def session_of(self, fields: Mapping[bytes, bytes]) -> PrefixKeys | None:
        """The key of the session that a request's headers name; None if they name none."""
        name = None if self.session_header is None else fields.get(self.session_header)
        return session_keys(name) if name else None

    @property
    def withholds_client_keys(self) -> bool:
        """Whether engines get the router's API key, or none, in place of the client's."""
        return self.engine_api_key is not None or self.api_keys is not None
