"""Claims: over NixlPushConnector answers are those of one engine, and the decode engine computes no
prompt token; what is left behind by a client that leaves is freed.

`vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}` counts what was really written.
"""

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import aiohttp
import orjson
import pytest

from tests.engines import observe
from tests.engines.conftest import Engines, fleet_of, router_of, started
from tests.engines.fleet import PUSH_SPECS, service
from tests.engines.layout import layout
from tests.engines.service import Service
from tests.engines.traffic import CHAT, COMPLETIONS, LONG_PROMPTS, ask, body

LEASE_SECONDS = 30.0
"""For which the prefill engine keeps blocks that no decode engine asks for."""


@pytest.fixture
async def _whole_fleet() -> None:
    """These tests have engines of their own."""


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """A prefill engine that pushes, and a decode engine."""
    where = layout()
    yield from fleet_of([service(spec, where) for spec in PUSH_SPECS])


@pytest.fixture(scope="module")
def router(engines: Engines) -> Iterator[Service]:
    yield from started(router_of(engines, layout(), name="push-router"))


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])
async def test_answers_equal_one_engines_and_their_prompts_are_pushed(
    session: aiohttp.ClientSession, engines: Engines, router: Service, path: str, stream: bool
) -> None:
    for text in LONG_PROMPTS[::3]:
        alone = await ask(session, engines.decodes[0].url, path, body(path, text, stream=stream))
        before = await observe.loads(session, engines.all)
        routed = await ask(session, router.url, path, body(path, text, stream=stream))
        after = await observe.settled(session, engines.all, within=5)
        assert routed.status == alone.status == 200
        assert routed.words == alone.words, text
        computed = [now.computed - then.computed for then, now in zip(before, after, strict=True)]
        assert computed == [routed.prompt_tokens, 0]
        assert after[1].transferred - before[1].transferred == routed.prompt_tokens


async def test_six_at_once(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    """Each decode request gets the blocks of its own prefill."""
    alone = [
        await ask(session, engines.decodes[0].url, COMPLETIONS, body(COMPLETIONS, text))
        for text in LONG_PROMPTS[:6]
    ]
    before = await observe.load(session, engines.decodes[0])
    asked = (ask(session, router.url, COMPLETIONS, body(COMPLETIONS, t)) for t in LONG_PROMPTS[:6])
    routed = await asyncio.gather(*asked)
    after = await observe.settled(session, engines.all, within=5)
    assert [answer.words for answer in routed] == [answer.words for answer in alone]
    moved = sum(answer.prompt_tokens for answer in routed)
    assert after[1].transferred - before.transferred == moved


@pytest.mark.parametrize("seconds", [0.05, 0.2, 0.5])
async def test_a_client_that_leaves_costs_no_blocks(
    session: aiohttp.ClientSession, engines: Engines, router: Service, seconds: float
) -> None:
    """vllm#46283, #50754: whichever leg is running, both engines free everything."""
    requests = [body(CHAT, text, stream=True, max_tokens=2000) for text in LONG_PROMPTS[:4]]
    asked = [asyncio.create_task(ask(session, router.url, CHAT, each)) for each in requests]
    await asyncio.sleep(seconds)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await observe.settled(session, engines.all, within=LEASE_SECONDS + 10)
    answer = await ask(session, router.url, CHAT, body(CHAT, LONG_PROMPTS[5]))
    assert len(answer.token_ids) == 24


async def _by_hand(
    session: aiohttp.ClientSession, url: str, request: dict[str, Any], name: str
) -> dict[str, Any]:
    headers = {"x-request-id": name}
    async with session.post(url + COMPLETIONS, json=request, headers=headers) as response:
        assert response.status == 200
        answer: dict[str, Any] = orjson.loads(await response.read())
    return answer


@pytest.mark.parametrize("same", [True, False], ids=["one", "two"])
async def test_an_engine_gets_nothing_for_another_id(
    session: aiohttp.ClientSession, engines: Engines, same: bool
) -> None:
    """The control, and the last test: the two legs by hand, with one id and with two. The decode
    engine's blocks stay taken, also once its client has left (vllm#46283)."""
    request, name = body(COMPLETIONS, LONG_PROMPTS[7]), uuid.uuid4().hex
    ask_prefill = {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    given = await _by_hand(session, engines.prefill.url, request | ask_prefill, name)
    params = {"kv_transfer_params": given["kv_transfer_params"]}
    assert params["kv_transfer_params"]["transfer_mode"] == "push"
    decode = _by_hand(
        session, engines.decodes[0].url, request | params, name if same else name[::-1]
    )
    if same:
        assert (await decode)["usage"]["completion_tokens"] == 24
    else:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(decode, 3)
    await observe.settled(session, engines.all[: 1 + same], within=LEASE_SECONDS + 10)
