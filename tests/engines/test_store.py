"""Claims: over a store that engines share, answers are those of one engine, the decode engine loads
the prompt from the store, and what it does not find there is computed and counted.

ExampleConnector: a folder for each prompt, whatever its `cache_salt`, with all its blocks but the
last one. Both engines are real; the store is emptied before each request.
"""

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.engines import observe
from tests.engines.conftest import Engines, fleet_of, router_of, started
from tests.engines.fleet import BLOCK_SIZE, STORE_SPECS, service, store_of
from tests.engines.layout import layout
from tests.engines.service import Service
from tests.engines.traffic import CHAT, COMPLETIONS, LONG_PROMPTS, ask, body

STORE = ("--disagg-connector-type", "store")


@pytest.fixture
async def _whole_fleet() -> None:
    """These tests have engines of their own."""


@pytest.fixture(scope="module")
def store() -> Iterator[Path]:
    """The engines' folder, empty."""
    folder = store_of(layout())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def engines(store: Path) -> Iterator[Engines]:
    """A prefill and a decode engine with the store."""
    where = layout()
    yield from fleet_of([service(spec, where) for spec in STORE_SPECS])


@pytest.fixture(scope="module")
def router(engines: Engines) -> Iterator[Service]:
    yield from started(router_of(engines, layout(), *STORE, name="store-router"))


def _empty(store: Path) -> None:
    for each in store.iterdir():
        shutil.rmtree(each)


def _exchange(store: Path) -> None:
    """Put one prompt's KV cache in the place of the other's, for both."""
    first, second = store.iterdir()
    first.rename(store / "aside")
    second.rename(first)
    (store / "aside").rename(second)


def _found(prompt_tokens: int) -> int:
    """Tokens that ExampleConnector loads. A prompt that is one token longer than its blocks is kept
    under another name than it is looked for."""
    stored, wanted = ((prompt_tokens - less) // BLOCK_SIZE * BLOCK_SIZE for less in (1, 2))
    return wanted if wanted == stored else 0


async def _misses(session: aiohttp.ClientSession, router: Service) -> float:
    labels = {"leg": "decode", "reason": "store_miss"}
    name = "pd_router_fallbacks_total"
    found = [s for s in await observe.samples(session, router) if s.name == name]
    return sum(sample.value for sample in found if sample.labels == labels)


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])
async def test_answers_equal_one_engines_and_their_prompts_are_loaded(
    session: aiohttp.ClientSession,
    engines: Engines,
    router: Service,
    store: Path,
    path: str,
    stream: bool,
) -> None:
    missed = await _misses(session, router)
    for text in LONG_PROMPTS[::3]:
        _empty(store)
        alone = await ask(session, engines.decodes[0].url, path, body(path, text, stream=stream))
        _empty(store)
        before = await observe.loads(session, engines.all)
        routed = await ask(session, router.url, path, body(path, text, stream=stream))
        after = await observe.settled(session, engines.all, within=5)
        assert routed.status == alone.status == 200
        assert len(routed.token_ids) == 24
        assert routed.words == alone.words, text
        length = routed.prompt_tokens
        assert length == alone.prompt_tokens > 2 * BLOCK_SIZE
        computed = [now.computed - then.computed for then, now in zip(before, after, strict=True)]
        assert after[1].transferred - before[1].transferred == _found(length)
        assert computed == [length, length - _found(length)]
        missed += not _found(length)
    assert await _misses(session, router) == missed


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
                _empty(store)
            kind = {"content-type": answer.headers.get("content-type", "text/plain")}
            return web.Response(body=whole, status=answer.status, headers=kind)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", forward)
        async with TestServer(app) as server:
            url = str(server.make_url("")).rstrip("/")
            yield Service("forgetting", url, "/health", (), {}, layout().run)


async def test_what_was_not_stored_is_computed_and_counted(
    session: aiohttp.ClientSession, engines: Engines, store: Path
) -> None:
    """The control: a store that has lost the prompt."""
    [decode] = engines.decodes
    async with _forgetting(engines.prefill, store) as prefill:
        pair = Engines(prefill, (decode,))
        router = router_of(pair, layout(), *STORE, name="missing-router")
        for _ in started(router):
            up = await observe.eventually(
                lambda: observe.up(session, router), lambda seen: len(seen) == 2, within=10
            )
            assert up == {prefill.url, decode.url}
            for number, text in enumerate(LONG_PROMPTS[1::10], 1):
                _empty(store)
                alone = await ask(session, decode.url, COMPLETIONS, body(COMPLETIONS, text))
                _empty(store)
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
    session: aiohttp.ClientSession, engines: Engines, router: Service, store: Path
) -> None:
    """The control of the equal tokens: with another prompt's KV cache in its place, they differ."""
    ids = [list(range(start, start + 200)) for start in (100, 500)]
    requests = [body(COMPLETIONS, "") | {"prompt": each} for each in ids]
    [decode] = engines.decodes
    _empty(store)
    alone = [await ask(session, decode.url, COMPLETIONS, each) for each in requests]
    _exchange(store)
    before = await observe.load(session, decode)
    spoiled = await ask(
        session, router.url, COMPLETIONS, body(COMPLETIONS, "") | {"prompt": ids[0]}
    )
    after = await observe.load(session, decode)
    assert after.transferred - before.transferred == _found(200)
    assert spoiled.token_ids != alone[0].token_ids
