"""What the shell saw of engines and requests, on its way to the fleet and the metrics."""

import math
from dataclasses import dataclass, field
from typing import Any

from router.core.health import HealthSignal
from router.core.values import Endpoint, FailureKind, Gauges, Mode, Role

__all__ = [
    "Chosen",
    "Event",
    "FellBack",
    "LegAnswered",
    "LegDone",
    "LegFailed",
    "Probed",
    "RequestEnded",
    "Scraped",
]


@dataclass(frozen=True, slots=True)
class Probed:
    """A probe of an engine. `cards` are the entries of its /v1/models, None when not learned."""

    endpoint: Endpoint
    signal: HealthSignal
    cards: tuple[dict[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True)
class Scraped:
    """A scrape of an engine's /metrics; `own` is what this router had in flight there then."""

    endpoint: Endpoint
    gauges: Gauges | None
    own: int


@dataclass(slots=True)
class LegAnswered:
    """An engine began to answer a leg after `seconds`."""

    endpoint: Endpoint
    status: int
    seconds: float
    is_own_doing: bool = True
    """False where an error may be another engine's: a decode engine that cannot load a KV cache."""


@dataclass(slots=True)
class LegDone:
    """An engine gave a whole answer that is no error of its own."""

    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class LegFailed:
    """An engine did not answer a leg, or broke off."""

    endpoint: Endpoint
    kind: FailureKind
    asked_at: float = math.inf
    """When the leg was asked for, on the clock of the fleet."""


@dataclass(frozen=True, slots=True)
class FellBack:
    """A leg did not go as planned and the request took another way."""

    leg: Role
    reason: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """One choice of an engine, told in full: one of many, for those who ask why."""

    request_id: str
    role: Role
    endpoint: Endpoint
    candidates: tuple[str, ...]
    """Each candidate with its figures, as words."""


@dataclass(slots=True)
class RequestEnded:
    """One request's whole story, filled in while it runs and observed once at its end."""

    request_id: str
    route: str
    started: float
    model: str | None = None
    stream: bool = False
    tokens: int = 0
    mode: Mode | None = None
    reason: str = ""
    prefill: Endpoint | None = None
    decode: Endpoint | None = None
    fallbacks: list[FellBack] = field(default_factory=list)
    status: int = 0
    """The status sent to the client; 0 if it left before one was."""
    outcome: str = "error"
    """ok, error, client_left or aborted (by the router's shutdown)."""
    error: str | None = None
    prefill_seconds: float | None = None
    first_byte: float | None = None
    """When the first byte of the answer's body went to the client, of a stream its first content;
    the clock of `started`, which is monotonic and in seconds."""
    ended: float = 0.0
    chunks: int = 0
    """Reads from the engine that were passed on; about one per token at moderate load."""
    bytes_out: int = 0


@dataclass(frozen=True, slots=True)
class Ejected:
    """An engine that answers with errors was taken out of use, for a time of the caller's clock."""

    endpoint: Endpoint
    since: float
    until: float


SharedEvent = Probed | Scraped | LegFailed | Ejected
"""What one process tells the others of its host."""

Event = Probed | Scraped | LegAnswered | LegDone | LegFailed | FellBack | Chosen | RequestEnded
