"""Streams whose engine fails behind the first token, and goes on elsewhere."""

from typing import Any

import orjson
import pytest

from tests.net.client import request
from tests.net.engine import Call, ScriptedEngine
from tests.net.harness import Harness, eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM, error_frame, event

PROMPT = [5, 6, 7]


def piece(text: str, ids: list[int], *, name: str = "a", **more: Any) -> bytes:
    """A token's event, as vLLM sends it when it is asked for ids."""
    choice = {"index": 0, "text": text, "finish_reason": None, "prompt_token_ids": None}
    choice |= {"token_ids": ids} | more
    return event({"id": name, "object": "text_completion", "created": 1, "choices": [choice]})


def shown(text: str, **more: Any) -> dict[str, Any]:
    """The same as the client reads it."""
    choice = {"index": 0, "text": text, "finish_reason": None, "prompt_token_ids": None}
    choice |= {"token_ids": None} | more
    return {"id": "a", "object": "text_completion", "created": 1, "choices": [choice]}


async def next_call(engines: list[ScriptedEngine]) -> Call:
    """The next request, of whichever engine."""
    await eventually(lambda: any(engine.waiting for engine in engines))
    return await next(engine for engine in engines if engine.waiting).call()


async def failing(harness: Harness) -> tuple[Any, Call, list[ScriptedEngine]]:
    """A stream of two tokens, the client's answer, the engine's call and the engines."""
    engines = [await harness.engine(), await harness.engine()]
    router = await harness.router(*engines, stream_continuation="on")
    client = await router.client()
    await client.send(request(COMPLETIONS, STREAM | {"max_tokens": 9}))
    call = await next_call(engines)
    assert call.json["return_token_ids"] is True
    call.stream(piece("x", [100], prompt_token_ids=PROMPT), piece("y", [101]))
    answer = await client.begin()
    while b'"y"' not in answer.body:
        await answer.more()
    return answer, call, engines


@pytest.mark.parametrize("end", ["close", "reset", "garbage", "error", "abort"])
async def test_the_client_of_an_engine_that_fails_sees_one_answer(
    harness: Harness, end: str
) -> None:
    answer, call, engines = await failing(harness)
    fail(call, end)
    following = await next_call(engines)
    body = following.json
    assert body["prompt"] == [*PROMPT, 100, 101]
    assert body["max_tokens"] == 7
    following.stream_whole(
        piece("z", [102], name="b", prompt_token_ids=[*PROMPT, 100, 101]),
        piece("!", [103], name="b", finish_reason="stop"),
        DONE,
    )
    await answer.rest()
    documents = [orjson.loads(each[6:]) for each in answer.body.split(b"\n\n")[:-2]]
    assert documents == [shown("x"), shown("y"), shown("z"), shown("!", finish_reason="stop")]
    assert answer.body.endswith(DONE)


def fail(call: Call, how: str) -> None:
    if how == "close":
        call.close()
    elif how == "reset":
        call.reset()
    elif how == "garbage":
        call.send(b"this is no chunk\r\n")
    elif how == "error":
        call.stream(event({"error": {"message": "EngineCore died", "code": 500}}), DONE)
        call.end()
    else:
        call.stream(piece("lost", [], finish_reason="abort"), DONE)
        call.end()


async def test_without_another_engine_the_stream_ends_with_an_error(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, stream_continuation="on")
    client = await router.client()
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.stream(piece("x", [100], prompt_token_ids=PROMPT))
    answer = await client.begin()
    while b'"x"' not in answer.body:
        await answer.more()
    call.close()
    await answer.rest()
    assert error_frame(answer.body)["code"] == 503
