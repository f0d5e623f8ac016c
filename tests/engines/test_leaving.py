"""Claim: a disconnect at any moment frees both engines: nothing runs, nothing is held.

Moments are made certain by freezing an engine: what the router sends then waits unread in its
sockets, where the kernel counts it, until the engine is thawed.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterable
from typing import Any

import aiohttp
import pytest

from tests.engines import observe
from tests.engines.conftest import Engines
from tests.engines.service import Service
from tests.engines.traffic import CHAT, COMPLETIONS, LONG_PROMPTS, Answer, ask, body

SOON = 5.0
"""Seconds; engines take 0.3-0.5 s to abort on an idle machine."""
AFTER_THE_LEASE = 40.0
"""Seconds. A prefill engine holds unfetched blocks for 30 s."""
LONG_ANSWER = 6000
"""Tokens, some 10 s of decoding: no answer is complete by chance before its client leaves."""


def _request(path: str, stream: bool) -> dict[str, Any]:
    return body(path, LONG_PROMPTS[0], stream=stream, max_tokens=LONG_ANSWER)


async def _leave(task: asyncio.Task[Answer]) -> None:
    """Close the client's connection without a word."""
    assert not task.done(), f"the answer came before the client left: {task.result()}"
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _arrives(engines: Iterable[Service]) -> None:
    """The request waits in a frozen engine's socket."""
    await observe.eventually(lambda: observe.unread(engines), lambda seen: len(seen) == 1, SOON)


async def _is_dropped(engines: Iterable[Service]) -> None:
    """The router has closed its connection to the frozen engine."""
    await observe.eventually(
        lambda: observe.unread(engines), lambda seen: all(one.left for one in seen), SOON
    )


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])
async def test_during_a_stream(
    session: aiohttp.ClientSession, engines: Engines, router: Service, path: str
) -> None:
    before = await observe.loads(session, engines.decodes)
    async with session.post(router.url + path, json=_request(path, stream=True)) as response:
        assert response.status == 200
        await response.content.readuntil(b"\n\n")
    after = await observe.settled(session, engines.all, SOON)
    generated = sum(
        now.generated - then.generated for then, now in zip(before, after[1:], strict=True)
    )
    assert generated < LONG_ANSWER / 2


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])
async def test_while_a_unary_answer_is_decoded(
    session: aiohttp.ClientSession, engines: Engines, router: Service, path: str
) -> None:
    before = await observe.loads(session, engines.decodes)
    task = asyncio.create_task(ask(session, router.url, path, _request(path, stream=False)))
    await observe.eventually(
        lambda: observe.loads(session, engines.decodes),
        lambda seen: sum(load.running for load in seen) == 1,
        SOON,
    )
    await _leave(task)
    after = await observe.settled(session, engines.all, SOON)
    generated = sum(
        now.generated - then.generated for then, now in zip(before, after[1:], strict=True)
    )
    assert generated < LONG_ANSWER / 2


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_during_prefill(
    session: aiohttp.ClientSession, engines: Engines, router: Service, stream: bool
) -> None:
    """Neither engine works for a client that left while its prompt was being computed."""
    before = await observe.loads(session, engines.all)
    engines.prefill.freeze()
    task = asyncio.create_task(ask(session, router.url, CHAT, _request(CHAT, stream)))
    await _arrives([engines.prefill])
    await _leave(task)
    await _is_dropped([engines.prefill])
    engines.prefill.thaw()
    after = await observe.settled(session, engines.all, SOON)
    assert [load.generated for load in after[1:]] == [load.generated for load in before[1:]]


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_between_prefill_and_decode(
    session: aiohttp.ClientSession, engines: Engines, router: Service, stream: bool
) -> None:
    """The prefill engine holds the prompt's KV, and the decode engine has not fetched it."""
    for engine in engines.decodes:
        engine.freeze()
    task = asyncio.create_task(ask(session, router.url, CHAT, _request(CHAT, stream)))
    await _arrives(engines.decodes)
    await _leave(task)
    await _is_dropped(engines.decodes)
    for engine in engines.decodes:
        engine.thaw()
    await observe.settled(session, engines.all, AFTER_THE_LEASE)


async def test_forty_clients_at_random_moments(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    """And a client that stays gets its answer meanwhile and afterwards."""
    chance = random.Random(7)
    expected = await ask(session, engines.decodes[0].url, CHAT, body(CHAT, LONG_PROMPTS[5]))
    tasks = []
    for at in range(40):
        path = (CHAT, COMPLETIONS)[at % 2]
        request = body(path, LONG_PROMPTS[at % 30], stream=at % 4 < 2, max_tokens=LONG_ANSWER)
        tasks.append(asyncio.create_task(ask(session, router.url, path, request)))
    for task in chance.sample(tasks, k=len(tasks)):
        await asyncio.wait([task], timeout=chance.uniform(0, 0.04))
        await _leave(task)
    await observe.settled(session, engines.all, AFTER_THE_LEASE)
    answer = await ask(session, router.url, CHAT, body(CHAT, LONG_PROMPTS[5]))
    assert answer.words == expected.words
