"""The usage at an answer's end, as engines of several APIs write it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.wire.usage import TAIL_BYTES, generated_tokens, is_usage_only, prompt_tokens
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
def test_a_recorded_stream_says_its_tokens(name: str) -> None:
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
