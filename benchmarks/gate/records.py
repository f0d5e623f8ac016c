"""What one run of the gate wrote down, and its JSON.

Pure nouns. Times are seconds since the measured phase began, unless the name says ms; absence is
None.
"""

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson


class Unreadable(ValueError):
    """A stored file that is not what it should be; the text says where."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the measured phase.

    `prompt` is an index into the data set; `first` and `last` are the first and the last chunk with
    content, `gaps` the seconds between such chunks; `ended` is when the outcome was known, None if
    it never was. `output_tokens` is None where nobody counted: chunks are counted then. One that is
    `cancelled` was given up by the client on purpose.
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

    @property
    def succeeded(self) -> bool:
        """Answered with content and without an error: what AIPerf takes its figures from."""
        fine = self.error is None and (self.status is None or 200 <= self.status < 300)
        whole = self.ended is not None and self.first is not None and self.last is not None
        return fine and whole and not self.cancelled

    @property
    def tokens(self) -> int:
        """Output tokens, or chunks with content where nobody counted tokens."""
        if self.output_tokens is not None:
            return self.output_tokens
        return 0 if self.first is None else len(self.gaps) + 1


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """What a worker (running, waiting, KV use) and the router (the rest) said at one time."""

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
    """Everything that was seen of one measured phase. `started_at` is ISO 8601, UTC."""

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

    def gave_up(self, request: Request) -> bool:
        """Whether the client did not wait for it: no success, and nobody's failure."""
        is_open = request.ended is None and request.error is None
        return request.cancelled or (self.interrupted and is_open)

    def to_json(self) -> bytes:
        """One JSON document."""
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> "Run":
        """Read it back. Raises Unreadable."""
        try:
            found = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise Unreadable(f"not JSON: {error}") from None
        return run_of(found)


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


def run_of(found: object) -> Run:
    """A run from parsed JSON. Unknown fields are ignored. Raises Unreadable."""
    return _built(Run, found, "run")


Noun = TypeVar("Noun", Run, Client, Request, WorkerSample)


def _built(kind: type[Noun], found: object, where: str) -> Noun:
    if not isinstance(found, Mapping):
        raise Unreadable(f"{where}: not an object")
    return _all_built(kind, [found], where)[0]


def _all_built(kind: type[Noun], rows: object, where: str) -> list[Noun]:
    """Hints are looked up once for all rows: a run has tens of thousands."""
    if not isinstance(rows, list):
        raise Unreadable(f"{where}: not a list")
    hints = get_type_hints(kind)
    names = [(field.name, hints[field.name]) for field in fields(kind)]
    needed = [field.name for field in fields(kind) if field.default is MISSING]
    built = []
    for number, row in enumerate(rows):
        here = f"{where}[{number}]" if len(rows) > 1 else where
        if not isinstance(row, Mapping):
            raise Unreadable(f"{here}: not an object")
        if missing := [name for name in needed if name not in row]:
            raise Unreadable(f"{here}: without {', '.join(missing)}")
        there = [(name, hint) for name, hint in names if name in row]
        built.append(kind(**{name: _value(row[name], hint, here, name) for name, hint in there}))
    return built


def _value(value: object, hint: object, where: str, name: str) -> Any:
    """The value as its field wants it: lists become tuples, whole numbers may stand for floats."""
    there = f"{where}.{name}"
    if hint is Client:
        return _built(Client, value, there)
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        if inner in (Request, WorkerSample):
            return tuple(_all_built(inner, value, there))
        if isinstance(value, list) and all(_is_a(each, inner) for each in value):
            return tuple(value)
    else:
        options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        if any(_is_a(value, option) for option in options):
            return value
    raise Unreadable(f"{there}: {str(value)[:40]!r} is not {getattr(hint, '__name__', hint)}")


def _is_a(value: object, kind: object) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(kind, type) and isinstance(value, kind)
