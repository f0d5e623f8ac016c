"""Events of engines and requests, for the fleet, the metrics and the log."""

import math
from dataclasses import dataclass
from typing import Any

from router.core.health import HealthSignal
from router.core.membership.entry import Order
from router.core.values import Decision, Endpoint, FailureKind, Gauges, Mode, PrefixKeys, Role

__all__ = [
    "Chosen",
    "Decided",
    "Event",
    "FellBack",
    "KeyRefused",
    "LegAnswered",
    "LegDone",
    "LegFailed",
    "Ordered",
    "PrefixesHeld",
    "Probed",
    "RequestEnded",
    "Scraped",
]


@dataclass(frozen=True, slots=True)
class Probed:
    """A probe of an engine. `cards`: the entries of its /v1/models; None if not known."""

    endpoint: Endpoint
    signal: HealthSignal
    cards: tuple[dict[str, Any], ...] | None = None
    error: str | None = None
    """Why it failed, and what to do."""
    version: str | None = None
    """The engine's own; None if it was not asked or did not tell."""


@dataclass(frozen=True, slots=True)
class Scraped:
    """A scrape of an engine's /metrics. `own`: the requests there at the time that the router knows
    of, its own and those of its siblings."""

    endpoint: Endpoint
    gauges: Gauges | None
    own: int
    error: str | None = None
    """Why the gauges could not be read, and what to do."""


@dataclass(slots=True, init=False)  # see CONTRIBUTING.md, "Compiled modules"
class LegAnswered:
    """An engine began to answer a leg after `seconds`."""

    endpoint: Endpoint
    status: int
    seconds: float
    is_own_doing: bool
    """False where an error may be another engine's fault, as a failed KV load."""
    trace_id: str | None
    """Of the request's trace, if that is sampled."""
    full_seconds: float
    """Seconds for which others are asked first, of an engine that has enough requests; 0: it did
    not say so."""

    def __init__(
        self,
        endpoint: Endpoint,
        status: int,
        seconds: float,
        is_own_doing: bool = True,
        trace_id: str | None = None,
        full_seconds: float = 0.0,
    ) -> None:
        self.endpoint = endpoint
        self.status = status
        self.seconds = seconds
        self.is_own_doing = is_own_doing
        self.trace_id = trace_id
        self.full_seconds = full_seconds


@dataclass(slots=True)
class LegDone:
    """An engine gave a complete answer with a status below 500."""

    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class LegFailed:
    """An engine did not answer a leg, or broke off its answer."""

    endpoint: Endpoint
    kind: FailureKind
    asked_at: float = math.inf
    """When the leg was sent; the fleet's clock."""
    cause: str = ""
    """For operators: what the system or the engine said; empty if `kind` says it all."""


@dataclass(frozen=True, slots=True)
class FellBack:
    """A leg failed and the plan goes on without it, or with another engine."""

    leg: Role
    reason: str


@dataclass(frozen=True, slots=True)
class KeyRefused:
    """A request was refused because its API key had reached a limit."""

    api_key: str
    """The key's name."""
    limit: str
    """requests, tokens or streams."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A sampled choice of an engine, with all candidates (`--decision-log-sample`)."""

    request_id: str
    role: Role
    endpoint: Endpoint
    candidates: tuple[str, ...]
    """Each candidate with its figures, as text."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A sampled decision for which both modes were compared (`--decision-log-sample`)."""

    request_id: str
    decision: Decision


@dataclass(slots=True, init=False)  # see CONTRIBUTING.md, "Compiled modules"
class RequestEnded:
    """One request's record, filled in while it runs and observed once at its end."""

    request_id: str
    route: str
    started: float
    model: str | None
    stream: bool
    tokens: int
    text_bytes: int
    """The UTF-8 bytes of the prompt's text; 0 where `prompt_tokens` would not be those of this text
    alone, and for a short one."""
    prompt_tokens: int
    """What an engine said that it has; 0 if none did, or if it would tell nothing."""
    mode: Mode | None
    reason: str
    prefill: Endpoint | None
    decode: Endpoint | None
    fallbacks: tuple[FellBack, ...]
    status: int
    """The status sent to the client; 0 if it left before one was."""
    outcome: str
    """ok, error, broken (an answer that had begun), client_left or aborted (by the router's
    shutdown)."""
    error: str | None
    api_key: str | None
    """The name of the key that it had, where keys are needed."""
    queue_seconds: float | None
    """How long it waited for its turn; None if it did not wait."""
    prefill_seconds: float | None
    prefilled_at: float | None
    """When the last remote prefill's reply was there; the clock of `started`."""
    asked_at: float
    """When the last engine request was sent; 0 if none was."""
    first_byte: float | None
    """When the first byte of the answer's body (of a stream: its first content) was sent to the
    client; the clock of `started`, monotonic seconds."""
    ended: float
    generated: int
    """Tokens of its answer, by the engine's usage; 0 if it did not tell."""
    chunks: int
    """Reads from the engine that were relayed; about one per token at moderate load."""
    bytes_out: int
    trace_id: str | None
    """Of its trace, if that is sampled: 32 hexadecimal digits."""

    def __init__(self, request_id: str, route: str, started: float) -> None:
        self.request_id = request_id
        self.route = route
        self.started = started
        self.model = self.mode = self.prefill = self.decode = None
        self.error = self.api_key = self.trace_id = None
        self.queue_seconds = self.prefill_seconds = self.prefilled_at = self.first_byte = None
        self.stream = False
        self.tokens = self.text_bytes = self.prompt_tokens = self.generated = 0
        self.status = self.chunks = self.bytes_out = 0
        self.reason = ""
        self.fallbacks = ()
        self.outcome = "error"
        self.asked_at = self.ended = 0.0

    @property
    def answer_tokens(self) -> int:
        """Tokens of its answer: as told, or of a stream as many as there were reads of it."""
        return self.generated or (self.chunks if self.stream else 0)

    @property
    def failure(self) -> str:
        """The outcome of a request that failed: a client that has a good status has seen an answer
        break off."""
        return "broken" if 0 < self.status < 400 else "error"

    @property
    def has_failed(self) -> bool:
        """Whether it failed by no fault of its client."""
        return self.status >= 500 or self.outcome == "broken"

    @property
    def is_bad(self) -> bool:
        """Whether operators should know of it: it failed, or took another way than planned."""
        return self.has_failed or bool(self.fallbacks)


@dataclass(frozen=True, slots=True)
class Ejected:
    """An engine was ejected because of failures; monotonic seconds, the clock of all workers."""

    endpoint: Endpoint
    since: float
    until: float
    cause: str = ""
    """Its last failure."""
    streak: int = 0
    """The failures in a row that did it; 0 if its failure rate did."""


@dataclass(frozen=True, slots=True)
class PrefixesHeld:
    """Prompts that an engine has computed for this process, so that its KV cache holds them."""

    endpoint: Endpoint
    prefixes: tuple[PrefixKeys, ...]


@dataclass(frozen=True, slots=True)
class Ordered:
    """An operator's order, from the worker that got it to the leader, which alone changes the
    fleet. `number` grows from one order of a worker to its next."""

    worker: int
    number: int
    order: Order
    endpoint: Endpoint


SharedEvent = Probed | Scraped | LegFailed | Ejected | PrefixesHeld
"""Events that a worker process sends to the others of its host."""

Event = (
    Probed
    | Scraped
    | LegAnswered
    | LegDone
    | LegFailed
    | FellBack
    | KeyRefused
    | Chosen
    | Decided
    | RequestEnded
)
