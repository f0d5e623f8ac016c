"""Requests whose answer two engines may share, and the body for each."""

from typing import Any

import pytest

from router.core.plans import first_token
from tests.core.fixtures import CHAT, read, request

PROMPT = {"prompt": "Hello"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": ["Hello"]},
        {"prompt": [1, 2, 3]},
        {"prompt": [[1, 2, 3]]},
        {"prompt": ""},
        {"model": "tiny", "user": "me", "priority": 3, "cache_salt": "abc"},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": None, "repetition_penalty": 1.1},
        {"max_tokens": 1},
        {"max_tokens": 4, "min_tokens": 4, "ignore_eos": True},
        {"min_tokens": 16},
        {"stop_token_ids": [7]},
        {"stop_token_ids": []},
        {"stop_token_ids": None},
        {"n": 1, "best_of": 1},
        {"add_special_tokens": False, "skip_special_tokens": True},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"continuous_usage_stats": False}},
        {"stream": True, "stream_options": {}},
        {"stream": None, "stream_options": None},
        {"stream": False},
        {"seed": None},
        {"seed": 1, "temperature": 0},
        {"seed": 1, "temperature": 0.0},
        {"stop": None, "echo": False, "logprobs": None, "suffix": None, "logit_bias": None},
        {"stop": [], "echo": None, "logit_bias": {}, "best_of": None, "response_format": None},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "use_beam_search": False},
        {"presence_penalty": None, "frequency_penalty": None, "truncate_prompt_tokens": None},
        {"prompt_logprobs": None, "structured_outputs": None, "return_token_ids": None},
        {"return_token_ids": False, "include_stop_str_in_output": False},
    ],
)
def test_per_token_options_are_exact(body: dict[str, Any]) -> None:
    assert first_token.is_exact(request(**(PROMPT | body)))


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": []},
        {"prompt": ["Hello", "you"]},
        {"prompt": [[1], [2]]},
        {"prompt": [1, True]},
        {"prompt": [1, -1]},
        {"prompt": [1, 2.0]},
        {"prompt": None},
        {"prompt": {"text": "Hello"}},
        {"max_tokens": None},
        {"max_tokens": 0},
        {"max_tokens": "8"},
        {"max_tokens": 8.0},
        {"max_tokens": True},
        {"min_tokens": None},
        {"min_tokens": -1},
        {"min_tokens": 17},
        {"min_tokens": 5, "max_tokens": 4},
        {"stop_token_ids": ["7"]},
        {"stop_token_ids": 7},
        {"n": 2},
        {"n": None},
        {"add_special_tokens": None},
        {"skip_special_tokens": False},
        {"stream": "true"},
        {"stream": 1},
        {"stream_options": {"include_usage": True}},
        {"stream": False, "stream_options": {}},
        {"stream": True, "stream_options": {"include_usage": 1}},
        {"stream": True, "stream_options": {"new_option": True}},
        {"stream": True, "stream_options": [1]},
        {"seed": 1},
        {"seed": 1, "temperature": 0.5},
        {"seed": 1, "temperature": None},
        {"user": {"name": "me"}},
        {"temperature": [0]},
        {"stop": "\n"},
        {"stop": ["\n"]},
        {"echo": True},
        {"logprobs": 0},
        {"suffix": "end"},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"logit_bias": {"7": -100}},
        {"best_of": 2},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {"json": {}}},
        {"return_token_ids": True},
        {"truncate_prompt_tokens": 5},
        {"include_stop_str_in_output": True},
        {"bad_words": ["no"]},
        {"vllm_xargs": {}},
        {"a_field_of_next_year": None},
    ],
)
def test_stateful_or_unknown_options_are_not_exact(body: dict[str, Any]) -> None:
    assert not first_token.is_exact(request(**(PROMPT | body)))


def test_a_prompt_is_needed() -> None:
    assert not first_token.is_exact(request(model="tiny", prompt_embeds="AAAA"))


def test_other_apis_are_not_shared() -> None:
    assert not first_token.is_exact(read(CHAT, b'{"prompt":"Hello","messages":[]}'))


@pytest.mark.parametrize(
    ("asked", "prefill", "decode"),
    [
        (
            {"max_tokens": 9, "stream": True, "stream_options": {"include_usage": True}},
            {"max_tokens": 1, "stream": False},
            {"max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}},
        ),
        ({}, {"max_tokens": 1, "stream": False}, {"max_tokens": 15}),
        (
            {"min_tokens": 0},
            {"max_tokens": 1, "stream": False},
            {"max_tokens": 15, "min_tokens": 0},
        ),
        (
            {"min_tokens": 1},
            {"max_tokens": 1, "stream": False, "min_tokens": 1},
            {"max_tokens": 15, "min_tokens": 0},
        ),
        (
            {"min_tokens": 5},
            {"max_tokens": 1, "stream": False, "min_tokens": 1},
            {"max_tokens": 15, "min_tokens": 4},
        ),
        (
            {"temperature": 0.5, "stop_token_ids": [3], "add_special_tokens": False},
            {"temperature": 0.5, "stop_token_ids": [3], "max_tokens": 1, "stream": False},
            {"temperature": 0.5, "stop_token_ids": [3], "max_tokens": 15},
        ),
    ],
)
def test_the_budget_is_divided_and_the_sampling_is_not(
    asked: dict[str, Any], prefill: dict[str, Any], decode: dict[str, Any]
) -> None:
    body, tokens = PROMPT | asked, [1, 2]
    assert first_token.prefill_body(body, tokens) == {"prompt": [1, 2]} | prefill
    assert first_token.decode_body(body, tokens, 9) == {"prompt": [1, 2, 9]} | decode
    assert tokens == [1, 2]


def test_a_tokenizer_request_matches_the_engines_prompt() -> None:
    body = {"model": "lora", "prompt": ["Hello"], "add_special_tokens": False, "max_tokens": 3}
    expected = b'{"model":"lora","add_special_tokens":false,"prompt":"Hello"}'
    assert first_token.tokenize_body(body) == expected
    assert first_token.tokenize_body({"prompt": "Hi"}) == b'{"prompt":"Hi"}'


def test_own_token_ids_need_no_tokenizer() -> None:
    assert first_token.own_tokens({"prompt": [[1, 2]]}) == [1, 2]
    assert first_token.own_tokens({"prompt": "Hello"}) is None
