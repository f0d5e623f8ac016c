"""MoRIIOConnector in WRITE mode: blocks are written once, into the engine that is named."""

import asyncio
from typing import Any, Literal

import aiohttp
import pytest

from router.simulator import EngineConfig, RunningEngine, serve_engine
from tests.net.harness import eventually
from tests.simulator.talk import PROMPT, ask, complete


def engine(role: Literal["prefill", "decode"], **more: Any) -> Any:
    """One that listens."""
    return serve_engine(EngineConfig(connector="moriio", role=role, **more))


def keep(target: RunningEngine, **more: Any) -> dict[str, Any]:
    """The parameters of a prefill request."""
    return {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": "127.0.0.1",
        "remote_handshake_port": target.port,
        "remote_notify_port": target.port,
        "transfer_id": "tx-1",
        **more,
    }


async def prefill(
    client: aiohttp.ClientSession, source: RunningEngine, target: RunningEngine, **more: Any
) -> Any:
    """Compute PROMPT for a decode engine. Returns its reference."""
    request = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": keep(target), **more}
    return (await ask(client, source, **request))["kv_transfer_params"]


def moved(decode: RunningEngine) -> int:
    """Prompt tokens from another engine."""
    tokens: int = decode.state["tokens"]["external_kv_transfer"]
    return tokens


async def waits(
    client: aiohttp.ClientSession, source: RunningEngine, decode: RunningEngine, params: Any
) -> None:
    """The prefill engine writes nothing, and the decode engine goes on waiting."""
    before = source.state["references"]["unknown"]
    asked = asyncio.ensure_future(
        ask(client, decode, prompt=PROMPT, max_tokens=4, kv_transfer_params=params)
    )
    await eventually(lambda: source.state["references"]["unknown"] > before)
    assert decode.state["loading"] == 1
    asked.cancel()


async def test_the_answer_is_that_of_one_engine(client: aiohttp.ClientSession) -> None:
    async with engine("prefill") as first, engine("decode") as second:
        alone = await complete(client, second)
        await ask(client, second, "/reset_prefix_cache")
        params = await prefill(client, first, second)
        assert first.state["pinned_blocks"] > 0
        assert await complete(client, second, kv_transfer_params=params) == alone
        assert moved(second) > 0
        assert first.state["pinned_blocks"] == 0


async def test_blocks_are_written_into_the_named_engine_alone(
    client: aiohttp.ClientSession,
) -> None:
    async with engine("prefill") as first, engine("decode") as second, engine("decode") as third:
        params = await prefill(client, first, third)
        await waits(client, first, second, params)
        await complete(client, third, kv_transfer_params=params)
        assert moved(third) > 0


async def test_blocks_are_written_once(client: aiohttp.ClientSession) -> None:
    async with engine("prefill") as first, engine("decode", prefix_caching=False) as second:
        params = await prefill(client, first, second)
        await complete(client, second, kv_transfer_params=params)
        await waits(client, first, second, params)


async def test_a_prefill_engine_does_not_find_a_decode_engine_that_has_restarted(
    client: aiohttp.ClientSession,
) -> None:
    """It keeps the registered memory by host and port (moriio_connector.py, _remote_agents)."""
    async with engine("prefill") as first:
        async with engine("decode") as second:
            params = await prefill(client, first, second)
            await complete(client, second, kv_transfer_params=params)
            port = second.port
        async with engine("decode", port=port) as again:
            await waits(client, first, again, await prefill(client, first, again))


async def test_only_a_prefill_that_its_limit_ended_keeps_its_blocks(
    client: aiohttp.ClientSession,
) -> None:
    async with engine("prefill") as first, engine("decode") as second:
        ended = await prefill(client, first, second, prompt=PROMPT + "<<eos:1>>", max_tokens=5)
        assert ended is None
        assert first.state["references"]["issued"] == 0


@pytest.mark.parametrize(
    "missing",
    [
        *("remote_host", "remote_handshake_port", "remote_notify_port"),
        *("remote_engine_id", "remote_block_ids"),
    ],
)
async def test_a_prefill_engine_ends_without_any_of_the_addresses(
    client: aiohttp.ClientSession, missing: str
) -> None:
    """An exception in its scheduler (moriio_common.py, add_new_req)."""
    async with engine("prefill") as first, engine("decode") as second:
        params = keep(second)
        del params[missing]
        await ask(client, first, status=500, prompt=PROMPT, kv_transfer_params=params)
        assert first.state["dead"]


async def test_the_other_role_ends_an_engine(client: aiohttp.ClientSession) -> None:
    async with engine("prefill") as first, engine("decode") as second:
        params = await prefill(client, first, second)
        await ask(client, first, status=500, prompt=PROMPT, kv_transfer_params=params)
        await ask(client, second, status=500, prompt=PROMPT, kv_transfer_params=keep(first))
        assert first.state["dead"]
        assert second.state["dead"]
