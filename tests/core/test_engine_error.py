"""What the log shows of an engine's error answer."""

import orjson
import pytest

from router.core.engine_error import MAX_BYTES, MAX_CHARACTERS, engine_error

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
