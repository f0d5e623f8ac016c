"""Errors in the formats of OpenAI's and Anthropic's APIs."""

from typing import Any

import orjson
import pytest

from router.core.errors import (
    BadRequest,
    BodyTooLarge,
    EngineFailed,
    EngineTimedOut,
    InternalError,
    LimitReached,
    MethodNotAllowed,
    NoEngine,
    NotFound,
    Overloaded,
    RouterError,
    Unauthorized,
)
from router.core.values import CHAT, COMPLETIONS, MESSAGES, RESPONSES, RouteKind
from router.core.wire.api_errors import error_body, error_frame
from router.core.wire.engine_error import status_of
from router.core.wire.sse import DONE, EventKind, data_of, event_kind, events

ERROR = EngineTimedOut("The engine sent nothing for 120 s.")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("x"), "invalid_request_error"),
        (Unauthorized("x"), "authentication_error"),
        (NotFound("x"), "not_found_error"),
        (MethodNotAllowed("x"), "invalid_request_error"),  # Anthropic's for any other 4xx
        (BodyTooLarge("x"), "request_too_large"),
        (LimitReached("x"), "rate_limit_error"),
        (InternalError("x"), "api_error"),
        (EngineFailed("x"), "api_error"),
        (NoEngine("x"), "overloaded_error"),
        (Overloaded("x"), "overloaded_error"),
        (EngineTimedOut("x"), "timeout_error"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_messages_error_has_anthropics_shape_and_the_type_of_its_status(
    error: RouterError, kind: str
) -> None:
    told = {"type": "error", "error": {"type": kind, "message": "x"}}
    assert orjson.loads(error_body(error, b"/v1/messages")) == told
    assert orjson.loads(error_body(error, b"/v1/messages", "id")) == {**told, "request_id": "id"}


@pytest.mark.parametrize(
    ("target", "is_anthropic"),
    [
        (b"/v1/messages", True),
        (b"/v1/messages?beta=true", True),
        (b"/v1/messages/count_tokens", True),
        (b"/v1/messages/batches", True),
        (b"/v1/mess%61ges", True),
        (b"http://router:8000/v1/messages?beta=true", True),
        (b"/v1/messagesx", False),
        (b"/v2/v1/messages", False),
        (b"/v1/chat/completions?x=/v1/messages", False),
        (b"http:///x/v1/messages", False),
        (b"", False),
    ],
)
def test_the_requests_path_selects_the_shape(target: bytes, is_anthropic: bool) -> None:
    body = error_body(ERROR, target)
    assert (body == error_body(ERROR, b"/v1/messages")) is is_anthropic
    assert (body == ERROR.body()) is not is_anthropic


@pytest.mark.parametrize("kind", [CHAT, COMPLETIONS])
def test_a_broken_stream_ends_in_an_error_and_the_terminator(kind: RouteKind) -> None:
    assert events(error_frame(ERROR, kind)) == [b"data: %b\n\n" % ERROR.body(), DONE]


def named_error(kind: RouteKind, last: bytes = b"") -> Any:
    """The data of the only event of an error frame, which is named."""
    [event] = events(error_frame(ERROR, kind, last))
    assert event.startswith(b"event: error\n")
    return orjson.loads(data_of(event))


def test_a_broken_messages_stream_ends_in_anthropics_error_event() -> None:
    assert named_error(MESSAGES) == {
        "type": "error",
        "error": {"type": "timeout_error", "message": ERROR.message},
    }


LAST = (
    b'event: x\ndata: {"sequence_number":6,"type":"x"}\n\n'
    b'event: y\ndata: {"delta":"\\"sequence_number\\":99","sequence_number": 7,"type":"y"}\n\n'
)


@pytest.mark.parametrize(("last", "number"), [(b"", 0), (LAST, 8)])
def test_a_broken_responses_stream_ends_in_both_forms_of_openais_error_event(
    last: bytes, number: int
) -> None:
    fields = {"code": "504", "message": ERROR.message, "param": None}
    assert named_error(RESPONSES, last) == {
        "type": "error",
        **fields,
        "sequence_number": number,
        "error": {"type": "EngineTimeoutError", **fields},
    }


@pytest.mark.parametrize("kind", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
def test_an_error_frame_is_itself_read_as_an_error(kind: RouteKind) -> None:
    event = events(error_frame(ERROR, kind))[0]
    assert event_kind(event) is EventKind.ERROR
    assert status_of(event) == 504
