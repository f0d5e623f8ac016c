"""Claim: no client notices a decode engine that is killed, stopped or shut down under its stream.

Greedy answers of these engines are the same in every run, so the answer of a stream that went on
with another engine is compared with an undisturbed one: text, finish reason, usage.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest

from tests.engines import observe
from tests.engines.conftest import Engines, router_of, started
from tests.engines.layout import layout
from tests.engines.service import Service
from tests.engines.traffic import CHAT, COMPLETIONS, LONG_PROMPTS, SHORT_PROMPTS, body, events

TOKENS = 300
BEGUN_BYTES = 8000
"""Some thirty tokens' events."""


@pytest.fixture(scope="module")
def continuing(engines: Engines) -> Iterator[Service]:
    """A router with --stream-continuation on."""
    yield from started(
        router_of(engines, layout(), "--stream-continuation", "on", name="continuing")
    )


Answer = dict[str, Any]


def read(raw: bytes) -> Answer:
    """What a client reads of a stream."""
    documents = list(events(raw))
    choices = [choice for each in documents for choice in each.get("choices", ())]
    deltas = [choice.get("delta", choice) for choice in choices]
    usage = documents[-1].get("usage") or {}
    return {
        "error": [each["error"] for each in documents if "error" in each],
        "text": "".join(d.get("content") or d.get("text") or "" for d in deltas),
        "roles": sum("role" in delta for delta in deltas),
        "finish": [c["finish_reason"] for c in choices if c["finish_reason"]],
        "usage": [usage.get(name) for name in ("prompt_tokens", "completion_tokens")],
        "ids": len({each["id"] for each in documents if "id" in each}),
        "token_ids": any(choice.get("token_ids") for choice in choices),
    }


def asked(path: str, text: str) -> dict[str, Any]:
    """A stream without token ids, which the router asks for by itself."""
    request = body(path, text, stream=True, max_tokens=TOKENS)
    del request["return_token_ids"]
    return request | {"stream_options": {"include_usage": True}}


async def parts(
    session: aiohttp.ClientSession, url: str, path: str, text: str
) -> AsyncIterator[bytes]:
    async with session.post(url + path, json=asked(path, text)) as response:
        assert response.status == 200
        async for part in response.content.iter_any():
            yield part


class Stream:
    """A stream in progress."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self.raw = b""
        self.whole = asyncio.create_task(self._read(source))

    async def _read(self, source: AsyncIterator[bytes]) -> Answer:
        async for part in source:
            self.raw += part
        return read(self.raw)


FAULTS: dict[str, Callable[[Service], None]] = {
    "killed": Service.kill,
    "frozen": Service.freeze,
    "shut down": Service.stop,
}


@pytest.mark.parametrize("how", FAULTS)
async def test_every_stream_is_whole_and_equal(
    session: aiohttp.ClientSession, engines: Engines, continuing: Service, how: str
) -> None:
    await observe.eventually(
        lambda: observe.up(session, continuing),
        lambda seen: seen == {engine.url for engine in engines.all},
        within=20,
    )
    victim, other = engines.decodes
    # Prefilled remotely or not, of either API.
    texts = [*LONG_PROMPTS[:4], *SHORT_PROMPTS[:4]]
    kinds = list(zip(itertools.cycle((CHAT, COMPLETIONS)), texts))

    def all_from(url: str) -> list[Stream]:
        return [Stream(parts(session, url, path, text)) for path, text in kinds]

    expected = await asyncio.gather(*(each.whole for each in all_from(other.url)))
    streams = all_from(continuing.url)
    await observe.eventually(
        lambda: asyncio.sleep(0, [len(each.raw) for each in streams]),
        lambda sizes: min(sizes) > BEGUN_BYTES,
        within=60,
    )
    await asyncio.to_thread(FAULTS[how], victim)
    answers = await asyncio.gather(*(each.whole for each in streams))
    for answer, wanted in zip(answers, expected, strict=True):
        assert answer == wanted
    continued = [line for line in continuing.log.read_text().splitlines() if "continued" in line]
    assert continued, json.dumps(answers)[:500]
