"""Prompts: the chat template, and audio forms."""

import pytest

from router.core.wire.media import IMAGE_TOKENS
from router.simulator.api.prompts import render
from router.simulator.model.language import decode, encode

USER = {"role": "user", "content": "Which way?"}


def test_a_chat_continues_where_its_last_turn_ended():
    first = render([USER])
    answer = encode(" kot mal bir")
    turns = [USER, {"role": "assistant", "content": decode(answer)}, USER]
    assert render(turns)[: len(first) + len(answer)] == first + answer


@pytest.mark.parametrize(
    "other",
    [
        [],
        [USER, USER],
        [{**USER, "role": "system"}],
        [{**USER, "content": "Which way"}],
        [{**USER, "name": "me"}],
        [{**USER, "tool_calls": [{"id": "1"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}],
    ],
)
def test_whatever_differs_in_the_messages_differs_in_the_prompt(other):
    assert render(other) != render([USER])


def test_an_image_is_as_many_tokens_as_the_router_estimates():
    def shown(url: str) -> list[int]:
        content = [{"type": "image_url", "image_url": {"url": url}}]
        return render([{"role": "user", "content": content}])

    assert len(shown("https://a")) - len(render([{"role": "user", "content": ""}])) == IMAGE_TOKENS
    assert shown("https://a") != shown("https://b")


def test_tools_and_template_arguments_are_in_the_prompt():
    prompts = [
        render([USER]),
        render([USER], [{"name": "f"}]),
        render([USER], None, {"thinking": False}),
        render([USER], generate=False),
    ]
    assert len({tuple(prompt) for prompt in prompts}) == 4


def test_text_parts_are_the_same_as_a_string():
    parts = [{"type": "text", "text": "Which "}, {"type": "text", "text": "way?"}]
    assert render([{**USER, "content": parts}]) == render([USER])
