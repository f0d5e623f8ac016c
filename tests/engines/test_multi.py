"""Claims: engines whose MultiConnector has NIXL and a store are served by the plan of NIXL, and a
decode engine finds the prompt of a direct request in the store.

ExampleConnector keeps a prompt whatever its `cache_salt`, so the store is emptied first.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.engines import observe
from tests.engines.conftest import Engines, fleet_of, router_of, started
from tests.engines.fleet import MULTI_SPECS, service, store_of
from tests.engines.layout import layout
from tests.engines.service import Service
from tests.engines.test_store import _empty, _found
from tests.engines.traffic import CHAT, COMPLETIONS, LONG_PROMPTS, ask, body


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
    """A prefill and a decode engine with NIXL and the store."""
    where = layout()
    yield from fleet_of([service(spec, where) for spec in MULTI_SPECS])


@pytest.fixture(scope="module")
def router(engines: Engines) -> Iterator[Service]:
    yield from started(router_of(engines, layout(), name="multi-router"))


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])
async def test_answers_equal_one_engines_and_their_prompts_are_moved(
    session: aiohttp.ClientSession,
    engines: Engines,
    router: Service,
    store: Path,
    path: str,
    stream: bool,
) -> None:
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
        computed = [now.computed - then.computed for then, now in zip(before, after, strict=True)]
        assert computed == [routed.prompt_tokens, 0], "by NIXL: a store keeps whole blocks"
        assert after[1].transferred - before[1].transferred == routed.prompt_tokens


async def test_a_prompt_that_is_in_the_store_is_not_computed(
    session: aiohttp.ClientSession, engines: Engines, store: Path
) -> None:
    """What a decode engine gets directly, without parameters."""
    [decode] = engines.decodes
    for text in LONG_PROMPTS[:3]:
        _empty(store)
        first = await ask(session, engines.prefill.url, COMPLETIONS, body(COMPLETIONS, text))
        before = await observe.load(session, decode)
        again = await ask(session, decode.url, COMPLETIONS, body(COMPLETIONS, text))
        [after] = await observe.settled(session, [decode], within=5)
        assert again.words == first.words
        assert after.transferred - before.transferred == _found(again.prompt_tokens)
