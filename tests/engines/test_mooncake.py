"""Claims: over MooncakeConnector answers are those of one engine, the decode engine computes no
prompt token, what a client leaves behind is freed, and a restarted prefill engine is used again.

`vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}` counts what was really written.
"""

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import aiohttp
import orjson
import pytest

from tests.engines import lab, observe
from tests.engines.conftest import Engines, fleet_of, router_of, started
from tests.engines.fleet import MOONCAKE_SECONDS, MOONCAKE_SPECS, service
from tests.engines.layout import layout
from tests.engines.service import Service
from tests.engines.traffic import CHAT, COMPLETIONS, LONG_PROMPTS, ask, body

BOOTSTRAP = f"http://127.0.0.1:{MOONCAKE_SPECS[0].side_channel}"
MOONCAKE = (
    *("--disagg-connector-type", "mooncake"),
    *("--mooncake-bootstrap-port", str(MOONCAKE_SPECS[0].side_channel)),
)


@pytest.fixture
async def _whole_fleet() -> None:
    """These tests have engines of their own."""


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """A prefill and a decode engine."""
    where = layout()
    yield from fleet_of([service(spec, where) for spec in MOONCAKE_SPECS])


@pytest.fixture(scope="module")
def router(engines: Engines) -> Iterator[Service]:
    yield from started(router_of(engines, layout(), *MOONCAKE, name="mooncake-router"))


async def _compare(
    session: aiohttp.ClientSession, engines: Engines, router: Service, path: str, **more: Any
) -> None:
    """Ten prompts, each with the tokens of one engine, and computed by the prefill engine alone."""
    for text in LONG_PROMPTS[::3]:
        alone = await ask(session, engines.decodes[0].url, path, body(path, text, **more))
        before = await observe.loads(session, engines.all)
        routed = await ask(session, router.url, path, body(path, text, **more))
        after = await observe.settled(session, engines.all, within=5)
        assert routed.status == alone.status == 200
        assert len(routed.token_ids) == 24
        assert routed.words == alone.words, text
        computed = [now.computed - then.computed for then, now in zip(before, after, strict=True)]
        assert computed == [routed.prompt_tokens, 0]
        assert after[1].transferred - before[1].transferred == routed.prompt_tokens


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])
async def test_answers_equal_one_engines_and_their_prompts_are_written(
    session: aiohttp.ClientSession, engines: Engines, router: Service, path: str, stream: bool
) -> None:
    await _compare(session, engines, router, path, stream=stream)


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
    """vllm#50425: whichever leg is running, both engines free everything in the end."""
    requests = [body(CHAT, text, stream=True, max_tokens=2000) for text in LONG_PROMPTS[:4]]
    asked = [asyncio.create_task(ask(session, router.url, CHAT, each)) for each in requests]
    await asyncio.sleep(seconds)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await observe.settled(session, engines.all, within=MOONCAKE_SECONDS + 10)
    answer = await ask(session, router.url, CHAT, body(CHAT, LONG_PROMPTS[5]))
    assert len(answer.token_ids) == 24


async def _post(session: aiohttp.ClientSession, url: str, request: dict[str, Any]) -> Any:
    async with session.post(url + COMPLETIONS, json=request) as response:
        answer = orjson.loads(await response.read())
        assert response.status == 200, answer
    return answer


async def _keep(session: aiohttp.ClientSession, engine: Service, request: dict[str, Any]) -> str:
    """Let a prefill engine keep a prompt by hand. Returns its transfer id."""
    name = f"xfer-{uuid.uuid4().hex}"
    params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": name}
    answer = await _post(
        session, engine.url, request | {"max_tokens": 1, "kv_transfer_params": params}
    )
    assert answer["kv_transfer_params"] is None
    return name


async def _load(session: aiohttp.ClientSession, transfer_id: str) -> dict[str, Any]:
    async with session.get(f"{BOOTSTRAP}/query") as response:
        listed = await response.json()
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_bootstrap_addr": BOOTSTRAP,
        "remote_engine_id": listed["0"]["engine_id"],
        "transfer_id": transfer_id,
    }


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "another"])
async def test_what_was_kept_is_what_the_answer_is_made_of(
    session: aiohttp.ClientSession, engines: Engines, is_own: bool
) -> None:
    """The control of the equal tokens: with another prompt's transfer id, they differ."""
    first, second = (
        body(COMPLETIONS, "") | {"prompt": list(range(start, start + 200))} for start in (100, 500)
    )
    [decode] = engines.decodes
    alone = await ask(session, decode.url, COMPLETIONS, first)
    names = [await _keep(session, engines.prefill, each) for each in (first, second)]
    again = first | {"cache_salt": uuid.uuid4().hex}
    loaded = again | {"kv_transfer_params": await _load(session, names[not is_own])}
    before = await observe.load(session, decode)
    answer = await ask(session, decode.url, COMPLETIONS, loaded)
    after = await observe.load(session, decode)
    assert after.transferred - before.transferred == 200
    assert (answer.token_ids == alone.token_ids) is is_own
    await observe.settled(session, engines.all, within=MOONCAKE_SECONDS + 10)


async def test_a_restarted_prefill_engine_is_used_under_its_new_id(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    """The last test: smg#2491. Until it is back, the decode engine computes the prompts."""
    before = await _load(session, "")
    engines.prefill.stop()
    answer = await ask(session, router.url, CHAT, body(CHAT, LONG_PROMPTS[1]))
    assert (answer.status, len(answer.token_ids)) == (200, 24)
    lab.start(layout(), engines.all)
    assert (await _load(session, ""))["remote_engine_id"] != before["remote_engine_id"]
    urls = {engine.url for engine in engines.all}
    up = await observe.eventually(
        lambda: observe.up(session, router), lambda seen: seen == urls, within=10
    )
    assert up == urls
    await _compare(session, engines, router, CHAT)
