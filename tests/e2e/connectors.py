"""A router as a process of its own, in front of simulated engines: for the connectors' tests."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from router.simulator import RunningEngine

READY_SECONDS = 60.0


@dataclass
class Outcome:
    """A client's view of one answer."""

    status: int
    text: str
    usage: dict[str, Any] | None
    finish: str | None
    raw: bytes


@asynccontextmanager
async def router_process(*flags: str) -> AsyncIterator[str]:
    """`pd-router serve` on a free port; ends with status 0."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router.cli", "serve", "--host", "127.0.0.1", "--port", "0"),
        *("--log-format", "json", *flags),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        line: dict[str, Any] = {}
        while line.get("message") != "listening":
            line = orjson.loads(await process.stderr.readline())
        drain = asyncio.create_task(process.stderr.read())
        await _until_ready(line["url"])
        yield line["url"]
    finally:
        process.terminate()
        status = await process.wait()
    await drain
    assert status == 0


async def _until_ready(url: str) -> None:
    async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/ready") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.02)


def urls(engines: Sequence[RunningEngine]) -> str:
    """A comma list."""
    return ",".join(engine.url for engine in engines)


async def ask(session: aiohttp.ClientSession, url: str, path: str, body: dict[str, Any]) -> Outcome:
    """One request, streamed or not, read to its end."""
    async with session.post(url + path, json=body) as response:
        raw = await response.read()
    if response.content_type != "text/event-stream":
        return _outcome(response.status, [orjson.loads(raw)], raw)
    assert raw.endswith(b"data: [DONE]\n\n")
    chunks = [orjson.loads(line[6:]) for line in raw.splitlines() if line.startswith(b"data: {")]
    return _outcome(response.status, chunks, raw)


def _outcome(status: int, documents: list[dict[str, Any]], raw: bytes) -> Outcome:
    text, finish, usage = "", None, None
    for document in documents:
        usage = document.get("usage") or usage
        for choice in document.get("choices", ()):
            part = choice.get("delta") or choice.get("message") or {}
            text += part.get("content") or choice.get("text") or ""
            finish = choice.get("finish_reason") or finish
    return Outcome(status, text, usage, finish, raw)
