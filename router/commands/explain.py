"""pd-router explain: what would happen to a request, and why. No network."""

import sys
from pathlib import Path

from router.commands import explain_output
from router.commands.console import make_console
from router.commands.explanation import explain
from router.commands.usage import UsageError
from router.core.errors import BadRequest
from router.core.request_facts import Facts
from router.core.routes import ROUTES
from router.core.values import Route
from router.core.wire import facts as facts_of
from router.settings import Settings, suggestion

__all__ = ["run"]

ROUTE_BY_KEY = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/responses",
}
"""The route that a body is probably meant for, by the key of its prompt. /v1/messages uses
`messages` too, and /v1/embeddings `input`; for these --route is needed."""


def run(settings: Settings, body: str, route: str | None, *, as_json: bool) -> int:
    """Print the explanation. Raises UsageError for an unusable body or route, or without
    a decode engine.

    Without a route, it is inferred from the body.
    """
    facts, key = (_facts(body, route), None) if route is not None else _guessed(body)
    explanation = explain(settings, facts, key)
    if as_json:
        sys.stdout.write(explain_output.as_json(explanation) + "\n")
    else:
        explain_output.show(make_console(), explanation)
    return 0


def _guessed(body: str) -> tuple[Facts, str]:
    """The facts for the inferred route, and the key that it was inferred from."""
    raw = _read(body)
    given = _parsed(body, ROUTES["/v1/chat/completions"], raw).body
    keys = [key for key in ROUTE_BY_KEY if key in given]
    if len(keys) != 1:
        held = " and ".join(keys) or f"none of {', '.join(ROUTE_BY_KEY)}"
        raise UsageError(f"{body}: holds {held}: name its route with --route PATH")
    return _parsed(body, ROUTES[ROUTE_BY_KEY[keys[0]]], raw), keys[0]


def _facts(body: str, path: str) -> Facts:
    if path not in ROUTES:
        near = suggestion(path, ROUTES)
        raise UsageError(f"--route {path}: no such route{near}; {len(ROUTES)} are served")
    return _parsed(body, ROUTES[path], _read(body))


def _parsed(body: str, route: Route, raw: bytes) -> Facts:
    try:
        return facts_of.read(route, b"application/json", raw)
    except BadRequest as error:
        raise UsageError(f"{body}: {error.message}") from None


def _read(body: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if body == "-" else Path(body).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{body}: cannot be read: {reason}") from None
