"""What sibling replicas of the router tell each other of their load, several times a second.

Each tells its own requests on each engine, never what it has heard: the sums of all reports are
the sum of all replicas. A sibling that is not heard any more is forgotten; its requests then show
in the engines' gauges only, as any other client's.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from router.core.values import Endpoint, Load, Role

__all__ = [
    "MAX_REPORT_BYTES",
    "MAX_SIBLINGS",
    "SAME_SECONDS",
    "STALE_SECONDS",
    "TELL_SECONDS",
    "PeerBoard",
    "PeerLoad",
    "PeerReport",
    "decode",
    "encode",
]

TELL_SECONDS: Final = 0.1
"""Between two reports to a sibling, while requests come and go. Between two reports replicas take
the same engine for the emptiest: with 0.25 s three replicas spread requests no better than with
the engines' gauges alone, which are read once a second."""

SAME_SECONDS: Final = 0.5
"""Between two reports that say the same: a sign of life."""

STALE_SECONDS: Final = 2.0
"""A sibling of which nothing is heard for so long is forgotten: four signs of life were lost."""

MAX_SIBLINGS: Final = 64
"""Reports that are kept: whoever has the key can make the router hold so many."""

MAX_ENGINES: Final = 1024
"""In one report; see `Roster`."""

MAX_REPORT_BYTES: Final = 60_000
"""Of a report that is sent. One engine takes some 50 bytes; the least busy ones are left out."""

MAX_NAME: Final = 64
"""Characters of a replica's name."""

MAX_COUNT: Final = 1 << 48
"""Of requests and tokens: what is more is no count."""


@dataclass(frozen=True, slots=True)
class PeerReport:
    """One replica's own requests."""

    replica: str
    """A random name that it took when it started."""
    number: int
    """Grows from each report of a replica to its next."""
    loads: dict[Endpoint, tuple[int, int]]
    """Requests, and prompt tokens still to be computed, on each engine that has any."""


def encode(report: PeerReport) -> bytes:
    """The inverse of `decode`; not more than MAX_REPORT_BYTES."""
    busiest = sorted(report.loads.items(), key=lambda item: item[1], reverse=True)
    engines: dict[str, list[int]] = {}
    size = 200
    for endpoint, load in busiest[:MAX_ENGINES]:
        name = f"{endpoint.role} {endpoint.url}"
        size += len(name) + 48
        if size > MAX_REPORT_BYTES:
            break
        engines[name] = list(load)
    return orjson.dumps({"replica": report.replica, "number": report.number, "engines": engines})


def decode(data: bytes) -> PeerReport:
    """Read a sibling's report. Raises ValueError, which says what is wrong with it."""
    try:
        told: Any = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(told, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - of the bytes, not of a caller
    replica, engines = told.get("replica"), told.get("engines")
    if not isinstance(replica, str) or not 0 < len(replica) <= MAX_NAME:
        raise ValueError(f"replica: must be a text of up to {MAX_NAME} characters")
    if not isinstance(engines, dict) or len(engines) > MAX_ENGINES:
        raise ValueError(f"engines: must be an object with up to {MAX_ENGINES} members")
    loads = {_endpoint(name): _load(load) for name, load in engines.items()}
    return PeerReport(replica, _count(told.get("number")), loads)


def _endpoint(name: str) -> Endpoint:
    role, _, url = name.partition(" ")
    if role not in ("prefill", "decode"):
        raise ValueError("engines: names must be like `decode http://10.0.0.1:8000`")
    return Endpoint(url, Role(role))


def _load(value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("engines: each must have a list of requests and pending tokens")
    return _count(value[0]), _count(value[1])


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MAX_COUNT:
        raise ValueError("counts must be whole numbers, not negative")
    return value


class _Sum:
    """What all siblings have on one engine."""

    __slots__ = ("pending", "requests")

    def __init__(self) -> None:
        self.requests = self.pending = 0


class PeerLoad:
    """A `Load` with the siblings' requests; this router adds to its own."""

    __slots__ = ("_siblings", "own")

    def __init__(self, own: Load, siblings: _Sum) -> None:
        self.own = own
        self._siblings = siblings

    @property
    def requests(self) -> int:
        """Requests there now."""
        return self.own.requests + self._siblings.requests

    @property
    def tokens(self) -> int:
        """The estimated input tokens of this router's own."""
        return self.own.tokens

    @property
    def pending(self) -> int:
        """Tokens that the engine still has to compute."""
        return self.own.pending + self._siblings.pending

    def add(self, requests: int, tokens: int, pending: int) -> None:
        """Change this router's part."""
        self.own.add(requests, tokens, pending)


@dataclass(slots=True)
class _Sibling:
    report: PeerReport
    heard_at: float


class PeerBoard:
    """What siblings have told. `replica` is this router's own name; times are monotonic seconds."""

    def __init__(self, replica: str) -> None:
        self.replica = replica
        self._siblings: dict[str, _Sibling] = {}
        self._sums: dict[Endpoint, _Sum] = {}

    def load(self, own: Load, endpoint: Endpoint) -> PeerLoad:
        """An engine's load with what siblings have there, live."""
        total = self._sums.get(endpoint)
        if total is None:
            total = self._sums[endpoint] = _Sum()
            self._add_up([endpoint])
        return PeerLoad(own, total)

    def requests(self, endpoint: Endpoint) -> int:
        """The siblings' requests on an engine."""
        total = self._sums.get(endpoint)
        return 0 if total is None else total.requests

    def drop(self, endpoint: Endpoint) -> None:
        """The engine has left the fleet."""
        self._sums.pop(endpoint, None)

    def hear(self, report: PeerReport, now: float) -> bool:
        """Take a report; returns whether it is another replica's."""
        if report.replica == self.replica:
            return False
        known = self._siblings.get(report.replica)
        if known is not None:
            if report.number <= known.report.number:  # it was overtaken on its way
                return True
            before, known.report, known.heard_at = known.report, report, now
            self._add_up(before.loads.keys() | report.loads.keys())
        elif len(self._siblings) < MAX_SIBLINGS:
            self._siblings[report.replica] = _Sibling(report, now)
            self._add_up(report.loads)
        return True

    def tick(self, now: float) -> list[str]:
        """Forget siblings of which nothing is heard; returns their names."""
        oldest = now - STALE_SECONDS
        gone = [name for name, each in self._siblings.items() if each.heard_at < oldest]
        for name in gone:
            self._add_up(self._siblings.pop(name).report.loads)
        return gone

    def siblings(self, now: float) -> dict[str, tuple[float, int]]:
        """Each sibling's age of report in seconds, and its requests on all engines."""
        return {
            name: (now - each.heard_at, sum(load[0] for load in each.report.loads.values()))
            for name, each in self._siblings.items()
        }

    def _add_up(self, endpoints: Iterable[Endpoint]) -> None:
        nothing = (0, 0)
        for endpoint in endpoints:
            total = self._sums.get(endpoint)
            if total is not None:
                told = [s.report.loads.get(endpoint, nothing) for s in self._siblings.values()]
                total.requests = sum(requests for requests, _ in told)
                total.pending = sum(pending for _, pending in told)
