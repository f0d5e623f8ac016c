"""A log of the requests that an engine received, for tests, with bounds."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

_BYTES = 64 << 20
"""Most bytes of all kept bodies; the oldest requests are dropped first."""
_IDS = 100_000
_PATHS = 1_000
"""Most distinct paths that are counted, since clients choose them."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as received. Header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        """The parsed body; None if it is not JSON."""
        try:
            return orjson.loads(self.raw)
        except orjson.JSONDecodeError:
            return None

    def as_json(self) -> dict[str, Any]:
        """Includes `raw`, because parsing may hide how a router changed a number."""
        return {
            "method": self.method,
            "path": self.path,
            "headers": dict(self.headers),
            "body": self.body,
            "raw": self.raw.decode("utf-8", "replace"),
        }


class Records:
    """The last requests, and the number of requests per path."""

    def __init__(self, limit: int) -> None:
        self.requests: deque[Request] = deque()
        self.paths: dict[str, int] = {}
        self.duplicate_ids = 0
        self._limit = limit
        self._bytes = 0
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, request: Request) -> None:
        """Count a request, and keep it unless it is a probe or for the simulator's own routes."""
        name = f"{request.method} {request.path}"
        if name in self.paths or len(self.paths) < _PATHS:
            self.paths[name] = self.paths.get(name, 0) + 1
        if request.path.startswith("/sim/") or request.path in _PROBES:
            return
        self._note_id(request)
        self.requests.append(request)
        self._bytes += len(request.raw)
        while self.requests and (len(self.requests) > self._limit or self._bytes > _BYTES):
            self._bytes -= len(self.requests.popleft().raw)

    def _note_id(self, request: Request) -> None:
        """Count repeated request ids, which break vLLM below 0.14."""
        given = request.headers.get("x-request-id")
        if given is None or request.method != "POST":
            return
        self.duplicate_ids += given in self._ids
        self._ids[given] = None
        if len(self._ids) > _IDS:
            self._ids.popitem(last=False)

    def clear(self) -> None:
        self.requests.clear()
        self._bytes = 0


_PROBES = frozenset({"/health", "/ping", "/metrics", "/metrics/", "/load", "/version"})
