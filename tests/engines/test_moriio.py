"""Claims: over MoRIIOConnector in WRITE mode answers are those of one engine, and the decode engine
computes no prompt token; in READ mode it answers direct requests wrongly, which its counter shows.

The connector is vLLM's; only the library below it is a stand-in (`standins/mori/io.py`), as there
is no AMD GPU. `vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}` counts what was
really written.
"""

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest

from tests.engines import observe
from tests.engines.conftest import Engines, fleet_of, router_of, started
from tests.engines.fleet import MORIIO_SPECS, service
from tests.engines.layout import layout
from tests.engines.service import Service
from tests.engines.traffic import CHAT, COMPLETIONS, LONG_PROMPTS, ask, body


@pytest.fixture
async def _whole_fleet() -> None:
    """These tests have engines of their own."""


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """A prefill engine, the decode engine that it writes to, and one in READ mode."""
    where = layout()
    yield from fleet_of([service(spec, where) for spec in MORIIO_SPECS])


@pytest.fixture(scope="module")
def router(engines: Engines) -> Iterator[Service]:
    """A router in front of the pair."""
    pair = Engines(engines.prefill, engines.decodes[:1])
    more = MORIIO_SPECS[1].more
    options = (
        *("--disagg-connector-type", "moriio"),
        *("--moriio-handshake-port", str(more["handshake_port"])),
        *("--moriio-notify-port", str(more["notify_port"])),
    )
    yield from started(router_of(pair, layout(), *options, name="moriio-router"))


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])
async def test_answers_equal_one_engines_and_their_prompts_are_written(
    session: aiohttp.ClientSession, engines: Engines, router: Service, path: str, stream: bool
) -> None:
    pair = engines.all[:2]
    for text in LONG_PROMPTS[::3]:
        alone = await ask(session, engines.decodes[0].url, path, body(path, text, stream=stream))
        before = await observe.loads(session, pair)
        routed = await ask(session, router.url, path, body(path, text, stream=stream))
        after = await observe.settled(session, pair, within=5)
        assert routed.status == alone.status == 200
        assert routed.words == alone.words, text
        computed = [now.computed - then.computed for then, now in zip(before, after, strict=True)]
        assert computed == [routed.prompt_tokens, 0]
        assert after[1].transferred - before[1].transferred == routed.prompt_tokens


async def test_six_at_once(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    """Each decode request gets the blocks of its own prefill."""
    asked = [body(COMPLETIONS, text) for text in LONG_PROMPTS[:6]]
    alone = [await ask(session, engines.decodes[0].url, COMPLETIONS, each) for each in asked]
    asked = [body(COMPLETIONS, text) for text in LONG_PROMPTS[:6]]
    routed = await asyncio.gather(*(ask(session, router.url, COMPLETIONS, one) for one in asked))
    await observe.settled(session, engines.all[:2], within=5)
    assert [answer.words for answer in routed] == [answer.words for answer in alone]


async def test_a_direct_request_in_read_mode_is_answered_wrongly_and_counts_as_loaded(
    session: aiohttp.ClientSession, engines: Engines
) -> None:
    """Why READ mode is not supported, and how `check --try` finds it."""
    request = body(COMPLETIONS, LONG_PROMPTS[0])
    right, wrong = [await ask(session, each.url, COMPLETIONS, request) for each in engines.decodes]
    assert wrong.status == right.status == 200
    assert wrong.token_ids != right.token_ids
    assert (await observe.load(session, engines.decodes[1])).transferred == wrong.prompt_tokens - 1
