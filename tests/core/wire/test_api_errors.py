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
from router.core.values import CHAT, COMPLETIONS, MESSAGES, RESPONSES, FailureKind, RouteKind
from router.core.wire.api_errors import (
    MAX_BYTES,
    MAX_CHARACTERS,
    engine_error,
    engine_error_event,
    error_body,
    error_event,
    failed_stream,
    status_of,
)
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
def test_messages_error_has_anthropics_shape_and_type(error: RouterError, kind: str) -> None:
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
    assert events(error_event(ERROR, kind)) == [b"data: %b\n\n" % ERROR.body(), DONE]


def named_error(kind: RouteKind, last: bytes = b"") -> Any:
    """The data of the only event of an error event, which is named."""
    [event] = events(error_event(ERROR, kind, last))
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
def test_broken_responses_stream_ends_in_both_error_forms(last: bytes, number: int) -> None:
    fields = {"code": "504", "message": ERROR.message, "param": None}
    assert named_error(RESPONSES, last) == {
        "type": "error",
        **fields,
        "sequence_number": number,
        "error": {"type": "EngineTimeoutError", **fields},
    }


@pytest.mark.parametrize("kind", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
def test_an_error_event_is_itself_read_as_an_error(kind: RouteKind) -> None:
    event = events(error_event(ERROR, kind))[0]
    assert event_kind(event) is EventKind.ERROR
    assert status_of(event) == 504


def failed_response(**error: str) -> dict[str, Any]:
    """The last event of a response that fails, as OpenAI's reference of streamed events has it."""
    response = {"id": "resp_1", "status": "failed", "error": error or None}
    return {"type": "response.failed", "sequence_number": 9, "response": response}


BODIES = [
    ({"error": {"message": "too long", "code": 400}}, "too long"),
    ({"error": "plain"}, "plain"),
    ({"object": "error", "message": "old form"}, "old form"),
    ({"detail": "Not Found"}, "Not Found"),
    ({"type": "error", "error": {"type": "api_error", "message": "Anthropic's"}}, "Anthropic's"),
    ({"type": "error", "code": "server_error", "message": "of responses"}, "of responses"),
    (failed_response(code="server_error", message="it died"), "it died"),
    (failed_response(), "no message"),
    ({"error": {}}, "no message"),
    (["list"], "no message"),
]


def nested(**error: object) -> dict[str, object]:
    """The error of a chat, a completion or a message."""
    return {"error": error}


@pytest.mark.parametrize(
    ("document", "status"),
    [
        *[(nested(code=404), 404), (nested(code=200), 500), (nested(code="404"), 404)],
        *[(nested(), 500), ({"error": "x"}, 500), (nested(type=400), 500), ([], 500)],
        (nested(type="invalid_request_error", message="max_tokens"), 400),
        (nested(type="invalid_request_error", code=422), 422),
        (nested(type="invalid_request_error", code="context_length_exceeded"), 400),
        (nested(type="timeout_error"), 504),
        *[(nested(type="overloaded_error"), 503), (nested(type="api_error"), 500)],
        ({"type": "error", "code": "rate_limit_exceeded", "message": "x"}, 429),
        ({"type": "error", "code": None, "message": "x"}, 500),
        (failed_response(code="invalid_prompt"), 400),
        *[(failed_response(code="server_error"), 500), (failed_response(), 500)],
    ],
)
def test_an_error_events_status_is_its_code_its_name_or_500(document: object, status: int) -> None:
    assert status_of(b"event: x\ndata: %b\n\n" % orjson.dumps(document)) == status


def test_an_event_without_json_counts_as_500() -> None:
    assert status_of(b"data: no\n\n") == 500


@pytest.mark.parametrize(("document", "text"), BODIES)
def test_the_message_is_found_in_every_form(document: object, text: str) -> None:
    said = engine_error("decode", 400, orjson.dumps(document))
    assert said == f"the decode engine answered 400: {text}"


VLLM = {"message": "too long", "type": "BadRequestError", "param": "prompt", "code": 400}
NAMELESS = {"message": "no", "type": "EngineError", "param": None, "code": 400}
STATUS_ONLY = {**NAMELESS, "message": "The engine answered with status 400."}


@pytest.mark.parametrize(
    ("body", "kind", "document"),
    [
        ({"error": VLLM}, CHAT, {"error": VLLM}),
        ({"object": "error", **VLLM}, CHAT, {"error": VLLM}),
        ({"detail": "no"}, CHAT, {"error": NAMELESS}),
        ({"error": "no"}, CHAT, {"error": NAMELESS}),
        (nested(message="no", code="own"), CHAT, {"error": {**NAMELESS, "code": "own"}}),
        ([], CHAT, {"error": STATUS_ONLY}),
        (
            {"error": VLLM},
            MESSAGES,
            {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}},
        ),
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "no"}},
            MESSAGES,
            {"type": "error", "error": {"type": "overloaded_error", "message": "no"}},
        ),
        (
            {"error": VLLM},
            RESPONSES,
            {
                "type": "error",
                "sequence_number": 0,
                "code": "400",
                "message": "too long",
                "param": "prompt",
                "error": {**VLLM, "code": "400"},
            },
        ),
    ],
)
def test_an_error_response_can_be_the_end_of_a_stream(
    body: object, kind: RouteKind, document: object
) -> None:
    frame = engine_error_event(400, orjson.dumps(body, option=orjson.OPT_INDENT_2), kind)
    event, *end = events(frame)
    assert orjson.loads(data_of(event)) == document
    assert event.startswith(b"data: " if kind is CHAT else b"event: error\ndata: ")
    assert end == ([DONE] if kind is CHAT else [])


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff"])
def test_invalid_json_has_no_message(body: bytes) -> None:
    assert engine_error("prefill", 404, body) == "the prefill engine answered 404: no message"


def test_a_long_message_is_cut() -> None:
    said = engine_error("decode", 400, orjson.dumps({"detail": "x" * 1000}))
    assert said.endswith(f": {'x' * MAX_CHARACTERS}...")


def test_a_huge_answer_is_not_parsed() -> None:
    body = orjson.dumps({"detail": "x" * MAX_BYTES})
    assert engine_error("decode", 400, body).endswith(": no message")


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (b'data: {"error":{"message":"it died","code":500}}\n\n', "it died"),
        (
            b'event: response.failed\ndata: {"type":"response.failed","response":'
            b'{"error":{"code":"server_error","message":"it died"}}}\n\n',
            "it died",
        ),
        (b'data: {"type":"response.failed"}\n\n', "no message"),
    ],
)
def test_error_in_a_stream_breaks_in_the_engines_words(event: bytes, said: str) -> None:
    failure = failed_stream(event)
    assert failure.kind is FailureKind.BROKEN
    assert failure.message == f"The engine reported an error: {said}"
    assert failure.cause == f"it reported an error in a stream: {said}"


@pytest.mark.parametrize(
    "text",
    [
        "[{'type': 'missing', 'msg': 'Field required', 'input': {'prompt': 'my secret'}}]",
        '[{"msg": "Field required", "input": "my secret"}]',
        "1 validation error: Field required [input_value='my secret']",
    ],
)
def test_client_text_is_omitted(text: str) -> None:
    said = engine_error("decode", 400, orjson.dumps({"detail": text}))
    assert "secret" not in said
    assert "Field required" in said
