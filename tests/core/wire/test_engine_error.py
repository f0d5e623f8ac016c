"""What the log shows of an engine's error answer."""

import orjson
import pytest

from router.core.values import FailureKind
from router.core.wire.engine_error import MAX_BYTES, MAX_CHARACTERS, engine_error, failed_stream

BODIES = [
    ({"error": {"message": "too long", "code": 400}}, "too long"),
    ({"error": "plain"}, "plain"),
    ({"object": "error", "message": "old form"}, "old form"),
    ({"detail": "Not Found"}, "Not Found"),
    ({"error": {}}, "no message"),
    (["list"], "no message"),
]


@pytest.mark.parametrize(("document", "text"), BODIES)
def test_the_message_is_found_in_every_form(document: object, text: str) -> None:
    said = engine_error("decode", 400, orjson.dumps(document))
    assert said == f"the decode engine answered 400: {text}"


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff"])
def test_what_is_no_json_has_no_message(body: bytes) -> None:
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
        (b'data: {"type":"response.failed"}\n\n', "no message"),
    ],
)
def test_an_error_in_a_stream_is_a_broken_answer_in_the_engines_words(
    event: bytes, said: str
) -> None:
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
def test_what_the_client_wrote_is_left_out(text: str) -> None:
    said = engine_error("decode", 400, orjson.dumps({"detail": text}))
    assert "secret" not in said
    assert "Field required" in said
