"""Asking an engine something and reading the answer, in one line each."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import orjson

from router.simulator import RunningEngine

PROMPT = "import os, sys\ndef main(argv):\n    return os.path.join(argv[0])\n" * 4
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
ASK_REMOTE = {"do_remote_decode": True, "do_remote_prefill": False}


async def ask(
    client: aiohttp.ClientSession,
    engine: RunningEngine,
    path: str = "/v1/completions",
    *,
    headers: dict[str, str] | None = None,
    status: int = 200,
    **body: Any,
) -> Any:
    """POST a JSON body; the parsed answer. Asserts the status."""
    async with client.post(engine.url + path, json=body, headers=headers) as reply:
        text = await reply.read()
        assert reply.status == status, text
        return orjson.loads(text) if text else None


async def complete(client: aiohttp.ClientSession, engine: RunningEngine, **body: Any) -> str:
    """The text of a completion of PROMPT, or of the given request."""
    answer = await ask(client, engine, **{"prompt": PROMPT, "max_tokens": 8, **body})
    text: str = answer["choices"][0]["text"]
    return text


async def chat(client: aiohttp.ClientSession, engine: RunningEngine, **body: Any) -> str:
    """The text of a chat about MESSAGES, or of the given request."""
    whole = {"messages": MESSAGES, "max_tokens": 8, **body}
    answer = await ask(client, engine, "/v1/chat/completions", **whole)
    text: str = answer["choices"][0]["message"]["content"]
    return text


async def stream(
    client: aiohttp.ClientSession, engine: RunningEngine, path: str, **body: Any
) -> list[bytes]:
    """The data of all events of a stream."""
    async with client.post(engine.url + path, json={**body, "stream": True}) as reply:
        assert reply.status == 200
        text = await reply.read()
    assert text.endswith(b"\n\n")
    return [line[6:] for line in text.splitlines() if line.startswith(b"data: ")]


async def chunks(
    client: aiohttp.ClientSession, engine: RunningEngine, path: str, **body: Any
) -> list[dict[str, Any]]:
    """The documents of a stream that ends in [DONE]."""
    events = await stream(client, engine, path, **body)
    assert events[-1] == b"[DONE]"
    return [orjson.loads(event) for event in events[:-1]]


async def prefilled(client: aiohttp.ClientSession, engine: RunningEngine, **body: Any) -> Any:
    """The KV parameters that a prefill of PROMPT gives."""
    whole = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": ASK_REMOTE, **body}
    return (await ask(client, engine, **whole))["kv_transfer_params"]


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until something is so; the test's timeout is the bound."""
    while not condition():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.001)
