"""Claims: an image is encoded once, by the encode engine, and answers are those of an engine that
encodes itself; they are made of what the encode engine has stored.

ECExampleConnector: a folder for each embedding. Both engines are real and have a tiny LLaVA.
"""

import base64
import random
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.engines import observe
from tests.engines.conftest import Engines, fleet_of, router_of, started
from tests.engines.fleet import ENCODE_SPECS, MODEL, embeddings_of, service
from tests.engines.layout import layout
from tests.engines.service import Service
from tests.engines.traffic import CHAT, Answer, ask


@pytest.fixture
async def _whole_fleet() -> None:
    """These tests have engines of their own."""


@pytest.fixture(scope="module")
def embeddings() -> Iterator[Path]:
    """The engines' folder, empty."""
    folder = embeddings_of(layout())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def engines(embeddings: Path) -> Iterator[Engines]:
    """The encode engine is in the place of a prefill engine."""
    where = layout()
    yield from fleet_of([service(spec, where) for spec in ENCODE_SPECS])


@pytest.fixture(scope="module")
def router(engines: Engines) -> Iterator[Service]:
    yield from started(router_of(engines, layout(), name="encode-router", first="--encode"))


SIDE = 56
"""Pixels: an image is 16 embeddings."""


def _png(seed: int) -> bytes:
    """An image that no other seed gives."""
    rows = b"".join(
        b"\0" + random.Random(f"{seed} {row}").randbytes(3 * SIDE) for row in range(SIDE)
    )
    parts = {
        b"IHDR": struct.pack("!IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0),
        b"IDAT": zlib.compress(rows),
        b"IEND": b"",
    }
    chunks = (
        struct.pack("!I", len(data)) + name + data + struct.pack("!I", zlib.crc32(name + data))
        for name, data in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def body(*seeds: int, **more: Any) -> dict[str, Any]:
    """A greedy request about images."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": "def look():"}]
    for seed in seeds:
        url = f"data:image/png;base64,{base64.b64encode(_png(seed)).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    settings = {"model": MODEL, "temperature": 0, "max_tokens": 16, "ignore_eos": True}
    messages = [{"role": "user", "content": parts}]
    return {"messages": messages, "return_token_ids": True, **settings, **more}


def _stored(folder: Path) -> set[Path]:
    """The embeddings. A folder of one may be empty: the engine that looks for it makes it."""
    return set(folder.glob("*/encoder_cache.safetensors"))


def _exchange(first: Path, second: Path) -> None:
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def encoded(engine: Service) -> int:
    """Images that it has encoded since its start, by its log."""
    found = re.findall(r"encoder inputs: (\d+)", engine.log.read_text(errors="replace"))
    return sum(map(int, found))


async def _alone(session: aiohttp.ClientSession, engine: Service, *seeds: int) -> Answer:
    """The answer of one engine, which then forgets what it has encoded."""
    before = encoded(engine)
    answer = await ask(session, engine.url, CHAT, body(*seeds))
    assert answer.status == 200, answer.raw
    await _has_encoded(engine, before + len(seeds))
    await _forget(session, engine)
    return answer


async def _forget(session: aiohttp.ClientSession, engine: Service) -> None:
    async with session.post(f"{engine.url}/reset_encoder_cache") as response:
        assert response.status == 200


async def _has_encoded(engine: Service, count: int) -> None:
    async def look() -> int:
        return encoded(engine)

    await observe.eventually(look, lambda seen: seen == count, within=5)


async def test_images_are_encoded_once_and_answers_equal_one_engines(
    session: aiohttp.ClientSession, engines: Engines, router: Service, embeddings: Path
) -> None:
    encode, [decode] = engines.prefill, engines.decodes
    for seeds in ((1,), (2, 3)):
        alone = await _alone(session, decode, *seeds)
        before = encoded(encode), encoded(decode), len(_stored(embeddings))
        for stream in (False, True, True):
            routed = await ask(session, router.url, CHAT, body(*seeds, stream=stream))
            assert routed.status == 200, routed.raw
            assert routed.words == alone.words
            assert len(routed.token_ids) == 16
        await _has_encoded(encode, before[0] + len(seeds))
        assert encoded(decode) == before[1]
        assert len(_stored(embeddings)) == before[2] + len(seeds)


async def test_an_embedding_that_is_lost_is_made_by_the_next_engine(
    session: aiohttp.ClientSession, engines: Engines, router: Service, embeddings: Path
) -> None:
    [decode] = engines.decodes
    alone = await _alone(session, decode, 11)
    routed = await ask(session, router.url, CHAT, body(11))
    for path in _stored(embeddings):
        path.unlink()
    await _forget(session, decode)
    before = encoded(decode)
    again = await ask(session, router.url, CHAT, body(11))
    assert alone.words == routed.words == again.words
    await _has_encoded(decode, before + 1)


async def test_answers_are_made_of_what_the_encode_engine_has_stored(
    session: aiohttp.ClientSession, engines: Engines, router: Service, embeddings: Path
) -> None:
    """The control of the equal tokens: with the other image's embedding, the answer is the
    other's."""
    [decode] = engines.decodes
    alone = [await _alone(session, decode, seed) for seed in (21, 22)]
    assert alone[0].words != alone[1].words
    before = _stored(embeddings)
    for seed in (21, 22):
        await ask(session, router.url, CHAT, body(seed))
    _exchange(*(_stored(embeddings) - before))
    await _forget(session, decode)
    for seed, other in ((21, alone[1]), (22, alone[0])):
        routed = await ask(session, router.url, CHAT, body(seed))
        assert routed.words == other.words


async def test_without_the_encode_engine_the_next_one_encodes(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    encode, [decode] = engines.prefill, engines.decodes
    alone = await _alone(session, decode, 31)
    encode.kill()
    try:
        before = encoded(decode)
        routed = await ask(session, router.url, CHAT, body(31))
        assert routed.words == alone.words
        await _has_encoded(decode, before + 1)
        name = "pd_router_fallbacks_total"
        found = [s for s in await observe.samples(session, router) if s.name == name]
        assert sum(s.value for s in found if s.labels["leg"] == "encode") == 1
    finally:
        engines.restore()
