"""Claim: a frozen decode engine delays only its own streams, and is used again afterwards.

Frozen means SIGSTOP to the engine's whole process group: its sockets stay open and nothing comes.
"""

import asyncio
from random import Random
from typing import Any

import aiohttp

from router.core.events import Probed
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.probing import (
    SPEED_PROBE_PATH,
    SPEED_PROBE_TOKENS,
    measures_prompts,
    speed_probe_body,
    speed_probe_work,
)
from router.core.health import HealthSignal, HealthThresholds
from router.core.values import Endpoint, Role
from router.core.wire.exposition import PAGES, read
from tests.engines import observe
from tests.engines.conftest import Engines
from tests.engines.fleet import MODEL
from tests.engines.service import Service
from tests.engines.traffic import COMPLETIONS, SHORT_PROMPTS, ask, body, events

NOTICED = 10.0
"""Seconds: the stall time-out is 2, a probe of the health 5."""

RETURNED = 45.0
"""Streams that have had no token move on. If all do, nothing is left by which it could show that it
speaks again (this router asks no questions of its own), and it is tried again after 30 s."""


async def _entry(session: aiohttp.ClientSession, router: Service, engine: Service) -> Any:
    """The router's view of an engine."""
    async with session.get(router.url + "/endpoints") as response:
        entries = await response.json()
    return next(e for e in entries if e["url"] == engine.url and e["role"] == "decode")


async def test_others_answer_while_it_is_frozen_and_its_streams_end_whole(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    long = body(COMPLETIONS, SHORT_PROMPTS[0], stream=True, max_tokens=400)
    expected = (await ask(session, engines.decodes[0].url, COMPLETIONS, long)).words
    streams = [asyncio.create_task(ask(session, router.url, COMPLETIONS, long)) for _ in range(4)]
    frozen, other = engines.decodes
    await observe.eventually(
        lambda: _entry(session, router, frozen), lambda e: e["seconds_per_token"], NOTICED
    )
    frozen.freeze()
    await observe.eventually(
        lambda: _entry(session, router, frozen),
        lambda e: e["exclusion"] == "stalled" or e["state"] == "down",
        NOTICED,
    )
    for text in SHORT_PROMPTS[1:5]:
        short = body(COMPLETIONS, text)
        answer = await ask(session, router.url, COMPLETIONS, short)
        wanted = await ask(session, other.url, COMPLETIONS, short)
        assert answer.words == wanted.words
    frozen.thaw()
    for answer in await asyncio.gather(*streams):
        assert answer.words == expected
    await observe.eventually(
        lambda: _entry(session, router, frozen),
        lambda e: (e["exclusion"], e["state"]) == (None, "up"),
        RETURNED,
    )


async def test_the_routers_own_questions_are_answered_by_every_engine(
    session: aiohttp.ClientSession, engines: Engines
) -> None:
    for role, engine in [
        (Role.PREFILL, engines.prefill),
        *((Role.DECODE, decode) for decode in engines.decodes),
    ]:
        endpoint = Endpoint(engine.url, role)
        fleet = Fleet([endpoint], Ledger(), HealthThresholds(), 5.0)
        fleet.observe(Probed(endpoint, HealthSignal.OK, ({"id": MODEL},)), 0.0)
        member = fleet.member(endpoint)
        headers = {"content-type": "application/json"}
        for member.view.prompt_slowdown in (1.0, 2.0):
            work = speed_probe_work(member)
            data = speed_probe_body(member, Random(1))
            async with session.post(
                engine.url + SPEED_PROBE_PATH, data=data, headers=headers
            ) as response:
                assert response.status == 200
                tokens = list(events(await response.read()))
            assert len(tokens) in (
                (1, 2) if role is Role.PREFILL else (SPEED_PROBE_TOKENS, SPEED_PROBE_TOKENS + 1)
            )
            if measures_prompts(member):
                assert work <= tokens[0]["usage"]["prompt_tokens"] <= 2 * work


async def test_every_engine_gives_only_the_series_that_a_scrape_selects(
    session: aiohttp.ClientSession, engines: Engines
) -> None:
    for engine in engines.all:
        pages = []
        for path in ("/metrics", PAGES[0]):
            async with session.get(engine.url + path) as response:
                pages.append(await response.read())
        whole, selected = pages
        assert read(selected) == read(whole)
        assert read(selected).running == 0
        assert 4 * len(selected) < len(whole)
