"""What an engine's error answer says: what failed, and for the log a line, short and without its
clients' text."""

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
"""No client can mend that where its own key does not reach the engine."""

DROPPED: Final = Failure(FailureKind.BROKEN, "The engine aborted the request.")
"""As vLLM does, with status 200, when it is shut down or put to sleep; before the first token
another engine may answer."""

ABORT: Final = b'"finish_reason":"abort"'
"""What such an answer that is no stream holds, beside a usage of no tokens."""

MAX_CHARACTERS: Final = 200
MAX_BYTES: Final = 1 << 16
"""Longer answers are not parsed: a validation error may quote a whole prompt."""

# vLLM's validation errors quote what was wrong: `'input': {...}`, `input_value='...'`.
_INPUT: Final = re.compile(r"""(['"]input['"]\s*:|input_value\s*=).*""", re.DOTALL)


def engine_error(role: str, status: int, body: bytes) -> str:
    """One line of an engine's answer with an error status."""
    return f"the {role} engine answered {status}: {_short(body)}"


def failed_stream(event: bytes) -> Failure:
    """The failure of an engine that reports an error of its own in a stream."""
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
    """OpenAI's `error.message`, vLLM's old `message`, or FastAPI's `detail`; else nothing."""
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
