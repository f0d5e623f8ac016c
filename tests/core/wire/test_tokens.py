"""Prompt sizes: the rule for each shape of prompt, and that malformed ones count nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.values import RouteKind
from router.core.wire.media import IMAGE_TOKENS, MAX_MEDIA_TOKENS
from router.core.wire.tokens import estimate, prompts, sole_ids

TEXT = "characters / 4"
IDS = "token ids"
BOTH = "characters / 4 + token ids"
NONE = "no text"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", (0, TEXT)),
        ("abc", (0, TEXT)),
        ("abcd", (1, TEXT)),
        ("abcdefg", (1, TEXT)),
        ("é" * 8, (2, TEXT)),
        ([1, 2, 3], (3, IDS)),
        ([[1, 2, 3]], (3, IDS)),
        (["abcdefgh"], (2, TEXT)),
        (["abcdefgh", "abcd"], (3, TEXT)),
        ([[1, 2], [3]], (3, IDS)),
        (["abcd", [1, 2]], (3, BOTH)),
        ([], (0, IDS)),
        (None, (0, NONE)),
        (7, (0, NONE)),
        ({"a": 1}, (0, NONE)),
        ([None], (0, NONE)),
        ([{"a": 1}, "abcd"], (1, TEXT)),
    ],
)
def test_a_completion_counts_characters_or_ids(prompt: object, expected: object) -> None:
    assert estimate(RouteKind.COMPLETIONS, {"prompt": prompt})[:2] == expected


def test_several_prompts_are_rounded_one_by_one() -> None:
    assert estimate(RouteKind.COMPLETIONS, {"prompt": ["abc", "abc"]})[0] == 0


def test_a_completion_without_a_prompt_has_no_tokens() -> None:
    assert estimate(RouteKind.COMPLETIONS, {})[:2] == (0, NONE)


def user(content: object) -> dict[str, object]:
    """A message."""
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user("abcdefgh")], 2),
        ([user("abc"), user("abcde")], 2),
        ([user([{"type": "text", "text": "abcdefgh"}])], 2),
        ([user([{"type": "text", "text": "abcd"}, {"type": "text", "text": "abcd"}])], 2),
        ([user([{"type": "refusal", "text": "abcdefgh"}])], 0),
        ([user(["abcd", {"type": "text", "text": "abcd"}, "abcdefgh"])], 4),
        ([user([{"type": "text", "text": 7}, {"type": "text"}, 7, None])], 0),
        ([user([{"type": [], "text": "abcd"}, {"type": {}, "text": "abcd"}])], 0),
        ([user(None), "abcd", None, {}], 0),
        (user("abcd"), 0),
        ("abcd", 0),
        (None, 0),
    ],
)
def test_a_chat_counts_the_text_of_its_messages(messages: object, expected: int) -> None:
    rule = TEXT if expected else NONE
    assert estimate(RouteKind.CHAT, {"messages": messages})[:2] == (expected, rule)


@pytest.mark.parametrize("system", ["abcd", [{"type": "text", "text": "abcd"}]])
def test_messages_count_the_system_prompt_too(system: object) -> None:
    body = {"system": system, "messages": [user("abcd")]}
    assert estimate(RouteKind.MESSAGES, body)[:2] == (2, TEXT)


@pytest.mark.parametrize(
    "given_input",
    [
        "abcd",
        [user("abcd")],
        [user([{"type": "input_text", "text": "abcd"}])],
        [user([{"type": "output_text", "text": "abcd"}])],
    ],
)
def test_responses_count_instructions_and_input(given_input: object) -> None:
    body = {"instructions": "abcd", "input": given_input}
    assert estimate(RouteKind.RESPONSES, body)[:2] == (2, TEXT)


CALL = {"function": {"name": "f", "arguments": "abcd"}}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"tool_calls": [CALL, CALL]}, 2),
        ({"content": "abcd", "tool_calls": [CALL]}, 2),
        ({"content": [{"type": "text", "text": "abcd"}], "tool_calls": [CALL]}, 2),
        ({"content": None, "reasoning": "abcdefgh"}, 2),
        ({"content": "", "reasoning_content": "abcdefgh"}, 2),
        ({"tool_calls": CALL, "reasoning": 7}, 0),
        ({"tool_calls": ["abcd", {"function": "abcd"}, {"function": {"arguments": 7}}]}, 0),
    ],
)
def test_a_chat_counts_reasoning_and_tool_arguments(
    message: dict[str, object], expected: int
) -> None:
    messages = [{"role": "assistant", **message}]
    assert estimate(RouteKind.CHAT, {"messages": messages})[0] == expected


SAID = {"type": "text", "text": "abcd"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
SHOWN = {"type": "tool_result", "content": [SAID, {"type": "image"}]}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (RouteKind.CHAT, {"messages": [user([SAID, IMAGE])]}),
        (RouteKind.CHAT, {"messages": [user([SAID]), user([IMAGE])]}),
        (RouteKind.MESSAGES, {"messages": [user([SHOWN])]}),
        (RouteKind.RESPONSES, {"input": [user([SAID, {"type": "input_image"}])]}),
        (RouteKind.RESPONSES, {"previous_input_messages": [user([IMAGE])], "input": "abcd"}),
    ],
)
def test_media_count_beside_text(kind: RouteKind, body: dict[str, object]) -> None:
    expected = (IMAGE_TOKENS + 1, "characters / 4 + media", 4, IMAGE_TOKENS)
    assert estimate(kind, body) == expected


def test_ten_images_are_ten_times_as_many_tokens() -> None:
    body = {"messages": [user([IMAGE] * 10)]}
    assert estimate(RouteKind.CHAT, body)[0] == 10 * IMAGE_TOKENS


def test_no_request_counts_more_media_than_a_context_holds() -> None:
    body = {"messages": [user([SAID, *[IMAGE] * 300])]}
    tokens, _, _, media = estimate(RouteKind.CHAT, body)
    assert (tokens, media) == (MAX_MEDIA_TOKENS + 1, MAX_MEDIA_TOKENS)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "tool_use", "name": "f", "input": {"a": 12}}, 2),
        ({"type": "tool_use", "name": "f"}, 0),
        ({"type": "tool_result", "content": "abcdefgh"}, 2),
        ({"type": "tool_result", "content": [SAID, {"type": "?"}, 7, SAID]}, 2),
        ({"type": "tool_result", "content": [{"type": "tool_result", "content": "abcd"}]}, 0),
        ({"type": "thinking", "thinking": "abcdefgh", "signature": "abcd"}, 2),
        ({"type": "redacted_thinking", "data": "abcd"}, 0),
    ],
)
def test_messages_count_reasoning_tool_arguments_and_tool_results(
    part: dict[str, object], expected: int
) -> None:
    assert estimate(RouteKind.MESSAGES, {"messages": [user([part])]})[0] == expected


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "abcd"}, 1),
        ({"type": "function_call_output", "call_id": "c", "output": "abcdefgh"}, 2),
        ({"type": "function_call_output", "call_id": "c", "output": [SAID, SAID]}, 2),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "abcd"}, 1),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": "abcd"}, 1),
        ({"type": "reasoning", "content": [{"type": "reasoning_text", "text": "abcd"}]}, 1),
        ({"type": "item_reference", "id": "abcd"}, 0),
    ],
)
def test_so_do_responses(item: dict[str, object], expected: int) -> None:
    assert estimate(RouteKind.RESPONSES, {"input": [item]})[0] == expected


def test_deeply_nested_values_count_no_tokens() -> None:
    deep: list[object] = []
    for _ in range(300):
        deep = [deep]
    part = {"type": "tool_use", "input": {"x": deep}}
    assert estimate(RouteKind.MESSAGES, {"messages": [user([SAID, part])]})[0] == 1


def test_responses_count_the_messages_before_their_input() -> None:
    harmony = {"author": {"role": "user"}, "content": [{"type": "text", "text": "abcd"}]}
    body = {"previous_input_messages": [user("abcd"), harmony], "input": "abcd"}
    assert estimate(RouteKind.RESPONSES, body)[:2] == (3, TEXT)


def test_token_ids_are_counted() -> None:
    assert estimate(RouteKind.GENERATE, {"token_ids": [1] * 9}) == (9, "token ids", 0, 0)
    assert estimate(RouteKind.GENERATE, {"token_ids": 7}) == (0, "no text", 0, 0)


def test_the_ids_of_a_prompt_with_media_are_not_its_own() -> None:
    assert sole_ids({"token_ids": [1, 2]}) == [1, 2]
    assert sole_ids({"token_ids": [1, 2], "features": {"mm_hashes": {"image": ["a"]}}}) is None
    assert sole_ids({"token_ids": [1, 2], "content_parts": [{"type": "image_url"}]}) is None


def test_a_route_that_generates_nothing_has_no_prompt() -> None:
    given = {"prompt": "abcd", "input": "abcd"}
    assert estimate(RouteKind.PASS_THROUGH, given) == (0, NONE, 0, 0)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (None, []),
        ("a", ["a"]),
        (["a"], ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2]], [[1, 2]]),
        ([[1], [2]], [[1], [2]]),
        ([], [[]]),
    ],
)
def test_a_list_of_ids_is_one_prompt(prompt: object, expected: list[object]) -> None:
    assert prompts(prompt) == expected


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["content", "text", "type", "role", "tool_calls", "function"]),
            inner,
            max_size=3,
        )
    ),
)
bodies = st.dictionaries(
    st.sampled_from(["prompt", "messages", "input", "instructions", "system"]), anything
)


@given(st.sampled_from(RouteKind), bodies)
def test_malformed_bodies_have_an_estimate(kind: RouteKind, body: dict[str, Any]) -> None:
    assert estimate(kind, body)[0] >= 0


@pytest.mark.parametrize(
    ("prompt", "size"),
    [
        ("abcdefg", 7),
        ("\u00e9" * 8, 16),
        ("\u4e2d\u6587", 6),
        (["ab", "\u4e2d"], 5),
        ("\ud800", 3),  # JSON cannot bring it
        ([1, 2, 3], 0),
        (["abcd", [1, 2]], 0),
        (None, 0),
    ],
)
def test_only_pure_text_has_a_byte_count(prompt: object, size: int) -> None:
    assert estimate(RouteKind.COMPLETIONS, {"prompt": prompt})[2] == size


@given(st.lists(st.text(max_size=20), max_size=5))
def test_the_bytes_of_a_conversation_are_those_of_its_texts(texts: list[str]) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    size = sum(len(text.encode()) for text in texts)
    assert estimate(RouteKind.CHAT, {"messages": messages})[2] == size
