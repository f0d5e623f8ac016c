"""The router's errors in the format of the API that the client has called.

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
from router.core.values import MESSAGES, RESPONSES, RouteKind
from router.core.wire.sse import DONE

__all__ = ["ANTHROPIC_TYPES", "error_body", "error_frame", "frame", "is_anthropic"]

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


def error_frame(error: RouterError, kind: RouteKind, last: bytes = b"") -> bytes:
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
