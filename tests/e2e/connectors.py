"""A router process in front of simulated engines, for the connectors' tests."""

import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from router.simulator import RunningEngine
from tests.e2e.process import serving


@dataclass
class Outcome:
    """A client's view of one answer."""

    status: int
    texts: list[str]
    """One of each choice."""
    usage: dict[str, Any] | None
    finish: str | None
    raw: bytes


@asynccontextmanager
async def router_process(*flags: str) -> AsyncIterator[str]:
    """`pd-router serve` on a free port, once it is ready; ends with status 0."""
    async with serving(*flags) as process:
        await process.ready()
        yield process.url
        process.signal(signal.SIGTERM)
        assert await process.status() == 0


def urls(engines: Sequence[RunningEngine]) -> str:
    """A comma list."""
    return ",".join(engine.url for engine in engines)


async def ask(session: aiohttp.ClientSession, url: str, path: str, body: dict[str, Any]) -> Outcome:
    """One request, streamed or not, read to its end."""
    async with session.post(url + path, json=body) as response:
        raw = await response.read()
    if response.content_type != "text/event-stream":
        return _outcome(response.status, [orjson.loads(raw)], raw)
    chunks = [orjson.loads(line[6:]) for line in raw.splitlines() if line.startswith(b"data: {")]
    if chunks[-1].get("type") == "response.completed":
        return _outcome(response.status, [chunks[-1]["response"]], raw)
    assert raw.endswith(b"data: [DONE]\n\n")
    return _outcome(response.status, chunks, raw)


def _outcome(status: int, documents: list[dict[str, Any]], raw: bytes) -> Outcome:
    texts: defaultdict[int, str] = defaultdict(str)
    finish, usage = None, None
    for document in documents:
        usage = document.get("usage") or usage
        if document.get("object") == "response":
            texts[0], finish = document["output"][0]["content"][0]["text"], document["status"]
        for choice in document.get("choices", ()):
            part = choice.get("delta") or choice.get("message") or {}
            text = part.get("content") or choice.get("text") or ""
            for call in part.get("tool_calls") or ():
                text += call["function"].get("name", "") + call["function"].get("arguments", "")
            texts[choice["index"]] += text
            finish = choice.get("finish_reason") or finish
    return Outcome(status, [texts[index] for index in sorted(texts)], usage, finish, raw)
