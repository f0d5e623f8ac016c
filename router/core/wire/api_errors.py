"""Errors in the formats of the APIs: the router's own are written, engines' are read.

/v1/messages and the routes below it have Anthropic's format
(https://platform.claude.com/docs/en/api/errors), all others OpenAI's, which is `RouterError.body`.
The error event of /v1/responses has OpenAI's two forms in one. The documented one has its fields at
the top (https://platform.openai.com/docs/api-reference/responses-streaming/error), the one that
OpenAI sends has them in `error`, which is where its SDKs look before they raise.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import orjson

from router.core.errors import RouterError
from router.core.values import MESSAGES, RESPONSES, Failure, FailureKind, RouteKind
from router.core.wire.jsonspan import engine_json
from router.core.wire.sse import DONE, data_of

__all__ = [
    "ABORT",
    "ANTHROPIC_TYPES",
    "DROPPED",
    "UNAUTHORIZED",
    "UNAUTHORIZED_STATUSES",
    "engine_error",
    "engine_error_event",
    "error_body",
    "error_event",
    "failed_stream",
    "frame",
    "is_anthropic",
    "short_message",
    "status_of",
]

ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Error types by HTTP status. Anthropic's own status for `overloaded_error` is 529, which HTTP does
not define."""

_ANTHROPIC: Final = re.compile(rb"(?:https?://[^/?]*)?/v1/messages(?:[/?]|\Z)")

_SEQUENCE_NUMBER: Final = re.compile(rb'"sequence_number":\s*(\d{1,18})')
"""Found in an event of /v1/responses. In generated text, quotes are escaped."""


def is_anthropic(target: bytes) -> bool:
    """Whether errors of this request target, as sent by the client, have Anthropic's format."""
    return _ANTHROPIC.match(unquote_to_bytes(target)) is not None


def error_body(error: RouterError, target: bytes, request_id: str | None = None) -> bytes:
    """The JSON body of an error response to a request for `target`."""
    if is_anthropic(target):
        return _anthropic(error.status, error.fields(), request_id)
    return error.body()


def error_event(error: RouterError, kind: RouteKind, last: bytes = b"") -> bytes:
    """The end of a stream that the router could not complete.

    `last`: the events that were sent last, whose `sequence_number` that of /v1/responses continues.
    """
    return frame(error.status, error.fields(), kind, last)


def frame(status: int, fields: Mapping[str, Any], kind: RouteKind, last: bytes = b"") -> bytes:
    """The end of a failed stream: the error as an event and, where the API has it, `[DONE]`.

    `fields`: the error in OpenAI's format. `status`: what its response would have had.
    """
    if kind is MESSAGES:
        return b"event: error\ndata: %b\n\n" % _anthropic(status, fields)
    if kind is RESPONSES:
        return b"event: error\ndata: %b\n\n" % _responses_event(fields, last)
    return b"data: %b\n\n%b" % (orjson.dumps({"error": fields}), DONE)


def _anthropic(status: int, fields: Mapping[str, Any], request_id: str | None = None) -> bytes:
    kind = fields["type"]
    if kind not in ANTHROPIC_TYPES.values():  # an engine's error may have one of these
        # Statuses without a type of their own have that of 400 or 500.
        kind = ANTHROPIC_TYPES.get(status) or ANTHROPIC_TYPES[400 if status < 500 else 500]
    error = {"type": kind, "message": fields["message"]}
    document: dict[str, Any] = {"type": "error", "error": error}
    if request_id is not None:
        document["request_id"] = request_id
    return orjson.dumps(document)


def _responses_event(fields: Mapping[str, Any], last: bytes) -> bytes:
    numbers = _SEQUENCE_NUMBER.findall(last)
    number = int(numbers[-1]) + 1 if numbers else 0
    # Clients that validate events take a code for a string.
    shown = {"code": str(fields["code"]), "message": fields["message"], "param": fields["param"]}
    document = {"type": "error", **shown, "sequence_number": number}
    return orjson.dumps({**document, "error": {"type": fields["type"], **shown}})


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


def engine_error_event(status: int, body: bytes, kind: RouteKind) -> bytes:
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
