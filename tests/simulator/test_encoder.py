"""Encoders: what an encode engine answers, and what others find of it."""

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp

from router.simulator import EngineConfig, RunningEngine, serve_engine
from tests.simulator.talk import ask, until

CHAT = "/v1/chat/completions"


def question(*names: str) -> dict[str, Any]:
    """A chat about images with these contents."""
    urls = [f"data:image/png;base64,{name}" for name in names]
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    text = {"type": "text", "text": "What is this?"}
    return {"messages": [{"role": "user", "content": [text, *parts]}], "max_tokens": 4}


def counted(engine: RunningEngine) -> tuple[int, int]:
    """How many images it has encoded and found."""
    counts: dict[str, int] = engine.state["encoder"]
    return counts["encoded"], counts["found"]


async def test_an_encode_engine_answers_without_tokens(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with serve_engine(EngineConfig(role="encode", encoder_cache=str(tmp_path))) as engine:
        answer = await ask(client, engine, CHAT, **question("a", "b", "a"))
        plain = await ask(client, engine, CHAT, **question())
    [choice] = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    assert answer["usage"]["completion_tokens"] == 0
    params = answer["ec_transfer_params"]
    assert [each["item_indices"] for each in params.values()] == [[0, 2], [1]]
    assert set(os.listdir(tmp_path)) == params.keys()
    assert plain["ec_transfer_params"] is None


async def test_others_find_what_it_encoded_and_encode_the_rest(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    shared = EngineConfig(encoder_cache=str(tmp_path))
    encoding = EngineConfig(role="encode", encoder_cache=str(tmp_path))
    async with serve_engine(encoding) as encode, serve_engine(shared) as other:
        await ask(client, encode, CHAT, **question("a"))
        for _ in range(2):
            answer = await ask(client, other, CHAT, **question("a", "b"))
            assert answer["usage"]["completion_tokens"] == 4
            assert counted(other) == (1, 1)
        assert counted(encode) == (1, 0)
        await ask(client, encode, CHAT, **question("b"))  # only encode engines share
        assert counted(encode) == (2, 0)
    async with serve_engine(encoding) as another:
        await ask(client, another, CHAT, **question("a"))
        assert counted(another) == (0, 1)


async def test_a_client_that_leaves_ends_the_encoding(client: aiohttp.ClientSession) -> None:
    async with serve_engine(EngineConfig(role="encode", encode_s=3600.0)) as engine:
        asking = asyncio.ensure_future(ask(client, engine, CHAT, **question("a")))
        await until(lambda: engine.requests)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: not engine.engine.connections())
        assert counted(engine) == (0, 0)
