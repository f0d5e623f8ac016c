"""Which requests can be continued."""

from typing import Any

import pytest

from router.core.continuation.refusal import refusal
from router.core.request_facts import Facts
from tests.core.fixtures import CHAT, COMPLETIONS, MESSAGES, RESPONSES, request

MESSAGE = {"role": "user", "content": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


def chat(**body: Any) -> Facts:
    return request(CHAT, **{"messages": [MESSAGE], "stream": True} | body)


def completion(**body: Any) -> Facts:
    return request(COMPLETIONS, **{"prompt": "hi", "stream": True} | body)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"max_tokens": 5, "min_tokens": 2, "ignore_eos": True, "stop_token_ids": [3]},
        {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.3, "logit_bias": {"1": 2}},
        {"n": 1, "best_of": None, "stop": None, "stop_sequences": [], "echo": False},
        {"stop": "\n"},
        {"stop": ["a"], "include_stop_str_in_output": False, "tools": []},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "response_format": {"type": "text"}},
        {"seed": 5, "temperature": 0},
        {"tools": [{"type": "function"}], "tool_choice": "auto"},
    ],
)
def test_what_depends_on_the_tokens_alone_can_be_continued(body: dict[str, Any]) -> None:
    assert refusal(chat(**body)) is None
    assert refusal(completion(**body)) is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"n": 2}, "several_answers"),
        ({"best_of": 2}, "several_answers"),
        ({"use_beam_search": True}, "beam_search"),
        ({"echo": True}, "echo"),
        ({"return_token_ids": True}, "token_ids"),
        ({"logprobs": True}, "logprobs"),
        ({"presence_penalty": 1.5}, "penalties"),
        ({"frequency_penalty": -0.5}, "penalties"),
        ({"stop": "\n", "include_stop_str_in_output": True}, "stop_strings"),
        ({"stop": "\n", "tools": [{"type": "function"}]}, "stop_strings"),
        ({"stop": "\n", "ignore_eos": True}, "stop_strings"),
        ({"stop": ["a", 1]}, "stop_strings"),
        ({"stop": ["a"] * 17}, "stop_strings"),
        ({"stop": "a" * 257}, "stop_strings"),
        ({"stop": {"a": 1}}, "stop_strings"),
        ({"seed": 5}, "seed"),
        ({"store": True}, "stored"),
        ({"tool_choice": "required"}, "forced_tool"),
        ({"max_tokens": "16"}, "limits"),
        ({"max_completion_tokens": 16.0}, "limits"),
    ],
)
def test_what_depends_on_more_is_refused(body: dict[str, Any], reason: str) -> None:
    assert refusal(chat(**body)) == reason
    assert refusal(completion(**body)) == reason


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": "json"},
        {"structured_outputs": {"regex": "a+"}},
        {"guided_choice": ["a"]},
    ],
)
def test_a_grammar_allows_only_chats_which_may_begin_with_reasoning(body: dict[str, Any]) -> None:
    assert refusal(completion(**body)) == "structured_output"
    assert refusal(chat(**body)) is None


def test_several_prompts_are_refused() -> None:
    assert refusal(completion(prompt=["a", "b"])) == "several_answers"
    assert refusal(completion(prompt=[1, 2, 3])) is None


def test_bodies_that_another_process_parses_are_refused() -> None:
    facts = completion()
    facts.lead = (b"{",)
    assert refusal(facts) == "large_body"


def test_images_are_refused() -> None:
    assert refusal(chat(messages=[MESSAGE | {"content": [IMAGE]}])) == "media"


def test_apis_without_token_ids_are_refused() -> None:
    assert refusal(request(MESSAGES, messages=[MESSAGE], stream=True)) == "api"
    assert refusal(request(RESPONSES, input="hi", stream=True)) == "api"


def test_engines_that_ignore_a_chats_tokens_continue_completions_only() -> None:
    assert refusal(chat(), takes_chats=False) == "old_engine"
    assert refusal(completion(), takes_chats=False) is None
