"""What all requests share: the engines' connections, the decisions, limits and time-outs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from router.core.events import Event, RequestEnded
from router.core.limits.byte_budget import ByteBudget
from router.core.plans.steps import Plan
from router.core.routing.patience import Patience
from router.core.routing.schedule import Scheduler
from router.core.values import Decision, Endpoint, Facts, Failure, Route
from router.net.engine.pool import EnginePool
from router.net.key_file import KeyFile
from router.net.limits.admission_gate import AdmissionGate
from router.net.limits.idle_sweep import IdleTimeoutSweep
from router.net.limits.read_limiter import ReadLimiter
from router.net.limits.start_limiter import StartLimiter
from router.net.request.gateway import Gateway

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
    """Patience with an engine, in seconds."""

    prefill: Patience
    """From the request to the whole reply of a prefill engine."""
    stream: Patience
    kv_ready: float
    """For LMCache's notifications, from the prefill reply on."""

    @property
    def shortest(self) -> float:
        """Of those that are looked after by the sweep of idle legs."""
        return min(self.prefill.shortest, self.stream.shortest)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may take: bytes, and seconds."""

    body_bytes: int
    body_seconds: float
    stall_seconds: float
    keep_alive_seconds: float


class KVReady(Protocol):
    """Where prefill engines report that a KV cache has been sent."""

    async def wait(self, transfer_id: str, count: int, timeout: float) -> bool:
        """Whether `count` reports for `transfer_id` came within `timeout` seconds."""


class RequestTrace(Protocol):
    """The trace of one request: a span for it, and one for each leg, one after the other."""

    @property
    def exported_trace_id(self) -> str | None:
        """The trace id, in hexadecimal; None if it is not sampled."""

    def begin_leg(self, endpoint: Endpoint, path: str) -> None:
        """An engine is asked."""

    def headers(self) -> bytes:
        """The header lines that make the leg's span the parent of the engine's own."""

    def first_token(self) -> None:
        """The client has had the first content of a stream."""

    def end_leg(self, status: int, failure: Failure | None) -> None:
        """It is known what became of the leg; `status` is 0 if no answer began."""

    def end(self, record: RequestEnded) -> None:
        """The request is over, and whatever leg is under way."""


class Tracing(Protocol):
    """Makes traces."""

    def begin(
        self, route: Route, traceparent: bytes | None, tracestate: bytes | None
    ) -> RequestTrace:
        """The trace of a request that has arrived, part of its client's own where it sent one."""


class BodyParser(Protocol):
    """Reads large bodies off the event loop."""

    async def read(
        self, route: Route, content_type: bytes, pieces: list[bytes], query: bytes = b""
    ) -> Facts:
        """The facts of a request whose body came in `pieces`. Raises a RouterError."""


class Active(Protocol):
    """A request that is being served."""

    def abort(self) -> None:
        """End it: the router is going."""


@dataclass(slots=True)
class Network:
    """All that requests share."""

    scheduler: Scheduler
    plans: Callable[[Facts, Decision], Plan]
    pools: dict[Endpoint, EnginePool]
    timeouts: Timeouts
    limits: Limits
    observe: Callable[[Event], None]
    idle_sweep: IdleTimeoutSweep
    start_limiter: StartLimiter
    byte_budget: ByteBudget
    """Of request bodies."""
    answer_budget: ByteBudget
    """Of answers that are read whole, or held back before their first token. A budget of its own:
    work that engines have done is not lost because more bodies come."""
    read_limiter: ReadLimiter
    body_parser: BodyParser
    active: set[Active] = field(default_factory=set)
    """Requests that have begun and not ended."""
    sample: float = 0.0
    """The share of choices that are logged in full."""
    names_engines: bool = False
    """Whether answers say which engine gave them."""
    engine_api_key: str | None = None
    kv_ready: KVReady | None = None
    tracing: Tracing | None = None
    api_keys: KeyFile | None = None
    """None where anybody may ask."""
    admission: AdmissionGate | None = None
    """None where any number of requests is served at a time."""
    gateway: Gateway | None = None
    """None where the router chooses all engines."""
    rng: Random = field(default_factory=Random)

    @property
    def withholds_client_keys(self) -> bool:
        """Whether engines get the router's API key, or none, in place of the client's."""
        return self.engine_api_key is not None or self.api_keys is not None
