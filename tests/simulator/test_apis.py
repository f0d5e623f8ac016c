"""/v1/responses and /v1/messages, whole and streamed."""

import json
from typing import Any

import pytest

from tests.simulator.talk import ASK_REMOTE, ask, stream

INPUT = "Which way is up, and why?"
MESSAGES = [{"role": "user", "content": INPUT}]
FAILED = "Internal server error"


async def events(client, engine, path, **body) -> list[tuple[str, dict[str, Any]]]:
    """Name and data of every event."""
    async with client.post(engine.url + path, json={**body, "stream": True}) as reply:
        blocks = (await reply.text()).removesuffix("\n\n").split("\n\n")
    parsed = []
    for block in blocks:
        name, data = block.split("\n")
        parsed.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return parsed


class TestResponses:
    async def test_a_whole_answer(self, client, engine):
        answer = await ask(client, engine, "/v1/responses", input=INPUT, max_output_tokens=5)
        (item,) = answer["output"]
        assert item["content"][0]["text"]
        assert answer["usage"]["output_tokens"] == 5
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}

    async def test_the_events_come_in_order_and_are_numbered(self, client, engine):
        got = await events(client, engine, "/v1/responses", input=INPUT, max_output_tokens=3)
        assert [name for name, _ in got] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            *["response.output_text.delta"] * 3,
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [data["sequence_number"] for _, data in got] == list(range(len(got)))
        assert all(data["type"] == name for name, data in got)
        whole = await ask(client, engine, "/v1/responses", input=INPUT, max_output_tokens=3)
        text = "".join(data["delta"] for name, data in got if name.endswith("text.delta"))
        assert text == whole["output"][0]["content"][0]["text"]

    async def test_instructions_and_a_list_of_turns_are_part_of_the_prompt(self, client, engine):
        async def text(**body) -> str:
            answer = await ask(client, engine, "/v1/responses", max_output_tokens=4, **body)
            return str(answer["output"][0]["content"][0]["text"])

        assert await text(input=MESSAGES) == await text(input=INPUT)
        assert await text(input=INPUT, instructions="Rhyme.") != await text(input=INPUT)

    async def test_openais_client_reads_it(self, engine):
        import openai  # noqa: PLC0415 - a third of a second for each collection of this file

        async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="x") as client:
            answer = await client.responses.create(model="sim", input=INPUT, max_output_tokens=4)
            parts = await client.responses.create(
                model="sim", input=INPUT, max_output_tokens=4, stream=True
            )
            kinds = [part.type async for part in parts]
        assert answer.output_text
        assert kinds[-1] == "response.completed"


class TestMessages:
    async def test_a_whole_answer(self, client, engine):
        answer = await ask(client, engine, "/v1/messages", messages=MESSAGES, max_tokens=4)
        assert answer["type"] == "message"
        assert answer["stop_reason"] == "max_tokens"
        assert answer["usage"]["output_tokens"] == 4
        assert answer["content"][0]["text"]

    async def test_the_events_come_in_order_without_done(self, client, engine):
        got = await events(client, engine, "/v1/messages", messages=MESSAGES, max_tokens=3)
        names = [name for name, _ in got]
        assert names[:2] == ["message_start", "content_block_start"]
        assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        assert set(names[2:-3]) == {"content_block_delta"}
        whole = await ask(client, engine, "/v1/messages", messages=MESSAGES, max_tokens=3)
        text = "".join(data["delta"]["text"] for name, data in got if name == "content_block_delta")
        assert text == whole["content"][0]["text"]

    async def test_a_stop_sequence_is_named(self, client, engine):
        whole = await ask(client, engine, "/v1/messages", messages=MESSAGES, max_tokens=8)
        stop = whole["content"][0]["text"][5:8]
        answer = await ask(
            client, engine, "/v1/messages", messages=MESSAGES, max_tokens=8, stop_sequences=[stop]
        )
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)

    async def test_errors_have_anthropics_shape_with_vllms_types(self, client, engine):
        """As recorded from vLLM 0.32, which checks a request's form before it knows the API."""
        body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 4}
        answer = await ask(client, engine, "/v1/messages", **body, model="nope", status=404)
        message = "The model `nope` does not exist. Valid aliases: sim."
        assert answer == {"type": "error", "error": {"type": "NotFoundError", "message": message}}
        answer = await ask(client, engine, "/v1/messages", max_tokens=4, status=400)
        assert answer["error"]["type"] == "Bad Request"
        assert answer["error"]["code"] == 400

    async def test_the_system_text_is_part_of_the_prompt(self, client, engine):
        body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 4}
        plain = await ask(client, engine, "/v1/messages", **body)
        other = await ask(client, engine, "/v1/messages", **body, system="Rhyme.")
        assert plain["content"] != other["content"]


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        (
            "/v1/responses",
            {"input": INPUT},
            {"code": "server_error", "message": FAILED, "param": None, "sequence_number": 5},
        ),
        (
            "/v1/messages",
            {"messages": MESSAGES, "max_tokens": 4},
            {"error": {"type": "internal_error", "message": FAILED}},
        ),
    ],
)
async def test_failing_stream_ends_with_api_error(client, engine, path, body, error):
    await engine.set_faults(error_after_tokens=1)
    got = await events(client, engine, path, **body)
    assert got[-1] == ("error", {"type": "error", **error})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": INPUT, "max_output_tokens": 1}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1}),
    ],
)
async def test_both_can_be_disaggregated(client, engine, prefill, decode, path, body):
    answer = await ask(client, prefill, path, **body, kv_transfer_params=ASK_REMOTE)
    params = answer["kv_transfer_params"]
    split = await ask(client, decode, path, **body, kv_transfer_params=params)
    whole = await ask(client, engine, path, **body)
    name = "output" if "output" in whole else "content"
    if name == "output":
        assert split[name][0]["content"] == whole[name][0]["content"]
    else:
        assert split[name] == whole[name]
    assert decode.state["loads"]["good"] == 1


async def test_openais_client_reads_chats(engine):
    import openai  # noqa: PLC0415 - as above

    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="x") as client:
        parts = await client.chat.completions.create(
            model="sim",
            messages=[{"role": "user", "content": INPUT}],
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
        usages = [part.usage async for part in parts]
        models = [model.id async for model in client.models.list()]
    assert usages[-1] is not None
    assert usages[-1].completion_tokens == 4
    assert models == ["sim"]


async def test_message_streams_have_no_done(client, engine):
    got = await stream(client, engine, "/v1/messages", messages=MESSAGES, max_tokens=2)
    assert b"[DONE]" not in got
