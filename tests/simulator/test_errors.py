"""Errors word for word as recorded from vLLM 0.32."""

import pytest

from router.simulator import EngineConfig, serve_engine
from tests.simulator.talk import ask, complete

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
JSON = {"content-type": "application/json"}


def error(message: str, kind: str, param: str | None, code: int) -> dict[str, dict[str, object]]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


MISSING = (
    "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required',"
    " 'input': '<dict of 1 items>'}"
)
NOT_A_LIST = (
    "1 validation error:\n  {'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a"
    " valid list', 'input': 'hi'}"
)
NOT_AN_OBJECT = (
    "1 validation error:\n  {'type': 'dict_type', 'loc': 'body.kv_transfer_params', 'msg': 'Input"
    " should be a valid dictionary', 'input': 'x'}"
)


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (
            CHAT,
            {"model": "nope", "messages": []},
            error(
                "The model `nope` does not exist. Valid aliases: sim.",
                "NotFoundError",
                "model",
                404,
            ),
        ),
        (CHAT, {"model": "sim"}, error(MISSING, "Bad Request", "body.messages", 400)),
        (CHAT, {"messages": "hi"}, error(NOT_A_LIST, "Bad Request", "body.messages", 400)),
        (
            COMPLETIONS,
            {"prompt": "a", "max_tokens": 0},
            error(
                "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
                "BadRequestError",
                "max_tokens",
                400,
            ),
        ),
        (
            COMPLETIONS,
            {"prompt": "a", "max_tokens": 50_000},
            error(
                "max_tokens=50000 cannot be greater than max_model_len=32768. Please request fewer"
                " output tokens. (parameter=max_tokens, value=50000)",
                "BadRequestError",
                "max_tokens",
                400,
            ),
        ),
        (
            COMPLETIONS,
            {"prompt": "a", "temperature": -1},
            error(
                "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
                "BadRequestError",
                "temperature",
                400,
            ),
        ),
        (
            COMPLETIONS,
            {"prompt": "a", "stream_options": {"include_usage": True}},
            error(
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
                "BadRequestError",
                "stream_options",
                400,
            ),
        ),
        (
            COMPLETIONS,
            {"prompt": "a", "kv_transfer_params": "x"},
            error(NOT_AN_OBJECT, "Bad Request", "body.kv_transfer_params", 400),
        ),
    ],
)
async def test_a_bad_request_gets_vllms_words(client, engine, path, body, expected):
    code = expected["error"]["code"]
    assert await ask(client, engine, path, status=code, **body) == expected


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a", "stop": {"a": 1}},
        {"prompt": "a", "stop": ["a", 1]},
        {"prompt": "a", "min_tokens": 5, "max_tokens": 1},
        {"prompt": "a", "min_tokens": None},
        {"prompt": "a", "n": 0},
        {"prompt": "a", "max_tokens": "ten"},
        {"prompt": "a", "stream": 1},
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [1 << 40]},
        {"prompt": [["a"], 1]},
        {"prompt": "x" * 4 * 32_768},
    ],
)
async def test_other_bad_requests_are_400_too_and_run_nothing(client, engine, body):
    answer = await ask(client, engine, status=400, **body)
    assert answer["error"]["code"] == 400
    assert engine.state["steps"] == 0


async def test_a_bad_request_for_a_stream_is_answered_without_one(client, engine):
    answer = await ask(client, engine, status=404, prompt="a", model="nope", stream=True)
    assert answer["error"]["type"] == "NotFoundError"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
async def test_before_vllm_019_a_forced_tool_cannot_be_called_in_one_token(client, engine, choice):
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages = [{"role": "user", "content": "a"}]
    body = {"messages": messages, "tools": tools, "tool_choice": choice}
    await ask(client, engine, CHAT, **body, max_tokens=1)
    async with serve_engine(EngineConfig(version="0.18.1")) as old:
        await ask(client, old, CHAT, status=400, **body, max_tokens=1)
        await ask(client, old, CHAT, **body, max_tokens=2)


@pytest.mark.parametrize(
    ("raw", "headers", "message", "param"),
    [
        (
            b'{"model":"sim","messages":[',
            JSON,
            "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.27', 'msg': 'JSON decode"
            " error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}",
            "body.27",
        ),
        (
            b"",
            JSON,
            "1 validation error:\n  {'type': 'missing', 'loc': 'body', 'msg': 'Field required',"
            " 'input': 'None'}",
            "body",
        ),
        (
            b"{}",
            {"content-type": "text/plain"},
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
            None,
        ),
    ],
)
async def test_invalid_json_gets_vllms_message(client, engine, raw, headers, message, param):
    async with client.post(engine.url + CHAT, data=raw, headers=headers) as reply:
        assert reply.status == 400
        assert await reply.json() == error(message, "Bad Request", param, 400)


async def test_a_body_that_is_no_text_at_all_is_400(client, engine):
    async with client.post(engine.url + CHAT, data=b"\xff\xfe\xfd", headers=JSON) as reply:
        assert reply.status == 400


async def test_unknown_paths_and_methods_are_answered_by_the_framework(client, engine):
    async with client.get(engine.url + "/nowhere") as reply:
        assert (reply.status, await reply.json()) == (404, {"detail": "Not Found"})
    async with client.get(engine.url + CHAT) as reply:
        assert (reply.status, await reply.json()) == (405, {"detail": "Method Not Allowed"})


async def test_a_key_guards_v1_and_nothing_else(client):
    async with serve_engine(EngineConfig(api_key="secret")) as engine:
        assert await ask(client, engine, status=401, prompt="a") == {"error": "Unauthorized"}
        await ask(client, engine, headers={"authorization": "Bearer wrong"}, status=401, prompt="a")
        await ask(client, engine, headers={"authorization": "Bearer secret"}, prompt="a")
        await ask(client, engine, "/tokenize", prompt="a")
        async with client.get(engine.url + "/metrics") as reply:
            assert reply.status == 200


async def test_a_full_queue_is_503_in_vllms_words(client):
    async with serve_engine(EngineConfig(max_num_seqs=1, max_num_queued_reqs=1)) as engine:
        await engine.set_faults(stall=True)
        async with client.post(
            engine.url + COMPLETIONS, json={"prompt": "a", "stream": True}
        ) as waits:
            assert waits.status == 200
            answer = await ask(client, engine, status=503, prompt="a")
            assert answer == error(
                "The engine is currently busy and cannot accept new requests."
                " Please try again later or on a different instance.",
                "Service Unavailable",
                None,
                503,
            )
            await engine.clear_faults()
            assert b"[DONE]" in await waits.read()
        assert engine.state["rejected"] == 1
        assert await complete(client, engine)
