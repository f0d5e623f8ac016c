"""Keys of prompts: alike as far as the prompts are alike, and never further."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.prefix.keys import (
    CHUNK_CHARACTERS,
    CHUNK_TOKENS,
    MAX_STEPS,
    MIN_TOKENS,
    SAMPLE,
    SHAPING_KEYS,
    prefix_keys,
    scheme,
)
from router.core.request_facts import NO_KEYS, PrefixKeys
from router.core.wire.media import IMAGE_TOKENS, MAX_MEDIA_TOKENS
from tests.core.fixtures import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    changed,
    read,
    request,
)

TEXT = "".join(f"{number:07d} " for number in range(1000))
"""8,000 characters, in which no two places look the same."""

MESSAGE = {"role": "user", "content": TEXT}


TOOL_CALL = {"path": "README.md", "why": "b" * 600}


def chat_agent(answer: object) -> dict[str, Any]:
    """A turn in which a tool has answered, as /v1/chat/completions has it."""
    function = {"name": "read", "arguments": orjson.dumps(TOOL_CALL).decode()}
    call = {"id": "call_1", "type": "function", "function": function}
    says = {"role": "assistant", "content": None, "reasoning": "c" * 600, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": answer}
    return {"messages": [{"role": "user", "content": "Fix it"}, says, result]}


def messages_agent(answer: object) -> dict[str, Any]:
    """The same as /v1/messages has it."""
    thought = {"type": "thinking", "thinking": "c" * 600, "signature": "s"}
    call = {"type": "tool_use", "id": "call_1", "name": "read", "input": TOOL_CALL}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": answer}
    return {
        "messages": [
            {"role": "user", "content": "Fix it"},
            {"role": "assistant", "content": [thought, call]},
            {"role": "user", "content": [result]},
        ]
    }


def responses_agent(answer: object) -> dict[str, Any]:
    """The same as /v1/responses has it."""
    thought = [{"type": "reasoning_text", "text": "c" * 600}]
    call = {"call_id": "call_1", "name": "read", "arguments": orjson.dumps(TOOL_CALL).decode()}
    return {
        "input": [
            {"role": "user", "content": "Fix it"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": thought},
            {"type": "function_call", **call},
            {"type": "function_call_output", "call_id": "call_1", "output": answer},
        ]
    }


AGENTS: dict[str, Callable[[object], dict[str, Any]]] = {
    CHAT: chat_agent,
    MESSAGES: messages_agent,
    RESPONSES: responses_agent,
}


def keys(path: str = CHAT, **body: Any) -> PrefixKeys:
    """The keys of a request with these members in its body."""
    return prefix_keys(request(path, **body))


def common(one: PrefixKeys, other: PrefixKeys) -> int:
    """How many keys two prompts share from their beginning on."""
    pairs = zip(one.keys, other.keys, strict=False)
    same = 0
    for mine, theirs in pairs:
        if mine != theirs:
            break
        same += 1
    return same


def test_a_text_has_a_key_for_each_chunk_of_512_characters() -> None:
    found = keys(COMPLETIONS, prompt=TEXT[:1300])
    assert found.ends == (128, 256, 325)
    assert len(set(found.keys)) == 3


def test_chunks_are_counted_in_characters_whatever_bytes_they_take() -> None:
    text = "".join(chr(0x4E00 + number) for number in range(1300))
    changed = text[:600] + "é" + text[601:]
    whole = keys(COMPLETIONS, prompt=text)
    assert len(whole.keys) == 3
    assert common(whole, keys(COMPLETIONS, prompt=changed)) == 1


def test_token_ids_have_a_key_for_each_128() -> None:
    assert keys(COMPLETIONS, prompt=list(range(300))).ends == (128, 256, 300)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [MESSAGE, {"role": "assistant", "content": "abc" * 700}]}),
        (RESPONSES, {"previous_input_messages": [MESSAGE], "input": "abc" * 700}),
        *((path, AGENTS[path](TEXT)) for path in (CHAT, MESSAGES, RESPONSES)),
    ],
)
def test_the_last_end_is_the_estimate_of_the_whole_prompt(path: str, body: dict[str, Any]) -> None:
    facts = request(path, **body)
    assert prefix_keys(facts).ends[-1] == facts.tokens


@given(st.integers(0, len(TEXT) - 1))
def test_two_texts_share_the_chunks_before_the_first_difference(place: int) -> None:
    changed = TEXT[:place] + "#" + TEXT[place + 1 :]
    whole = keys(COMPLETIONS, prompt=TEXT)
    assert common(whole, keys(COMPLETIONS, prompt=changed)) == place // CHUNK_CHARACTERS


@given(st.integers(MIN_TOKENS, 900), st.integers(0, 255))
def test_ids_share_chunks_before_the_first_difference(length: int, place: int) -> None:
    ids = list(range(length))
    changed = [*ids[:place], 99_999, *ids[place + 1 :]]
    shared = common(keys(COMPLETIONS, prompt=ids), keys(COMPLETIONS, prompt=changed))
    assert shared == place // CHUNK_TOKENS


def test_a_conversation_that_goes_on_keeps_all_its_keys() -> None:
    before = keys(messages=[{"role": "system", "content": "Be brief. " * 70}, MESSAGE])
    answer = {"role": "assistant", "content": "Yes."}
    after = keys(
        messages=[{"role": "system", "content": "Be brief. " * 70}, MESSAGE, answer, MESSAGE]
    )
    assert 0 < common(before, after) == len(before.keys) < len(after.keys)


@pytest.mark.parametrize("path", AGENTS)
def test_answers_of_tools_share_the_chunks_before_the_first_difference(path: str) -> None:
    one, other = (keys(path, **AGENTS[path](TEXT + end)) for end in "ab")
    assert common(one, other) == len(one.keys) - 1 > len(TEXT) // CHUNK_CHARACTERS


@pytest.mark.parametrize("path", AGENTS)
def test_an_answer_in_parts_equals_its_text(path: str) -> None:
    parts = [{"type": "text" if path != RESPONSES else "input_text", "text": TEXT}]
    assert keys(path, **AGENTS[path](parts)) == keys(path, **AGENTS[path](TEXT))


@pytest.mark.parametrize("path", AGENTS)
def test_images_in_tool_results_separate_prompts(path: str) -> None:
    def seen(url: str) -> PrefixKeys:
        parts = [{"type": "image", "url": url}, {"type": "text", "text": TEXT}]
        return keys(path, **AGENTS[path](parts))

    one, other = seen("data:1"), seen("data:2")
    assert common(one, seen("data:1")) == len(one.keys)
    assert common(one, other) == len(one.keys) - len(TEXT) // CHUNK_CHARACTERS - 2


def billed(number: int, parts: bool) -> object:
    """A system prompt of Claude Code's."""
    line = f"x-anthropic-billing-header: cc_version=2.1.100; cc_entrypoint=cli; cch={number:05x};"
    return [{"type": "text", "text": text} for text in (line, TEXT)] if parts else f"{line}\n{TEXT}"


@pytest.mark.parametrize("parts", [True, False])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_claude_codes_billing_header_changes_nothing(path: str, *, parts: bool) -> None:
    def begun(number: int) -> PrefixKeys:
        asked = {"role": "user", "content": "Fix it"}
        if path == MESSAGES:
            return keys(path, system=billed(number, parts), messages=[asked])
        return keys(path, messages=[{"role": "system", "content": billed(number, parts)}, asked])

    assert begun(1) == begun(2)
    assert len(begun(1).keys) == len(TEXT) // CHUNK_CHARACTERS + 2


@pytest.mark.parametrize("parts", [True, False])
def test_user_text_is_no_billing_header(*, parts: bool) -> None:
    said = [keys(messages=[{"role": "user", "content": billed(n, parts)}]) for n in (1, 2)]
    assert common(*said) == 0


def test_a_conversation_keeps_its_keys_when_its_cache_control_moves() -> None:
    def marked(part: dict[str, Any]) -> dict[str, Any]:
        return {**part, "cache_control": {"type": "ephemeral"}}

    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    said = {"type": "text", "text": TEXT}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": [said, image]}
    marked_result = marked({**result, "content": [marked(said), marked(image)]})
    before = keys(MESSAGES, messages=[{"role": "user", "content": [image, marked_result]}])
    answer = {"role": "assistant", "content": "Yes."}
    asked = {"role": "user", "content": [marked(said)]}
    first = {"role": "user", "content": [image, result]}
    after = keys(MESSAGES, messages=[first, answer, asked])
    assert 0 < common(before, after) == len(before.keys) < len(after.keys)


@pytest.mark.parametrize("more", [{}, {"name": "Ann"}])
def test_so_it_does_where_messages_are_marked_and_not_their_parts(more: dict[str, str]) -> None:
    said = {"role": "user", "content": TEXT, **more}
    marked = {**said, "cache_control": {"type": "ephemeral"}}
    before = keys(messages=[marked])
    after = keys(messages=[said, {"role": "assistant", "content": "Yes."}, marked])
    assert 0 < common(before, after) == len(before.keys) < len(after.keys)


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "other"},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"cache_salt": "tenant-1"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"truncation_side": "left"},
        {"media_io_kwargs": {"video": {"num_frames": 8}}},
        {"messages": [{"role": "system", "content": TEXT}]},
        {"messages": [{**MESSAGE, "name": "Ann"}]},
    ],
)
def test_what_shapes_a_prompts_start_changes_its_keys(changed: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"model": "tiny", "messages": [MESSAGE]}
    assert common(keys(**plain), keys(**{**plain, **changed})) == 0


@pytest.mark.parametrize(
    ("path", "one", "other"),
    [
        (RESPONSES, {"reasoning": {"effort": "low"}}, {"reasoning": {"effort": "high"}}),
        (RESPONSES, {"reasoning": {"effort": "low"}}, {}),
        (RESPONSES, {"reasoning": "low"}, {"reasoning": "high"}),
        (MESSAGES, {"output_config": {"effort": "low"}}, {"output_config": {"effort": "high"}}),
        (MESSAGES, {"thinking": {"type": "disabled"}}, {"thinking": {"type": "adaptive"}}),
    ],
)
def test_so_does_how_much_the_model_is_to_think(
    path: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    asked = {"input": TEXT} if path == RESPONSES else {"messages": [MESSAGE]}
    assert common(keys(path, **asked, **one), keys(path, **asked, **other)) == 0


@pytest.mark.parametrize(
    ("path", "name", "one", "other"),
    [
        (RESPONSES, "reasoning", {"effort": "low"}, {"effort": "low", "summary": "auto"}),
        (MESSAGES, "output_config", {"effort": "low"}, {"effort": "low", "format": {}}),
        (MESSAGES, "thinking", *({"type": "enabled", "budget_tokens": n} for n in (1024, 2048))),
    ],
)
def test_reasoning_and_response_options_change_no_key(
    path: str, name: str, one: Any, other: Any
) -> None:
    asked = {"input": TEXT} if path == RESPONSES else {"messages": [MESSAGE]}
    assert keys(path, **asked, **{name: one}) == keys(path, **asked, **{name: other})


@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": 1},
        {"max_tokens": 7},
        {"stream": True},
        {"continue_final_message": True, "add_generation_prompt": False},
    ],
)
def test_fields_outside_the_prompt_change_no_key(changed: dict[str, Any]) -> None:
    assert keys(messages=[MESSAGE], **changed) == keys(messages=[MESSAGE])


def test_media_take_no_more_of_a_cache_than_a_context_holds() -> None:
    parts = [{"type": "image_url", "image_url": {"url": f"data:{n}"}} for n in range(300)]
    found = keys(CHAT, messages=[{"role": "user", "content": parts}])
    assert len(set(found.keys)) == 300
    assert found.ends[-1] == MAX_MEDIA_TOKENS


def test_images_separate_prompts_and_the_text_after_them() -> None:
    def with_image(url: str) -> PrefixKeys:
        image = {"type": "image_url", "image_url": {"url": url}}
        parts = [{"type": "text", "text": TEXT}, image, {"type": "text", "text": TEXT}]
        return keys(messages=[{"role": "user", "content": parts}])

    one, other = with_image("data:1"), with_image("data:2")
    assert common(one, with_image("data:1")) == len(one.keys)
    assert common(one, other) == len(one.keys) // 2


def test_an_image_that_was_sent_counts_as_held() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:1"}}
    found = keys(messages=[{"role": "user", "content": [image, {"type": "text", "text": TEXT}]}])
    assert found.ends[0] == IMAGE_TOKENS
    assert found.ends[-1] == IMAGE_TOKENS + len(TEXT) // 4
    of_images = keys(messages=[{"role": "user", "content": [image, image]}])
    assert of_images.ends == (IMAGE_TOKENS, 2 * IMAGE_TOKENS)
    assert of_images.keys[0] == found.keys[0]


def test_parts_of_text_equal_their_text() -> None:
    for part in ({"type": "text", "text": TEXT}, TEXT):
        assert keys(messages=[{"role": "user", "content": [part]}]) == keys(messages=[MESSAGE])


MANY_PARTS = {"type": "tool_result", "content": [{}] * 2 * MAX_STEPS}

HOSTILE: list[dict[str, Any]] = [
    {"messages": [MESSAGE] + [{"role": "user", "content": "a"}] * 2 * MAX_STEPS},
    {"messages": [MESSAGE] + [{"role": "user"}] * 2 * MAX_STEPS + [MESSAGE]},
    {"messages": [MESSAGE, {"role": "system", "content": [{}] * 2 * MAX_STEPS}]},
    {"messages": [MESSAGE, {"role": "user", "content": [{}] * 2 * MAX_STEPS}, MESSAGE]},
    {
        "messages": [
            MESSAGE,
            {"content": [{"type": "tool_result", "content": [{}] * 2 * MAX_STEPS}]},
        ]
    },
    {"messages": [MESSAGE, {"tool_calls": [{"function": {"arguments": "a"}}] * 2 * MAX_STEPS}]},
    {"messages": [{"role": "user", "content": "a" * 2 * CHUNK_CHARACTERS * MAX_STEPS}]},
]


@pytest.mark.parametrize("body", HOSTILE)
def test_the_work_for_one_prompt_is_bounded(body: dict[str, Any]) -> None:
    found = keys(**body)
    assert 0 < len(found.keys) == len(found.ends) <= MAX_STEPS
    again = keys(messages=[*body["messages"], MESSAGE])
    assert found == again


class Counted(list[Any]):
    """A list that counts how often it was asked for the next item."""

    taken = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.taken += 1
            yield item


def test_so_is_that_for_the_parts_of_one_message() -> None:
    parts = Counted([{}] * 2 * MAX_STEPS)
    body = {"messages": [MESSAGE, {"role": "user", "content": parts}]}
    prefix_keys(changed(request(CHAT, messages=[MESSAGE]), body=body))
    assert parts.taken <= MAX_STEPS


def test_so_is_that_for_token_ids() -> None:
    assert len(keys(COMPLETIONS, prompt=[7] * 2 * CHUNK_TOKENS * MAX_STEPS).keys) == MAX_STEPS


def test_an_empty_text_adds_no_key() -> None:
    empty = {"role": "assistant", "content": ""}
    assert len(keys(messages=[MESSAGE, empty]).keys) == len(keys(messages=[MESSAGE]).keys)


def test_invalid_conversations_are_skipped() -> None:
    assert len(keys(MESSAGES, system=TEXT, messages=5).keys) == 16


def test_a_content_that_is_no_text_changes_the_keys_behind_it() -> None:
    one, other = (keys(MESSAGES, system=each, messages=[MESSAGE]) for each in (5, 6))
    assert common(one, other) == 0


def test_messages_and_responses_begin_with_their_instructions() -> None:
    one = keys(MESSAGES, system=TEXT, messages=[{"role": "user", "content": "a"}])
    other = keys(MESSAGES, system=TEXT, messages=[{"role": "user", "content": "b"}])
    assert common(one, other) == 16
    one = keys(RESPONSES, instructions=TEXT, input="a")
    other = keys(RESPONSES, instructions=TEXT, input=[{"role": "user", "content": "b"}])
    assert common(one, other) == 16


def test_messages_before_its_input_come_first_in_a_response() -> None:
    def after(*previous: str) -> PrefixKeys:
        messages = [{"author": {"role": "user"}, "content": text} for text in previous]
        return keys(RESPONSES, previous_input_messages=messages, input=TEXT)

    assert common(after(TEXT), after("#" + TEXT)) == 0
    assert common(after(TEXT), after(TEXT, "more")) == 16
    assert len(after(TEXT).keys) == 32


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "short"}),
        (COMPLETIONS, {"prompt": [TEXT, TEXT]}),
        (COMPLETIONS, {"prompt": [-1] * 300}),
        (COMPLETIONS, {"prompt": [1 << 40] * 300}),
        (RESPONSES, {"input": TEXT, "previous_response_id": "resp_1"}),
        (EMBEDDINGS, {"input": TEXT}),
    ],
)
def test_some_prompts_have_no_keys(path: str, body: dict[str, Any]) -> None:
    assert keys(path, **body) == NO_KEYS


DEEP = b"[" * 300 + b"]" * 300


@pytest.mark.parametrize(
    "members",
    [
        b'"messages":[{"role":"user","x":%b,"content":%b}]' % (DEEP, orjson.dumps(TEXT)),
        b'"messages":[{"role":"user","content":[%b,{"type":"tool_use","input":{"x":%b}}]}]'
        % (orjson.dumps({"type": "text", "text": TEXT}), DEEP),
        b'"tools":%b,"messages":[%b]' % (DEEP, orjson.dumps(MESSAGE)),
    ],
)
def test_deeply_nested_values_have_no_keys(members: bytes) -> None:
    facts = read(CHAT, b"{%b}" % members)
    assert facts.tokens == len(TEXT) // 4
    assert prefix_keys(facts) == NO_KEYS


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
messages = st.dictionaries(
    st.sampled_from(["role", "content", "name", "type", "text", "tool_calls", "input"]), json_values
)


@given(st.lists(messages | json_values, max_size=4), json_values)
def test_keys_of_any_body_grow_with_its_prompt(given_messages: list[Any], tools: Any) -> None:
    found = keys(messages=[MESSAGE, *given_messages], tools=tools)
    assert len(found.keys) == len(found.ends)
    assert list(found.ends) == sorted(found.ends)


def scheme_with(seed: str) -> str:
    """That of another process with this hash seed."""
    code = "from router.core.prefix.keys import scheme; print(scheme())"
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    return found.stdout.decode().strip()


def test_processes_with_one_hash_seed_make_the_same_keys() -> None:
    assert scheme_with("1") == scheme_with("1") != scheme_with("2")
    assert len(scheme()) == 16


def test_another_set_of_members_that_shape_prompts_is_another_scheme() -> None:
    assert SAMPLE.keys() >= SHAPING_KEYS


def test_null_values_have_keys_too() -> None:
    asked: dict[str, Any] = {"messages": [MESSAGE], "tools": None}
    assert keys(**asked) == keys(**asked) != keys(messages=[MESSAGE])


def test_token_ids_have_keys_unless_they_stand_for_media() -> None:
    ids, image = [*range(1000)], {"features": {"mm_hashes": {"image": ["a"]}}}
    path = "/inference/v1/generate"
    same, longer = (prefix_keys(request(path, token_ids=ids + more)) for more in ([], [7] * 500))
    assert same.keys[:-1] == longer.keys[: len(same.keys) - 1] != ()
    assert prefix_keys(request(path, token_ids=ids, **image)) == NO_KEYS
