"""A store that engines share: what one has computed, another one loads."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.simulator import ConfigError, EngineConfig, serve_engine
from tests.simulator.talk import PROMPT, ask, complete


async def _cached(client: aiohttp.ClientSession, prefill: Any, decode: Any, **more: Any) -> int:
    """Tokens that the second engine found of the first one's prompt, with the same answer."""
    common: dict[str, Any] = {"model": "sim", "prompt_tokens_details": True}
    async with (
        serve_engine(EngineConfig(**common, **prefill)) as first,
        serve_engine(EngineConfig(**common, **decode)) as second,
    ):
        text = await complete(client, first)
        answer = await ask(client, second, prompt=PROMPT, max_tokens=8, **more)
        if not more:
            assert answer["choices"][0]["text"] == text
        moved: int = second.state["tokens"]["external_kv_transfer"]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == moved
        return moved


async def test_all_full_blocks_are_found(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    store = {"connector": "store", "store": str(tmp_path)}
    found = await _cached(client, store, store)
    async with serve_engine(EngineConfig()) as engine:
        size = (await ask(client, engine, prompt=PROMPT))["usage"]["prompt_tokens"]
    assert found == min(size // 16 * 16, size - 1)


async def test_nothing_is_found_elsewhere(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Not in another store, before it is published, or with another salt."""
    store = {"connector": "store", "store": str(tmp_path)}
    other = tmp_path / "other"
    other.mkdir()
    assert await _cached(client, store, store | {"store": str(other)}, cache_salt="a") == 0
    assert await _cached(client, store, store | {"store": str(other)}) == 0
    third = tmp_path / "third"
    third.mkdir()
    late = {"connector": "store", "store": str(third), "store_delay_s": 3600.0}
    assert await _cached(client, late, late) == 0


@pytest.mark.parametrize("given", [{"connector": "store"}, {"store": "/tmp"}])
def test_a_store_needs_its_folder(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="store: needed"):
        EngineConfig(**given)  # type: ignore[arg-type]
