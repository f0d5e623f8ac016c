"""Interprets an engine's error response: what failed, and a short line for the log without the
client's text."""

import re
from typing import Any, Final

import orjson

from router.core.values import Failure, FailureKind
from router.core.wire.sse import data_of

__all__ = [
    "ABORT",
    "DROPPED",
    "UNAUTHORIZED",
    "UNAUTHORIZED_STATUSES",
    "engine_error",
    "failed_stream",
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
MAX_BYTES: Final = 1 << 16
"""Longer responses are not parsed: a validation error may quote a whole prompt."""

# vLLM's validation errors quote the invalid value: `'input': {...}`, `input_value='...'`.
_INPUT: Final = re.compile(r"""(['"]input['"]\s*:|input_value\s*=).*""", re.DOTALL)


def engine_error(role: str, status: int, body: bytes) -> str:
    """One line about an engine's error response."""
    return f"the {role} engine answered {status}: {_short(body)}"


def failed_stream(event: bytes) -> Failure:
    """The failure of an engine that reports its own error in a stream."""
    text = _short(data_of(event))
    return Failure(
        FailureKind.BROKEN,
        f"The engine reported an error: {text}",
        f"it reported an error in a stream: {text}",
    )


def _short(body: bytes) -> str:
    text = _INPUT.sub("...", _message(body))
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}..."
    return text or "no message"


def _message(body: bytes) -> str:
    """The text of an error: OpenAI's `error.message`, vLLM's older `message`, or FastAPI's
    `detail`; empty if there is none."""
    try:
        document = orjson.loads(body) if len(body) <= MAX_BYTES else None
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(document, dict):
        return ""
    error: Any = document.get("error")
    inner = error.get("message") if isinstance(error, dict) else error
    for found in (inner, document.get("message"), document.get("detail")):
        if found:
            return str(found)
    return ""
