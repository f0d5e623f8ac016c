"""Claim: decode engines with NIXL's `bidirectional_kv_xfer`, which the router does not use, do no
harm but that each answer's blocks stay until their time is over (docs/decisions/0035-returning.md).
"""

from collections.abc import Iterator

import aiohttp
import pytest

from tests.engines import observe
from tests.engines.conftest import Engines, fleet_of, router_of, started
from tests.engines.fleet import BLOCK_SIZE, RETURNING_SPECS, TTL_SECONDS, service
from tests.engines.layout import layout
from tests.engines.service import Service
from tests.engines.traffic import CHAT, LONG_PROMPTS, ask, body


@pytest.fixture
async def _whole_fleet() -> None:
    """These tests have engines of their own."""


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """A prefill and a decode engine."""
    where = layout()
    yield from fleet_of([service(spec, where) for spec in RETURNING_SPECS])


@pytest.fixture(scope="module")
def router(engines: Engines) -> Iterator[Service]:
    yield from started(router_of(engines, layout(), name="returning-router"))


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_an_answer_and_its_next_turn_are_right_and_no_parameters_pass(
    session: aiohttp.ClientSession, engines: Engines, router: Service, stream: bool
) -> None:
    [decode] = engines.decodes
    length = 0
    turns = [{"role": "user", "content": LONG_PROMPTS[3]}]
    for question in LONG_PROMPTS[4:6]:
        request = body(CHAT, "", stream=stream, messages=turns)
        alone = await ask(session, decode.url, CHAT, request)
        routed = await ask(session, router.url, CHAT, body(CHAT, "", stream=stream, messages=turns))
        assert routed.status == alone.status == 200
        assert routed.words == alone.words
        assert b"transfer_params" not in routed.raw
        length = routed.prompt_tokens
        turns += [{"role": "assistant", "content": routed.text}]
        turns += [{"role": "user", "content": question}]
    kept = (await observe.load(session, decode)).kv_use * RETURNING_SPECS[1].blocks * BLOCK_SIZE
    assert kept > length
    await observe.settled(session, engines.all, within=TTL_SECONDS + 10)
