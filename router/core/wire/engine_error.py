"""Interprets an engine's error, in a response or in an event of a stream: its status, and a short
line for the log without the client's text."""

import re
from typing import Any, Final

from router.core.values import Failure, FailureKind, RouteKind
from router.core.wire.api_errors import ANTHROPIC_TYPES, frame
from router.core.wire.jsonspan import engine_json
from router.core.wire.sse import data_of

__all__ = [
    "ABORT",
    "DROPPED",
    "UNAUTHORIZED",
    "UNAUTHORIZED_STATUSES",
    "engine_error",
    "engine_error_frame",
    "failed_stream",
    "short_message",
    "status_of",
]

UNAUTHORIZED_STATUSES: Final = (401, 403)
UNAUTHORIZED: Final = Failure(
    FailureKind.UNAUTHORIZED, "The engine did not accept the router's API key."
)
"""The client cannot fix this, since its own key is not sent to the engine."""

DROPPED: Final = Failure(FailureKind.BROKEN, "The engine aborted the request.")
"""vLLM does this, with status 200, when it is shut down or put to sleep. Before the first token
another engine can answer."""

ABORT: Final = b'"finish_reason":"abort"'
"""Found in a unary response of an aborted request, whose usage has no completion tokens."""

MAX_CHARACTERS: Final = 200
MAX_BYTES: Final = 1 << 20
"""Longer errors are not parsed, which takes 1 ms here: a validation error may quote a whole prompt.
`response.failed` repeats the request's instructions and tools."""

# vLLM's validation errors quote the invalid value: `'input': {...}`, `input_value='...'`.
_INPUT: Final = re.compile(r"""(['"]input['"]\s*:|input_value\s*=).*""", re.DOTALL)


def engine_error(role: str, status: int, body: bytes) -> str:
    """One line about an engine's error response."""
    return f"the {role} engine answered {status}: {short_message(body)}"


def engine_error_frame(status: int, body: bytes, kind: RouteKind) -> bytes:
    """The end of a stream for which an engine has answered with this error response."""
    message = _message(body) or f"The engine answered with status {status}."
    fields = {"message": message, "type": "EngineError", "param": None, "code": status}
    error = _error_in(body)
    if isinstance(error, dict):
        fields |= {name: error[name] for name in ("type", "param", "code") if error.get(name)}
    return frame(status, fields, kind)


def failed_stream(event: bytes) -> Failure:
    """The failure of an engine that reports its own error in a stream."""
    text = short_message(data_of(event))
    return Failure(
        FailureKind.BROKEN,
        f"The engine reported an error: {text}",
        f"it reported an error in a stream: {text}",
    )


STATUSES: Final = {
    **{kind: status for status, kind in ANTHROPIC_TYPES.items()},
    # Codes of /v1/responses.
    "invalid_prompt": 400,
    "rate_limit_exceeded": 429,
}
"""HTTP status by name, for errors whose code is no status."""


def status_of(event: bytes) -> int:
    """The HTTP status of an error event: its `code` if valid, or that of its name, or 500."""
    error = _error_in(data_of(event))
    if not isinstance(error, dict):
        return 500
    code = error.get("code")
    if isinstance(code, str) and len(code) == 3 and code.isdecimal():  # another router's
        code = int(code)
    if isinstance(code, int) and 400 <= code <= 599:
        return code
    names = [name for name in (code, error.get("type")) if isinstance(name, str)]
    return next((STATUSES[name] for name in names if name in STATUSES), 500)


def short_message(body: bytes) -> str:
    """The message of an error response, cut and without the client's text."""
    text = _INPUT.sub("...", _message(body))
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}..."
    return text or "no message"


def _message(body: bytes) -> str:
    """The text of an error; empty if there is none."""
    error = _error_in(body) if len(body) <= MAX_BYTES else None
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail")
    return str(error) if error else ""


def _error_in(body: bytes) -> Any:
    """The error that a body or the data of an event describes; None if it is no JSON object.

    `error` (OpenAI, Anthropic, vLLM), that of the `response` in `response.failed`, or the document
    itself: the event `error` of /v1/responses, vLLM's older errors, FastAPI's `detail`.
    """
    try:
        document = engine_json(body)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    response = document.get("response")
    nested = response.get("error") if isinstance(response, dict) else None
    return document.get("error") or nested or document
