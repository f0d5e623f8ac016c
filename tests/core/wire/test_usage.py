"""The usage at an answer's end, as engines of several APIs write it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.wire.usage import (
    TAIL_BYTES,
    cached_tokens,
    generated_tokens,
    is_usage_only,
    prompt_tokens,
    with_cached_tokens,
)
from tests.core.fixtures import sample


@pytest.mark.parametrize(
    ("end", "tokens"),
    [
        (b'"usage":{"prompt_tokens":5,"total_tokens":55,"completion_tokens":50}}', 50),
        (b'"usage":{"input_tokens":5,"output_tokens": 7,"total_tokens":12}}', 7),
        (b'{"completion_tokens":3,"completion_tokens_details":{"reasoning_tokens":2}}', 3),
        (b'{"completion_tokens_details":{"reasoning_tokens":2}}', 0),
        (b'{"completion_tokens":null}', 0),
        (b'{"completion_tokens":-4}', 0),
        (b"data: [DONE]\n\n", 0),
        (b"", 0),
        (b'{"completion_tokens":50}' + b" " * TAIL_BYTES, 0),
    ],
)
def test_the_generated_tokens_are_found(end: bytes, tokens: int) -> None:
    assert generated_tokens(end) == tokens


@pytest.mark.parametrize("name", ["comp_stream_usage.sse", "chat_stream_usage.sse"])
def test_a_recorded_stream_has_its_tokens(name: str) -> None:
    assert generated_tokens(sample(name)) > 0


@given(st.binary(max_size=60))
def test_any_bytes_are_read(end: bytes) -> None:
    assert generated_tokens(b'"completion_tokens":' + end) >= 0


def test_an_event_of_usage_alone_has_no_choice() -> None:
    assert is_usage_only(b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n')
    assert not is_usage_only(b'data: {"choices":[{"text":"a"}],"usage":null}\n\n')


@pytest.mark.parametrize(
    ("end", "tokens"),
    [
        (b'"usage":{"prompt_tokens":5,"total_tokens":55,"completion_tokens":50}}', 5),
        (b'"usage":{"input_tokens":7,"output_tokens": 5,"total_tokens":12}}', 7),
        (b'"usage":{"input_tokens":7,"cache_read_input_tokens":90,"output_tokens":5}}', 97),
        (
            b'"usage":{"input_tokens":0,"output_tokens":5,"cache_creation_input_tokens":8,'
            b'"cache_read_input_tokens": 90}}',
            98,
        ),
        (b'"usage":{"input_tokens":7,"cache_read_input_tokens":null,"output_tokens":5}}', 7),
        (b'"cache_read_input_tokens":90,"usage":{"input_tokens":7,"output_tokens":5}}', 7),
        (b'"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":8}}', 9),
        (b'{"prompt_tokens_details":{"cached_tokens":2}}', 0),
        (b'"prompt_tokens":9 "usage":{"completion_tokens":50}}', 0),
        (b"", 0),
    ],
)
def test_the_tokens_of_the_prompt_are_found(end: bytes, tokens: int) -> None:
    assert prompt_tokens(end) == tokens


# The usage of a decode engine that found 97 of 100 tokens cached; "#" is the corrected figure.
CHAT_USAGE = (
    b'"usage":{"prompt_tokens":100,"total_tokens":108,"completion_tokens":8,'
    b'"prompt_tokens_details":{"cached_tokens":#,"multimodal_tokens":{"image":3}}}'
)
RESPONSES_USAGE = (
    b'"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":#,'
    b'"input_tokens_per_turn":[100],"cached_tokens_per_turn":[#]},"output_tokens":8,'
    b'"output_tokens_details":{"reasoning_tokens":0},"total_tokens":108}'
)
TALK = b'{"text":"\\"usage\\":{\\"cached_tokens\\":97}","cached_tokens":97,'


@pytest.mark.parametrize("usage", [CHAT_USAGE, RESPONSES_USAGE, CHAT_USAGE.replace(b":", b": ")])
@pytest.mark.parametrize(("cached", "figure"), [(32, b"32"), (0, b"0"), (None, b"null")])
def test_the_cached_tokens_of_a_usage_are_replaced(
    usage: bytes, cached: int | None, figure: bytes
) -> None:
    data = b"data: " + TALK + usage + b"}\n\n"
    corrected = with_cached_tokens(data.replace(b"#", b"97"), cached)
    assert corrected == data.replace(b"#", figure)
    assert cached_tokens(corrected) == cached


@pytest.mark.parametrize(("cached", "own", "read"), [(32, 60, b"32"), (None, 92, b"null")])
def test_anthropics_usage_sums_to_the_prompt(cached: int | None, own: int, read: bytes) -> None:
    usage = b'"usage":{"input_tokens":%d,"output_tokens":8,"cache_read_input_tokens":%b'
    rest = b',"cache_creation_input_tokens":8}}'
    data = usage % (5, b"87") + rest
    corrected = with_cached_tokens(data, cached)
    assert corrected == usage % (own, read) + rest
    assert prompt_tokens(corrected) == prompt_tokens(data) == 100
    assert cached_tokens(corrected) == cached


@pytest.mark.parametrize("name", ["chat_stream_usage.sse", "comp_stream_usage.sse"])
def test_usage_without_cached_tokens_stays_as_it_is(name: str) -> None:
    assert with_cached_tokens(sample(name), 5) == sample(name)
    assert cached_tokens(sample(name)) is None


@given(st.lists(st.sampled_from([b'"usage":{', b"{", b"}", b'"cached_tokens":1', b",", b"x"])))
def test_any_bytes_are_corrected_once(parts: list[bytes]) -> None:
    once = with_cached_tokens(b"".join(parts), 2)
    assert with_cached_tokens(once, 2) == once
