"""Who and what appears in the tests: engines, requests and recorded engine bytes."""

from pathlib import Path
from typing import Any

import orjson

from router.core.candidate import Candidate, LocalLoad
from router.core.errors import NoEngine
from router.core.request_facts import Facts
from router.core.routes import ROUTES
from router.core.values import Endpoint, Failure, FailureKind, Reply, Role
from router.core.wire import facts as reading

P0, P1, P2 = (Endpoint(f"http://p{number}:8000", Role.PREFILL) for number in range(3))
D0, D1, D2, D3, D4 = (Endpoint(f"http://d{number}:8000", Role.DECODE) for number in range(5))

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
TRANSCRIPTIONS = "/v1/audio/transcriptions"

JSON = b"application/json"

REFUSED = Failure(FailureKind.REFUSED, "connection refused")
RESET = Failure(FailureKind.RESET, "connection reset")
BROKEN = Failure(FailureKind.BROKEN, "broken off")
SILENT = Failure(FailureKind.TIMEOUT, "sent nothing for 60 s")


def read(path: str, raw: bytes, content_type: bytes = JSON) -> Facts:
    """The facts of a request as it came over the wire."""
    return reading.read(ROUTES[path], content_type, raw)


def request(path: str = COMPLETIONS, **body: Any) -> Facts:
    """The facts of a request with these members in its body."""
    return read(path, orjson.dumps(body))


def changed(facts: Facts, **changes: Any) -> Facts:
    """A copy of these facts, in which some differ."""
    names = [name for name in dir(facts) if name[0] != "_" and name not in ("path", "sequences")]
    found = {name: getattr(facts, name) for name in names} | changes
    copy = Facts(facts.route, None, False, 0, "", None, b"")
    for name, value in found.items():
        setattr(copy, name, value)
    return copy


def candidate(
    endpoint: Endpoint, in_flight: int = 0, others: int | None = None, ordinal: int = 0
) -> Candidate:
    """An endpoint as a policy sees it."""
    load = LocalLoad()
    load.requests = in_flight
    return Candidate(endpoint, ordinal, load, None if others is None else float(others))


def reply(status: int, body: bytes = b"") -> Reply:
    """An engine's answer."""
    return Reply(status, ((b"content-type", JSON),), body)


def sample(name: str) -> bytes:
    """Bytes recorded from a vLLM 0.32 engine."""
    return (Path(__file__).parent / "samples" / name).read_bytes()


NO_ENGINE = NoEngine("no such engine")
BUSY = reply(503, sample("queue_full.json"))
KEPT = frozenset({429, 500, 502, 503, 504})
"""Statuses of a decode engine that its plan gets before the client does."""
LOAD_FAILED = reply(500, b'{"error":{"message":"Internal server error","code":500}}')
"""What the relay makes of an error event that came first, and of a plain 500 alike."""
