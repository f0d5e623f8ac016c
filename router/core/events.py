"""Events about engines and requests, for the fleet, the metrics and the log."""

import math
from dataclasses import dataclass
from typing import Any, Final

from router.core.health import HealthSignal
from router.core.membership.entry import Order
from router.core.request_facts import PrefixKeys
from router.core.values import (
    Decision,
    Endpoint,
    Failure,
    FailureKind,
    Gauges,
    Mode,
    Role,
    TransferSource,
)

__all__ = [
    "Chosen",
    "Continuation",
    "DeadlineRefused",
    "Decided",
    "Event",
    "FellBack",
    "KeyRefused",
    "LegAnswered",
    "LegDone",
    "LegFailed",
    "MessageIgnored",
    "ModelChosen",
    "Ordered",
    "PrefixesHeld",
    "Probed",
    "RequestEnded",
    "Scraped",
    "SpeedProbed",
    "cause_of",
]

CAUSES: Final = {
    FailureKind.REFUSED: "it refused a connection",
    FailureKind.RESET: "it closed a connection before it answered a request",
    FailureKind.BROKEN: "it broke an answer off",
    FailureKind.TIMEOUT: "it sent nothing for longer than the time-outs allow",
    FailureKind.UNAUTHORIZED: "it refused the router's API key: see --engine-api-key",
    FailureKind.STALLED: "it produced no tokens, with open streams",
    FailureKind.SHUTTING_DOWN: "it is shutting down",
}
"""Text for the cause of a failure, where the event has none."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of a probe. `cards`: the entries of /v1/models; None if unknown."""

    endpoint: Endpoint
    signal: HealthSignal
    cards: tuple[dict[str, Any], ...] | None = None
    error: str | None = None
    """Why it failed, with advice."""
    version: str | None = None
    """The engine's vLLM version; None if it was not requested or not returned."""
    asked_at: float = math.inf
    """When it was sent, on the fleet's clock."""
    is_asleep: bool | None = None
    """The engine's answer to /is_sleeping; None if it gave none."""
    transfer_source: TransferSource | None = None
    """Where decode engines find it; None if it was not requested or is not known."""


@dataclass(frozen=True, slots=True)
class Scraped:
    """The result of a scrape of /metrics. `own`: the requests on the engine at that time that the
    router knows of, its own and its siblings'."""

    endpoint: Endpoint
    gauges: Gauges | None
    own: int
    error: str | None = None
    """Why the gauges could not be read, with advice."""


@dataclass(frozen=True, slots=True)
class SpeedProbed:
    """A speed probe has ended; without an `outcome`: none is needed any more."""

    endpoint: Endpoint
    outcome: str = ""
    """ok, failed or timeout (which is what an engine that stands still gives)."""
    error: str | None = None
    """Why it failed."""


@dataclass(slots=True, init=False)  # see CONTRIBUTING.md, "Compiled modules"
class LegAnswered:
    """An engine began to answer a leg after `seconds`."""

    endpoint: Endpoint
    status: int
    seconds: float
    counts_against_engine: bool
    """False if another engine may be at fault, as for a failed KV load."""
    trace_id: str | None
    """The trace id of the request, if it is sampled."""
    full_seconds: float
    """Seconds for which other engines are preferred, because this one reported to be full; 0 if it
    did not."""
    model: str | None
    """The model that the request asks for."""

    def __init__(
        self,
        endpoint: Endpoint,
        status: int,
        seconds: float,
        counts_against_engine: bool = True,
        trace_id: str | None = None,
        full_seconds: float = 0.0,
        model: str | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.status = status
        self.seconds = seconds
        self.counts_against_engine = counts_against_engine
        self.trace_id = trace_id
        self.full_seconds = full_seconds
        self.model = model


@dataclass(slots=True, init=False)
class LegDone:
    """An engine completed an answer with a status below 500."""

    endpoint: Endpoint
    model: str | None
    """The model that the request asks for."""

    def __init__(self, endpoint: Endpoint, model: str | None = None) -> None:
        self.endpoint = endpoint
        self.model = model


@dataclass(frozen=True, slots=True)
class LegFailed:
    """An engine did not answer a leg, or did not complete its answer."""

    endpoint: Endpoint
    kind: FailureKind
    asked_at: float = math.inf
    """When the leg was sent, on the fleet's clock."""
    cause: str = ""
    """For operators: what the system or the engine reported; empty if `kind` is sufficient."""
    model: str | None = None
    """The model that the request asks for."""

    @property
    def is_unreachable(self) -> bool:
        """Whether the engine cannot be reached."""
        return self.kind in (FailureKind.REFUSED, FailureKind.RESET)


@dataclass(frozen=True, slots=True)
class FellBack:
    """A leg failed and the plan continues without it or with another engine."""

    leg: Role
    reason: str


@dataclass(frozen=True, slots=True)
class Continuation:
    """What became of a stream that left its engine behind the first token."""

    outcome: str
    """continued, moved (no engine has failed), no_engine, attempts (three engines have failed), or
    the reason why no other engine could go on."""
    carried: int = 0
    """Tokens that the last engine was sent."""
    discarded: int = 0
    """Tokens that were generated twice."""
    pause: float = 0.0
    """Seconds without a token."""


@dataclass(frozen=True, slots=True)
class KeyRefused:
    """A request was refused because its API key had reached a limit."""

    api_key: str
    """The name of the key."""
    limit: str
    """requests, tokens or streams."""


@dataclass(frozen=True, slots=True)
class ModelChosen:
    """A request asked for an alias (`--model-aliases`), which stands for this model."""

    alias: str
    model: str


@dataclass(frozen=True, slots=True)
class DeadlineRefused:
    """A request was refused because its first token was expected after its deadline."""


@dataclass(frozen=True, slots=True)
class MessageIgnored:
    """Envoy sent the endpoint picker a part of a request or an answer again."""


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
    """The record of one request, filled in while it runs and observed once at its end."""

    request_id: str
    route: str
    started: float
    model: str | None
    stream: bool
    tokens: int
    text_bytes: int
    """UTF-8 bytes of the prompt's text. 0 if the text is short, or if `prompt_tokens` would not be
    the tokens of this text alone. With media, the bytes of a text of as many estimated tokens."""
    media_tokens: int
    """The part of `tokens` that is images, recordings and videos."""
    prompt_tokens: int
    """Tokens of the prompt according to an engine; 0 if unknown or not useful."""
    mode: Mode | None
    reason: str
    encode: Endpoint | None
    prefill: Endpoint | None
    decode: Endpoint | None
    fallbacks: tuple[FellBack, ...]
    status: int
    """HTTP status sent to the client, or, for a failure behind an early head, the status that the
    error event has; 0 if the client left before."""
    outcome: str
    """ok, error, broken (an incomplete answer), client_left or aborted (by the router's
    shutdown)."""
    error: str | None
    api_key: str | None
    """The name of its API key, if keys are required."""
    queue_seconds: float | None
    """Seconds in the queue; None if it did not wait."""
    prefill_seconds: float | None
    prefilled_at: float | None
    """When the reply of the last remote prefill arrived, on the clock of `started`."""
    asked_at: float
    """When the last engine request was sent; 0 if none was."""
    first_byte: float | None
    """When the first byte of the body (for a stream: of its first content) was sent to the client,
    in monotonic seconds like `started`."""
    ended: float
    generated: int
    """Tokens of the answer according to the engine's usage; 0 if unknown."""
    chunks: int
    """Reads from the engine that were relayed; about one per token at moderate load."""
    bytes_out: int
    continuation: Continuation | None
    """None unless the stream left an engine behind the first token."""
    trace_id: str | None
    """The trace id, if the trace is sampled: 32 hexadecimal digits."""

    def __init__(self, request_id: str, route: str, started: float) -> None:
        self.request_id = request_id
        self.route = route
        self.started = started
        self.model = self.mode = self.encode = self.prefill = self.decode = None
        self.error = self.api_key = self.trace_id = self.continuation = None
        self.queue_seconds = self.prefill_seconds = self.prefilled_at = self.first_byte = None
        self.stream = False
        self.tokens = self.text_bytes = self.media_tokens = self.prompt_tokens = self.generated = 0
        self.status = self.chunks = self.bytes_out = 0
        self.reason = ""
        self.fallbacks = ()
        self.outcome = "error"
        self.asked_at = self.ended = 0.0

    @property
    def answer_tokens(self) -> int:
        """Tokens of the answer: from usage, or for a stream estimated by the number of reads."""
        return self.generated or (self.chunks if self.stream else 0)

    @property
    def failure(self) -> str:
        """The outcome of a failed request: if the client has got a successful status, its answer
        was broken."""
        return "broken" if 0 < self.status < 400 else "error"

    @property
    def has_failed(self) -> bool:
        """Whether it failed for another reason than its client."""
        return self.status >= 500 or self.outcome == "broken"

    @property
    def is_bad(self) -> bool:
        """Whether operators should know about it: it failed or fell back."""
        return self.has_failed or bool(self.fallbacks)


@dataclass(frozen=True, slots=True)
class Ejected:
    """An engine was ejected because of failures. Times in monotonic seconds, which all workers
    share."""

    endpoint: Endpoint
    since: float
    until: float
    cause: str = ""
    """Its last failure."""
    streak: int = 0
    """The number of consecutive failures that caused it; 0 if the failure rate did."""


@dataclass(frozen=True, slots=True)
class PrefixesHeld:
    """Prompts that an engine has computed for this process and now holds in its KV cache."""

    endpoint: Endpoint
    prefixes: tuple[PrefixKeys, ...]


@dataclass(frozen=True, slots=True)
class Ordered:
    """An operator's order, sent by the worker that received it to the leader, which alone changes
    the fleet. `number` increases with each order of a worker."""

    worker: int
    number: int
    order: Order
    endpoint: Endpoint


SharedEvent = Probed | Scraped | SpeedProbed | LegFailed | Ejected | PrefixesHeld
"""Events that a worker process sends to the other workers of its host."""

Event = (
    Probed
    | Scraped
    | SpeedProbed
    | LegAnswered
    | LegDone
    | LegFailed
    | FellBack
    | KeyRefused
    | DeadlineRefused
    | MessageIgnored
    | ModelChosen
    | Chosen
    | Decided
    | RequestEnded
)


def cause_of(failure: LegFailed | Failure) -> str:
    """The cause of a failure, for operators."""
    return failure.cause or CAUSES[failure.kind]
