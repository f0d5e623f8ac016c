"""Claim: of a long request the decode engine computes no prompt token; of a short one, all.

`vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}` is the proof: it counts what
was really fetched. The prefix cache is kept out by the salt of `traffic.body`; without it a decode
engine fetches only what it has not cached, and the counter falls short of the prompts' length by
whole blocks of 32 tokens.
"""

import asyncio
import uuid
from typing import Any

import aiohttp
import pytest

from tests.engines import observe
from tests.engines.conftest import Engines
from tests.engines.fleet import MODEL
from tests.engines.service import Service
from tests.engines.traffic import (
    CHAT,
    COMPLETIONS,
    LONG_PROMPTS,
    SHORT_PROMPTS,
    Answer,
    ask,
    body,
    prompt,
)

AT_ONCE = 6


async def _ask_all(
    session: aiohttp.ClientSession, url: str, texts: tuple[str, ...]
) -> list[Answer]:
    """A mix of both paths, streamed and unary, a few at a time."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(at: int, text: str) -> Answer:
        path = (CHAT, COMPLETIONS)[at % 2]
        async with slots:
            return await ask(session, url, path, body(path, text, stream=at % 4 < 2))

    return await asyncio.gather(*(one(at, text) for at, text in enumerate(texts)))


async def test_long_prompts_are_computed_once_and_moved(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    before = await observe.loads(session, engines.all)
    answers = await _ask_all(session, router.url, LONG_PROMPTS)
    after = await observe.settled(session, engines.all, within=5)
    assert {answer.status for answer in answers} == {200}
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    moved = [now.transferred - then.transferred for then, now in zip(before, after, strict=True)]
    computed = [now.computed - then.computed for then, now in zip(before, after, strict=True)]
    print(f"{prompt_tokens} prompt tokens; moved {moved}, computed {computed}")
    assert sum(moved) == prompt_tokens
    assert computed == [prompt_tokens, 0, 0]
    assert min(moved[1:]) > 0, "a decode engine got no request"


async def test_short_prompts_stay_on_the_decode_engine(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    before = await observe.loads(session, engines.all)
    answers = await _ask_all(session, router.url, SHORT_PROMPTS)
    after = await observe.settled(session, engines.all, within=5)
    assert {answer.status for answer in answers} == {200}
    assert [load.transferred for load in after] == [load.transferred for load in before]
    assert after[0].finished == before[0].finished, "the prefill engine got a request"
    computed = sum(now.computed - then.computed for then, now in zip(before, after, strict=True))
    assert computed == sum(answer.prompt_tokens for answer in answers)


async def test_a_cached_prompt_is_moved_only_where_it_is_not_cached(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    """With the prefix cache on, a repeated prompt moves once to each decode engine, save for the
    last tokens, which do not fill a block of 32."""
    request = body(COMPLETIONS, prompt(31, 150)) | {"cache_salt": "the same for all"}
    before = await observe.loads(session, engines.decodes)
    answers = [await ask(session, router.url, COMPLETIONS, request) for _ in range(6)]
    after = await observe.settled(session, engines.decodes, within=5)
    assert len({answer.text for answer in answers}) == 1
    moved = sum(now.transferred - then.transferred for then, now in zip(before, after, strict=True))
    length = answers[0].prompt_tokens
    assert moved < 2 * length + 4 * 32


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize(
    ("path", "request_"),
    [
        ("/v1/responses", {"input": prompt(32, 150), "max_output_tokens": 8}),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": prompt(33, 150)}], "max_tokens": 8},
        ),
    ],
    ids=["responses", "messages"],
)
async def test_the_other_generating_paths_move_theirs(
    session: aiohttp.ClientSession,
    engines: Engines,
    router: Service,
    path: str,
    request_: dict[str, Any],
    stream: bool,
) -> None:
    before = await observe.loads(session, engines.all)
    request = request_ | {"model": MODEL, "stream": stream, "cache_salt": uuid.uuid4().hex}
    async with session.post(router.url + path, json=request) as response:
        assert response.status == 200, await response.read()
        await response.read()
    after = await observe.settled(session, engines.all, within=5)
    computed = [now.computed - then.computed for then, now in zip(before, after, strict=True)]
    moved = sum(now.transferred - then.transferred for then, now in zip(before, after, strict=True))
    assert computed == [moved, 0, 0]
    assert moved > 150
