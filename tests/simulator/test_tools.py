"""Tool calls and structured outputs in all APIs, with the shapes that vLLM 0.32 was recorded to
send (hermes parser)."""

import json
import re
from typing import Any

import jsonschema
import pytest

from tests.simulator.talk import ASK_REMOTE, ask, chunks, prefilled
from tests.simulator.test_apis import events

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
USER = {"role": "user", "content": "How is the weather in Paris?"}
FUNCTION = {"name": "get_weather", "description": "The weather", "parameters": SCHEMA}
TOOLS = [
    {"type": "function", "function": FUNCTION},
    {"type": "function", "function": {"name": "f"}},
]
ODD = [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]
RESPONSES_TOOLS = [{"type": "web_search"}, {"type": "function", **FUNCTION}]
MESSAGES_TOOLS = [{"name": "get_weather", "input_schema": SCHEMA}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER], "tools": TOOLS},
    RESPONSES: {"input": [USER], "tools": RESPONSES_TOOLS},
    MESSAGES: {"messages": [USER], "tools": MESSAGES_TOOLS, "max_tokens": 200},
}


async def called(client, engine, path, **body) -> tuple[str, Any]:
    """Name and arguments of the call that answers, which are valid."""
    answer = await ask(client, engine, path, **BODIES[path] | body)
    if path == CHAT:
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
    elif path == RESPONSES:
        (call,) = answer["output"]
        name, arguments = call["name"], json.loads(call["arguments"])
    else:
        (call,) = answer["content"]
        name, arguments = call["name"], call["input"]
    if name == "get_weather":
        jsonschema.validate(arguments, SCHEMA)
    return name, arguments


async def test_a_chat_calls_the_first_tool_as_vllm_does(client, engine):
    (choice,) = (await ask(client, engine, CHAT, **BODIES[CHAT]))["choices"]
    message = choice["message"]
    assert " ".join(message) == (
        "role content refusal annotations audio function_call tool_calls reasoning"
    )
    (call,) = message["tool_calls"]
    assert call["id"].startswith("chatcmpl-tool-")
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
    assert message["content"] is None
    assert choice["finish_reason"] == "tool_calls"


async def test_a_streamed_chat_sends_the_name_and_then_the_arguments_in_pieces(client, engine):
    whole = await called(client, engine, CHAT)
    first, named, *middle, last = await chunks(client, engine, CHAT, **BODIES[CHAT])
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    (call,) = named["choices"][0]["delta"].pop("tool_calls")
    assert " ".join(call) == "id type index function"
    assert call["function"]["name"] == "get_weather"
    assert named["choices"][0]["delta"] == {"content": None}
    parts = [call["function"].get("arguments", "")]
    for chunk in middle:
        (part,) = chunk["choices"][0]["delta"]["tool_calls"]
        assert list(part) == ["index", "function"]
        parts.append(part["function"]["arguments"])
    assert len(parts) > 3
    assert json.loads("".join(parts)) == whole[1]
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "tool_calls"


async def test_every_token_of_a_call_has_a_chunk_if_token_ids_are_requested(client, engine):
    got = await chunks(client, engine, CHAT, **BODIES[CHAT], return_token_ids=True)
    (choice,) = (await ask(client, engine, CHAT, **BODIES[CHAT], return_token_ids=True))["choices"]
    ids = [token for chunk in got[1:] for token in chunk["choices"][0]["token_ids"]]
    assert ids == choice["token_ids"]


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (CHAT, {"type": "function", "function": {"name": "get_weather"}}),
        (RESPONSES, {"type": "function", "name": "get_weather"}),
        (MESSAGES, {"type": "tool", "name": "get_weather"}),
    ],
)
async def test_a_tool_is_called_when_the_request_demands_it(client, engine, path, named):
    required = {"type": "any"} if path == MESSAGES else "required"
    expected = await called(client, engine, path)
    assert expected[0] == "get_weather"
    assert await called(client, engine, path, tool_choice=required) == expected
    assert await called(client, engine, path, tool_choice=named) == expected


async def test_a_named_call_ends_with_stop_and_may_be_of_any_tool(client, engine):
    choice = {"type": "function", "function": {"name": "f"}}
    answer = await ask(client, engine, CHAT, **BODIES[CHAT], tool_choice=choice)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["message"]["content"] == ""
    assert await called(client, engine, CHAT, tool_choice=choice) == ("f", {})


RESULT = {"role": "tool", "tool_call_id": "c", "content": "rain"}
TEXT_IS_DUE: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [USER, RESULT]}),
    (CHAT, {"tool_choice": "none"}),
    (CHAT, {"tools": ODD}),
    (RESPONSES, {"input": [USER, {"type": "function_call_output", "call_id": "c", "output": "x"}]}),
    (RESPONSES, {"tools": RESPONSES_TOOLS[:1]}),
    (RESPONSES, {"tools": []}),
    (MESSAGES, {"tool_choice": {"type": "none"}}),
    (
        MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}]},
    ),
]


@pytest.mark.parametrize(("path", "change"), TEXT_IS_DUE)
async def test_text_follows_a_result_or_no_usable_tool(client, engine, path, change):
    limit = {"max_output_tokens" if path == RESPONSES else "max_tokens": 5}
    answer = await ask(client, engine, path, **BODIES[path] | change | limit)
    assert text_of(answer)


async def test_a_response_streams_a_function_call(client, engine):
    _, arguments = await called(client, engine, RESPONSES)
    got = await events(client, engine, RESPONSES, **BODIES[RESPONSES])
    names = [name for name, _ in got]
    assert names[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
    ]
    assert names[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [data["sequence_number"] for _, data in got] == list(range(len(got)))
    deltas = [data["delta"] for name, data in got if name.endswith("arguments.delta")]
    assert json.loads("".join(deltas)) == arguments
    item = got[2][1]["item"] | {"arguments": "".join(deltas), "status": "completed"}
    assert got[-2][1]["item"] == item
    assert got[-1][1]["response"]["output"] == [item]


async def test_a_message_streams_a_tool_use_block(client, engine):
    whole = await ask(client, engine, MESSAGES, **BODIES[MESSAGES])
    got = await events(client, engine, MESSAGES, **BODIES[MESSAGES])
    names = [name for name, _ in got]
    assert names[:3] == ["message_start", "content_block_start", "content_block_delta"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    deltas = [data["delta"] for name, data in got if name == "content_block_delta"]
    (block,) = whole["content"]
    assert json.loads("".join(delta["partial_json"] for delta in deltas)) == block["input"]
    started = got[1][1]["content_block"]
    assert started | {"id": block["id"], "input": block["input"]} == block
    assert got[-2][1]["delta"]["stop_reason"] == whole["stop_reason"] == "tool_use"


async def test_a_call_that_is_cut_off_is_a_text(client, engine):
    cut: dict[str, Any] = {**BODIES[CHAT], "max_tokens": 5}
    (choice,) = (await ask(client, engine, CHAT, **cut))["choices"]
    assert choice["message"]["content"].startswith("<tool_call>")
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "length"
    _, last = await chunks(client, engine, CHAT, **cut)
    assert last["choices"][0]["delta"] == {}


FORMAT = {"type": "json_schema", "name": "weather", "schema": SCHEMA}
BY_SCHEMA: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": FORMAT}}),
    (CHAT, {"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}),
    (COMPLETIONS, {"structured_outputs": {"json": SCHEMA}, "max_tokens": 99}),
    (RESPONSES, {"text": {"format": FORMAT}}),
    (MESSAGES, {"output_config": {"format": FORMAT}}),
]
PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    COMPLETIONS: {"prompt": "Where?"},
    RESPONSES: {"input": "Where?"},
    MESSAGES: {"messages": [USER], "max_tokens": 99},
}


def text_of(answer: dict[str, Any]) -> str:
    """The text of an answer of any API."""
    if "output" in answer:
        return str(answer["output"][0]["content"][0]["text"])
    if "content" in answer:
        return str(answer["content"][0]["text"])
    (choice,) = answer["choices"]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


@pytest.mark.parametrize(("path", "form"), BY_SCHEMA)
async def test_an_answer_is_valid_by_its_schema(client, engine, prefill, decode, path, form):
    body: dict[str, Any] = {**PROMPTS[path], **form}
    text = text_of(await ask(client, engine, path, **body))
    jsonschema.validate(json.loads(text), SCHEMA)
    one: dict[str, Any] = {"max_output_tokens" if path == RESPONSES else "max_tokens": 1}
    answer = await ask(client, prefill, path, **body | one, kv_transfer_params=ASK_REMOTE)
    params = answer["kv_transfer_params"]
    assert text_of(await ask(client, decode, path, **body, kv_transfer_params=params)) == text


async def test_a_kv_cache_of_another_prompt_gives_another_answer(client, engine, prefill, decode):
    """What is written depends on the KV cache, so that a wrong one shows."""
    body: dict[str, Any] = {"structured_outputs": {"json": SCHEMA}, "max_tokens": 99}
    params = await prefilled(client, prefill, prompt="Where else?" * 9)
    wrong = await ask(client, decode, prompt="x" * 99, **body, kv_transfer_params=params)
    right = await ask(client, engine, prompt="x" * 99, **body)
    assert text_of(wrong) != text_of(right)


async def test_an_answer_can_be_an_object_a_match_or_a_choice(client, engine):
    async def text(**form: Any) -> str:
        return text_of(await ask(client, engine, prompt="a", max_tokens=99, **form))

    assert isinstance(json.loads(await text(response_format={"type": "json_object"})), dict)
    assert isinstance(json.loads(await text(structured_outputs={"json_object": True})), dict)
    assert re.fullmatch(r"[a-c]+-\d{2}", await text(structured_outputs={"regex": r"[a-c]+-\d{2}"}))
    assert await text(structured_outputs={"choice": ["yes", "no"]}) in ("yes", "no")
    plain = await text(response_format={"type": "text"})
    assert plain == await text(guided_json={"type": "integer"})  # removed from vLLM: ignored


def _chat_by(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


NAMED = {"type": "function", "function": {"name": "x"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": []}, "`tools` must not be an empty array. Either provide at least one tool or"),
    ({"tool_choice": "required"}, "When using `tool_choice`, `tools` must be set."),
    ({"tools": TOOLS, "tool_choice": NAMED}, "The tool specified in `tool_choice` does not match"),
    ({"tools": TOOLS, "tool_choice": "maybe"}, "Invalid value for `tool_choice`: maybe!"),
    ({"tools": [{"type": "function"}]}, "1 validation error:"),
    ({"tools": ODD, "tool_choice": "required"}, 'Grammar error: Unimplemented keys: ["not"]'),
    ({"response_format": {"type": "json_schema"}}, "When response_format type is 'json_schema',"),
    ({"response_format": {"type": "xml"}}, "1 validation error:"),
    ({"response_format": "json"}, "1 validation error:"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "You can only use one kind of"),
    ({"structured_outputs": {"regex": "a(?=b)b"}}, "Grammar error: assert in a regex"),
    ({"structured_outputs": {"json": "{"}}, "Grammar error: "),
    ({"structured_outputs": {"choice": []}}, "Grammar error: "),
    ({"structured_outputs": {"grammar": "root ::= x"}}, "Grammar error: "),
    (_chat_by({"type": "nonsense"}), "Grammar error: Invalid type: nonsense"),
    (_chat_by({"$ref": "#/$defs/Nope"}), "Grammar error: Pointer '/$defs/Nope' does not exist"),
]


@pytest.mark.parametrize(("body", "message"), REFUSED)
async def test_refusals_have_vllms_message(client, engine, body, message):
    answer = await ask(client, engine, CHAT, status=400, messages=[USER], **body)
    assert answer["error"]["message"].startswith(message)
