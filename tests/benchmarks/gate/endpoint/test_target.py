import orjson
import pytest

from benchmarks.gate.endpoint.target import (
    Address,
    InvalidTarget,
    address,
    body,
    check_model,
    head,
    target,
)
from benchmarks.gate.profiles import PROFILES


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://r:8000", Address("r", 8000, False, "r:8000", "")),
        ("http://r", Address("r", 80, False, "r", "")),
        ("https://r/", Address("r", 443, True, "r", "")),
        ("http://r:1/v1/", Address("r", 1, False, "r:1", "")),
        ("https://r/a/v1", Address("r", 443, True, "r", "/a")),
        ("http://[::1]:9", Address("::1", 9, False, "[::1]:9", "")),
    ],
)
def test_a_base_url_is_taken_apart(url: str, found: Address) -> None:
    assert address(url) == found


@pytest.mark.parametrize(
    "url",
    [
        "r:8000",
        "ftp://r",
        "http://",
        "http://r:x",
        "http://u:secret@r",
        "http://r?a=1",
        "http://r/ä",
    ],
)
def test_invalid_base_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidTarget) as refused:
        address(url)
    assert "secret" not in str(refused.value)


def test_models_have_the_validators_names() -> None:
    assert check_model("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"
    for wrong in ("", "/m", "a b", 'a"b', "a\n"):
        with pytest.raises(InvalidTarget):
            check_model(wrong)


def test_the_body_is_the_validators() -> None:
    assert body("M", "t", PROFILES["knee"]) == (
        b'{"messages":[{"role":"user","content":"t"}],"model":"M","stream":true,'
        b'"max_completion_tokens":128,"temperature":0,"stream_options":{"include_usage":true}}'
    )


def test_the_head_has_room_for_ids_and_length() -> None:
    begin = head(address("http://r:8000/a%20b"), "pd-bench/1", "k%y")
    lines = (begin % (b"id", b"id", b"id", 7)).split(b"\r\n")
    assert lines == [
        b"POST /a%20b/v1/chat/completions HTTP/1.1",
        b"Host: r:8000",
        b"User-Agent: pd-bench/1",
        b"Accept: text/event-stream",
        b"Content-Type: application/json",
        b"Authorization: Bearer k%y",
        b"X-Request-ID: id",
        b"X-Correlation-ID: id",
        b"X-Session-Affinity: id",
        b"Content-Length: 7",
        b"",
        b"",
    ]


def test_a_target_has_a_body_for_each_text() -> None:
    found = target(address("https://r"), "M", ["a", "b"], PROFILES["smoke"], user_agent="u")
    assert [orjson.loads(each)["messages"][0]["content"] for each in found.bodies] == ["a", "b"]
    assert (found.host, found.port, found.tls, found.verify, found.timeout) == (
        "r",
        443,
        True,
        True,
        120.0,
    )
    assert b"Authorization" not in found.head
