"""An encode pool from end to end: answers equal those of one engine, and each image is encoded
once, by an encode engine while there is one."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.simulator import EngineConfig, RunningEngine, serve_engine
from tests.e2e.connectors import ask, router_process, urls
from tests.e2e.test_connectors import CHAT, MODEL, STREAM, compare


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def body(*images: str, **more: Any) -> dict[str, Any]:
    """A chat about images."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": "What is this?"}]
    for name in images:
        url = f"data:image/png;base64,{name}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    messages = [{"role": "user", "content": parts}]
    return {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0, **more}


REQUESTS = [body("a"), body("a", **STREAM), body("b", "a"), body("a", "b", "c", **STREAM), body()]


def encoded(*engines: RunningEngine) -> int:
    """Images that engines have encoded."""
    return sum(engine.state["encoder"]["encoded"] for engine in engines)


@pytest.mark.parametrize("is_remote", [False, True], ids=["direct", "remote prefill"])
async def test_each_image_is_encoded_once_and_found_by_the_next_engine(
    session: aiohttp.ClientSession, tmp_path: Path, is_remote: bool
) -> None:
    known: dict[str, Any] = {"model": MODEL, "encoder_cache": str(tmp_path)}
    async with (
        serve_engine(EngineConfig(model=MODEL)) as alone,
        serve_engine(EngineConfig(**known, role="encode")) as e0,
        serve_engine(EngineConfig(**known, role="encode")) as e1,
        serve_engine(EngineConfig(**known, role="prefill")) as prefill,
        serve_engine(EngineConfig(**known, role="decode")) as decode,
        router_process(
            *("--encode", urls([e0, e1]), "--decode", decode.url, "--routing-threshold", "0"),
            *(("--prefill", prefill.url) if is_remote else ()),
        ) as router,
    ):
        for request in REQUESTS:
            await compare(session, router, alone.url, CHAT, request)
        assert encoded(e0, e1) == 3
        assert encoded(prefill, decode) == 0
        computing = prefill if is_remote else decode
        assert computing.state["encoder"]["found"] == 3
        for engine in (e0, e1):
            engine.engine.die()
        await compare(session, router, alone.url, CHAT, body("d", **STREAM))
        assert (encoded(e0, e1), encoded(computing)) == (3, 1)
        async with session.get(f"{router}/metrics") as response:
            page = await response.text()
    lines = [line for line in page.splitlines() if 'fallbacks_total{leg="encode"' in line]
    assert sum(float(line.split()[-1]) for line in lines) == 1


async def test_an_encode_engine_joins_by_the_file(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    known: dict[str, Any] = {"model": MODEL, "encoder_cache": str(tmp_path)}
    async with (
        serve_engine(EngineConfig(**known, role="encode")) as encode,
        serve_engine(EngineConfig(**known, role="decode")) as decode,
    ):
        path = tmp_path / "engines.json"
        path.write_text(f'{{"decode": ["{decode.url}"], "encode": ["{encode.url}"]}}')
        async with router_process("--engines-file", str(path)) as router:
            outcome = await ask(session, router, CHAT, body("a"))
    assert outcome.status == 200
    assert (encoded(encode), encoded(decode)) == (1, 0)
