"""Claim: a dying decode engine costs only its started answers, and those end with an error.

An answer not begun is started again on the other engine, with a prefill of its own: what the
prefill engine holds for a request may be fetched once only.
"""

import asyncio
import itertools

import aiohttp

from tests.engines import observe
from tests.engines.conftest import Engines
from tests.engines.service import Service
from tests.engines.traffic import CHAT, COMPLETIONS, LONG_PROMPTS, Answer, ask, body, events

LONG_ANSWER = 6000


async def test_answers_not_begun_move_to_the_other_engine(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    victim, other = engines.decodes
    ways = list(itertools.product((CHAT, COMPLETIONS), (False, True)))

    def asked(url: str) -> list[asyncio.Task[Answer]]:
        return [
            asyncio.create_task(ask(session, url, path, body(path, text, stream=stream)))
            for text, (path, stream) in zip(LONG_PROMPTS, ways * 2, strict=False)
        ]

    expected = [await task for task in asked(other.url)]
    victim.freeze()
    tasks = asked(router.url)
    await observe.eventually(lambda: observe.unread([victim]), lambda seen: len(seen) >= 2, 5)
    victim.kill()
    answers = await asyncio.gather(*tasks)
    for answer, wanted in zip(answers, expected, strict=True):
        assert answer.status == 200, answer.raw
        assert answer.words == wanted.words


async def test_a_started_stream_ends_with_an_error(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    request = body(CHAT, LONG_PROMPTS[0], stream=True, max_tokens=LONG_ANSWER)
    async with session.post(router.url + CHAT, json=request) as response:
        assert response.status == 200
        raw = await response.content.readuntil(b"\n\n")
        loads = await observe.eventually(
            lambda: observe.loads(session, engines.decodes),
            lambda seen: any(load.running for load in seen),
            5,
        )
        victim = next(
            engine for engine, load in zip(engines.decodes, loads, strict=True) if load.running
        )
        victim.kill()
        raw += await response.read()
    *_, last = events(raw)  # which fails unless [DONE] ends it
    assert last["error"]["message"]
    answer = await ask(session, router.url, CHAT, body(CHAT, LONG_PROMPTS[1]))
    assert answer.status == 200
    assert len(answer.token_ids) == 24
