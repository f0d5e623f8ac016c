"""Claim: while the prefill engine dies, is dead, and comes back, every client gets a right answer.

The router has to prefill on the decode engine then. Killed means SIGKILL to the engine's whole
process group: connections are reset, and the decode engines' NIXL agents get no notice.
"""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from tests.engines import observe
from tests.engines.conftest import Engines
from tests.engines.fleet import READY_SECONDS
from tests.engines.observe import Load
from tests.engines.service import Service
from tests.engines.traffic import CHAT, COMPLETIONS, LONG_PROMPTS, Answer, ask, body

USED_AGAIN = 30.0
"""Seconds until a restarted engine gets requests: probes come every second while it is down."""
CLIENTS = 2
"""More would slow the restart of the engine on a small machine."""


async def _references(session: aiohttp.ClientSession, engines: Engines) -> list[Answer]:
    """What one engine alone answers, one request after the other."""
    url = engines.decodes[0].url
    return [await ask(session, url, path, request) for path, request in _every_way()]


def _every_way() -> list[tuple[str, dict[str, Any]]]:
    """A prompt for each path, streamed and unary."""
    ways = itertools.product((CHAT, COMPLETIONS), (False, True))
    return [
        (path, body(path, text, stream=stream))
        for text, (path, stream) in zip(LONG_PROMPTS, ways, strict=False)
    ]


def _ask_every_way(session: aiohttp.ClientSession, router: Service) -> list[asyncio.Task[Answer]]:
    return [
        asyncio.create_task(ask(session, router.url, path, request))
        for path, request in _every_way()
    ]


async def _arrive(*frozen: Service) -> None:
    """All four wait in the frozen engines' sockets."""
    await observe.eventually(lambda: observe.unread(frozen), lambda seen: len(seen) == 4, 5)


async def _is_disaggregated(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> bool:
    """Whether a long request, sent now, has its prompt moved."""
    before = await observe.loads(session, engines.decodes)
    answer = await ask(session, router.url, COMPLETIONS, body(COMPLETIONS, LONG_PROMPTS[0]))
    assert answer.status == 200, answer.raw
    after = await observe.loads(session, engines.decodes)
    return sum(load.transferred for load in after) > sum(load.transferred for load in before)


async def _becomes_disaggregated(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    await observe.eventually(
        lambda: _is_disaggregated(session, engines, router), lambda moved: moved, USED_AGAIN
    )


@pytest.fixture(autouse=True)
async def _in_use(session: aiohttp.ClientSession, engines: Engines, router: Service) -> None:
    """A test before this one may have left the engine ejected."""
    await _becomes_disaggregated(session, engines, router)


async def _assert_computed_on_decode(
    session: aiohttp.ClientSession, engines: Engines, before: Sequence[Load], answers: list[Answer]
) -> None:
    """The decode engines computed these prompts themselves, and fetched nothing."""
    after = await observe.loads(session, engines.decodes)
    computed = sum(now.computed - then.computed for then, now in zip(before, after, strict=True))
    assert computed == sum(answer.prompt_tokens for answer in answers)
    assert [load.transferred for load in after] == [load.transferred for load in before]


def _assert_equal(answers: Sequence[Answer], expected: Sequence[Answer]) -> None:
    for answer, wanted in zip(answers, expected, strict=True):
        assert answer.status == 200, answer.raw
        assert answer.error is None
        assert answer.words == wanted.words


async def test_between_requests_and_back(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    expected = await _references(session, engines)
    before = await observe.loads(session, engines.decodes)
    engines.prefill.kill()
    requests = [*_every_way(), *_every_way(), *_every_way()]
    answers = [await ask(session, router.url, path, request) for path, request in requests]
    _assert_equal(answers, expected * 3)
    await _assert_computed_on_decode(session, engines, before, answers)
    engines.prefill.start()
    engines.prefill.wait_ready(READY_SECONDS)
    await _becomes_disaggregated(session, engines, router)


async def test_while_it_computes_prompts(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    expected = await _references(session, engines)
    before = await observe.loads(session, engines.decodes)
    engines.prefill.freeze()
    tasks = _ask_every_way(session, router)
    await _arrive(engines.prefill)
    engines.prefill.kill()
    answers = await asyncio.gather(*tasks)
    _assert_equal(answers, expected)
    await _assert_computed_on_decode(session, engines, before, answers)


async def test_after_the_prompt_and_before_it_is_fetched(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    """The decode engine is sent to a dead engine. It answers 500, or a stream of status 200 whose
    first or second event is the error: the router must not pass that on."""
    expected = await _references(session, engines)
    before = await observe.loads(session, engines.decodes)
    for engine in engines.decodes:
        engine.freeze()
    tasks = _ask_every_way(session, router)
    await _arrive(*engines.decodes)
    engines.prefill.kill()
    for engine in engines.decodes:
        engine.thaw()
    answers = await asyncio.gather(*tasks)
    _assert_equal(answers, expected)
    await _assert_computed_on_decode(session, engines, before, answers)


async def test_under_load(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    """Requests all the time, through the kill, the outage, the restart and the return."""
    expected = await _references(session, engines)
    stop = asyncio.Event()
    answered: list[Answer] = []

    async def client(mine: int) -> None:
        for at in itertools.count(mine):
            if stop.is_set():
                return
            path, request = _every_way()[at % 4]
            answer = await ask(session, router.url, path, request)
            _assert_equal([answer], [expected[at % 4]])
            answered.append(answer)

    async def count() -> int:
        return len(answered)

    async def several_answers() -> None:
        enough = len(answered) + 8 * CLIENTS
        await observe.eventually(count, lambda seen: seen >= enough, 30)

    async with asyncio.TaskGroup() as clients:
        for at in range(CLIENTS):
            clients.create_task(client(at))
        await several_answers()
        engines.prefill.kill()
        await several_answers()
        engines.prefill.start()
        await asyncio.to_thread(engines.prefill.wait_ready, READY_SECONDS)
        await _becomes_disaggregated(session, engines, router)
        stop.set()
    print(f"{len(answered)} right answers through an outage")
