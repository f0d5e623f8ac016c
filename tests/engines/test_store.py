"""The controls of a common store in test_connector_matrix.py: what it has lost is computed and
counted, and what it holds is what the answer is made of.

ExampleConnector: a folder for each prompt, whatever its `cache_salt`, with all its blocks but the
last one. Both engines are real; the store is emptied before each request.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.engines import observe
from tests.engines.conftest import Engines, router_of, started
from tests.engines.connectors import Pair, empty, pair_of, stored
from tests.engines.layout import layout
from tests.engines.service import Service
from tests.engines.traffic import COMPLETIONS, LONG_PROMPTS, ask, body


@pytest.fixture
async def _whole_fleet() -> None:
    """These tests have engines of their own."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with pair_of("store") as found:
        yield found


def _exchange(store: Path) -> None:
    """Put one prompt's KV cache in the place of the other's, for both."""
    first, second = store.iterdir()
    first.rename(store / "aside")
    second.rename(first)
    (store / "aside").rename(second)


async def _misses(session: aiohttp.ClientSession, router: Service) -> float:
    labels = {"leg": "decode", "reason": "store_miss"}
    name = "pd_router_fallbacks_total"
    found = [s for s in await observe.samples(session, router) if s.name == name]
    return sum(sample.value for sample in found if sample.labels == labels)


@asynccontextmanager
async def _forgetting(engine: Service, store: Path) -> AsyncIterator[Service]:
    """A proxy before an engine, which empties the store once a prompt has been put there."""
    async with aiohttp.ClientSession(engine.url, auto_decompress=False) as session:

        async def forward(request: web.Request) -> web.Response:
            body = await request.read()
            async with session.request(
                request.method, request.path, data=body, headers=request.headers
            ) as answer:
                whole = await answer.read()
            if request.method == "POST":
                empty(store)
            kind = {"content-type": answer.headers.get("content-type", "text/plain")}
            return web.Response(body=whole, status=answer.status, headers=kind)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", forward)
        async with TestServer(app) as server:
            url = str(server.make_url("")).rstrip("/")
            yield Service("forgetting", url, "/health", (), {}, layout().run)


async def test_what_was_not_stored_is_computed_and_counted(
    session: aiohttp.ClientSession, pair: Pair
) -> None:
    """The control: a store that has lost the prompt."""
    engines, decode, store = pair.engines, pair.alone, pair.store
    async with _forgetting(engines.prefill, store) as prefill:
        engines_seen = Engines(prefill, (decode,))
        flags = pair.connector.flags
        router = router_of(engines_seen, layout(), *flags, name="missing-router")
        for _ in started(router):
            up = await observe.eventually(
                lambda: observe.up(session, router), lambda seen: len(seen) == 2, within=10
            )
            assert up == {prefill.url, decode.url}
            for number, text in enumerate(LONG_PROMPTS[1::10], 1):
                empty(store)
                alone = await ask(session, decode.url, COMPLETIONS, body(COMPLETIONS, text))
                empty(store)
                before = await observe.loads(session, engines.all)
                routed = await ask(session, router.url, COMPLETIONS, body(COMPLETIONS, text))
                after = await observe.settled(session, engines.all, within=5)
                assert routed.words == alone.words
                assert [now.transferred for now in after] == [then.transferred for then in before]
                pairs = zip(before, after, strict=True)
                computed = [now.computed - then.computed for then, now in pairs]
                assert computed == [routed.prompt_tokens] * 2
                assert await _misses(session, router) == number


async def test_what_is_in_the_store_is_what_the_answer_is_made_of(
    session: aiohttp.ClientSession, pair: Pair
) -> None:
    """The control of the equal tokens: with another prompt's KV cache in its place, they differ."""
    ids = [list(range(start, start + 200)) for start in (100, 500)]
    requests = [body(COMPLETIONS, "") | {"prompt": each} for each in ids]
    decode, store = pair.alone, pair.store
    empty(store)
    alone = [await ask(session, decode.url, COMPLETIONS, each) for each in requests]
    _exchange(store)
    before = await observe.load(session, decode)
    spoiled = await ask(
        session, pair.router.url, COMPLETIONS, body(COMPLETIONS, "") | {"prompt": ids[0]}
    )
    after = await observe.load(session, decode)
    assert after.transferred - before.transferred == stored(200)
    assert spoiled.token_ids != alone[0].token_ids
