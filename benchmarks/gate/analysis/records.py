"""What one run of the gate wrote down, and its JSON.

Pure nouns. Times are seconds since the measured phase began, unless the name says ms; absence is
None.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


class Unreadable(ValueError):
    """A stored file that is not what it should be; the text says where."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the measured phase.

    `prompt` is an index into the data set; `first` and `last` are the first and the last chunk with
    content, `gaps` the seconds between such chunks; `ended` is when the outcome was known, None if
    it never was. `output_tokens` is None if not counted: chunks are counted then. One that is
    `cancelled` was given up by the client on purpose. `left` are workers that it waited for in
    vain, before the router moved it to `worker`. It was `resent` by the client where the connection
    was closed just when it was written.
    """

    number: int
    prompt: int
    worker: str | None
    sent: float
    first: float | None
    last: float | None
    ended: float | None
    input_tokens: int | None
    output_tokens: int | None
    status: int | None
    error: str | None
    gaps: tuple[float, ...]
    cancelled: bool = False
    left: tuple[str, ...] = ()
    resent: bool = False

    @property
    def waited_for(self) -> str | None:
        """The worker of its wait for the first content: the first one that it left, because routers
        move a request only after a long wait; else the worker that served it."""
        return self.left[0] if self.left else self.worker

    @property
    def succeeded(self) -> bool:
        """Answered with content and without an error: what AIPerf takes its figures from."""
        fine = self.error is None and (self.status is None or 200 <= self.status < 300)
        whole = self.ended is not None and self.first is not None and self.last is not None
        return fine and whole and not self.cancelled

    @property
    def tokens(self) -> int:
        """Output tokens, or chunks with content if tokens were not counted."""
        if self.output_tokens is not None:
            return self.output_tokens
        return 0 if self.first is None else len(self.gaps) + 1


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """A sample of a worker (running, waiting, KV use) and of the router (the rest) at one time."""

    at: float
    worker: str
    running: float | None
    waiting: float | None
    kv_usage: float | None
    in_flight: int | None
    exclusion: str | None
    seconds_per_token: float | None


@dataclass(frozen=True, slots=True)
class Client:
    """How near the load generator was to being the limit.

    `cpu` is the busiest generator process's share of one core, `lag_p99_ms` how late its event
    loop's timers were (None where it does not say), `reached` the most requests that were in flight
    at once.
    """

    cpu: float
    lag_p99_ms: float | None
    reached: int


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that was seen of one measured phase. `started_at` is ISO 8601, UTC; `workers` how
    many were to serve, None for one on each GPU."""

    profile: str
    url: str
    model: str
    gpus: int
    concurrency: int
    started_at: str
    requests: tuple[Request, ...]
    samples: tuple[WorkerSample, ...]
    client: Client
    interrupted: bool
    workers: int | None = None

    def gave_up(self, request: Request) -> bool:
        """Whether the client gave up on it: neither a success nor a failure."""
        is_open = request.ended is None and request.error is None
        return request.cancelled or (self.interrupted and is_open)

    def to_json(self) -> bytes:
        """One JSON document."""
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> "Run":
        """Read it back; unknown fields are ignored. Raises Unreadable."""
        return _read(_RUN, data, "run")


class Kind(StrEnum):
    """The shapes that runs have."""

    HEALTHY = "healthy"
    CLIENT = "client-limited"
    ERRORS = "errors"
    UNDER_PROVISIONED = "under-provisioned"
    COLD = "cold start"
    BACKUP = "single-worker backup"
    JITTER = "knee jitter"
    DEGRADED = "balanced degradation"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a run looks like, the worker to blame, and since when it was so (for the plots)."""

    kind: Kind
    worker: str | None
    text: str
    since: float | None = None
    until: float | None = None


_RUN = TypeAdapter(Run)
_CLIENT, _DIAGNOSIS = TypeAdapter(Client | None), TypeAdapter(Diagnosis | None)


def run_of(found: object) -> Run:
    """A run from parsed JSON. Raises Unreadable."""
    return Run.from_json(orjson.dumps(found))


def client_of(found: object) -> Client | None:
    """A stored client from parsed JSON. Raises Unreadable."""
    return _read(_CLIENT, orjson.dumps(found), "client")


def diagnosis_of(found: object) -> Diagnosis | None:
    """A stored diagnosis from parsed JSON. Raises Unreadable."""
    return _read(_DIAGNOSIS, orjson.dumps(found), "diagnosis")


def _read(adapter: TypeAdapter[T], data: bytes | str, name: str) -> T:
    """Raises Unreadable, with the place of the error."""
    try:
        return adapter.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in first["loc"])
        raise Unreadable(f"{name}{place}: {first['msg']}") from None
