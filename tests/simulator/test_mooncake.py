"""MooncakeConnector: blocks are kept under a transfer id, and sent once."""

from typing import Any

import aiohttp
import pytest

from router.simulator import EngineConfig, RunningEngine, serve_engine
from tests.simulator.talk import PROMPT, ask, complete

MOONCAKE: dict[str, Any] = {"connector": "mooncake"}
KEEP = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "xfer-1"}


def prefill_engine(**more: Any) -> Any:
    """One that listens."""
    return serve_engine(EngineConfig(**MOONCAKE | more, role="prefill"))


def decode_engine(**more: Any) -> Any:
    """One that listens, and soon gives up blocks that do not come."""
    return serve_engine(EngineConfig(**MOONCAKE | more, role="decode", kv_lease_s=0.05))


async def prefill(client: aiohttp.ClientSession, engine: RunningEngine, **more: Any) -> None:
    """Compute PROMPT and keep it as xfer-1."""
    request = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": KEEP, **more}
    answer = await ask(client, engine, **request)
    assert answer["kv_transfer_params"] is None


async def load(client: aiohttp.ClientSession, source: RunningEngine, **more: Any) -> dict[str, Any]:
    """The parameters of a decode request."""
    async with client.get(source.url + "/query") as reply:
        listed = await reply.json()
    return {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_bootstrap_addr": source.url,
        "remote_engine_id": listed["0"]["engine_id"],
        "transfer_id": "xfer-1",
        **more,
    }


def moved(engine: RunningEngine) -> int:
    """Prompt tokens from another engine."""
    tokens: int = engine.state["tokens"]["external_kv_transfer"]
    return tokens


async def test_the_answer_is_that_of_one_engine(client: aiohttp.ClientSession) -> None:
    async with prefill_engine() as first, decode_engine() as second:
        alone = await complete(client, second)
        await ask(client, second, "/reset_prefix_cache")
        await prefill(client, first)
        assert first.state["pinned_blocks"] > 0
        params = await load(client, first)
        assert await complete(client, second, kv_transfer_params=params) == alone
        assert moved(second) > 0
        assert first.state["pinned_blocks"] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"transfer_id": "xfer-2"},
        {"remote_engine_id": "another"},
        {"remote_bootstrap_addr": "http://127.0.0.1:1"},
    ],
)
async def test_a_load_by_wrong_parameters_fails(
    client: aiohttp.ClientSession, wrong: dict[str, str]
) -> None:
    async with prefill_engine() as first, decode_engine() as second:
        await prefill(client, first, kv_transfer_params=KEEP)
        params = await load(client, first, **wrong)
        await ask(client, second, status=500, prompt=PROMPT, kv_transfer_params=params)
        assert second.state["loads"]["failed"] == 1
        assert moved(second) == 0


async def test_blocks_are_sent_once(client: aiohttp.ClientSession) -> None:
    async with prefill_engine() as first, decode_engine(prefix_caching=False) as second:
        await prefill(client, first)
        params = await load(client, first)
        await complete(client, second, kv_transfer_params=params)
        await ask(client, second, status=500, prompt=PROMPT, kv_transfer_params=params)
        assert first.state["references"]["reused"] == 1


async def test_only_a_prefill_that_its_limit_ended_keeps_its_blocks(
    client: aiohttp.ClientSession,
) -> None:
    async with prefill_engine() as first:
        await prefill(client, first, prompt=PROMPT + "<<eos:1>>", max_tokens=5)
        assert first.state["references"]["issued"] == 0
        await prefill(client, first, kv_transfer_params=KEEP | {"transfer_id": None})
        assert first.state["references"]["issued"] == 0


async def test_blocks_that_nobody_asks_for_are_freed_in_the_end(
    client: aiohttp.ClientSession,
) -> None:
    async with prefill_engine(kv_lease_s=0.0) as first:
        await prefill(client, first)
        assert first.state["references"]["expired"] == 1
        assert first.state["pinned_blocks"] == 0


async def test_the_other_role_ends_an_engine(client: aiohttp.ClientSession) -> None:
    """An assertion of its scheduler."""
    async with prefill_engine() as first, decode_engine() as second:
        params = await load(client, first)
        await ask(client, first, status=500, prompt=PROMPT, kv_transfer_params=params)
        await ask(client, second, status=500, prompt=PROMPT, kv_transfer_params=KEEP)
        assert first.state["dead"]
        assert second.state["dead"]


async def test_an_engine_of_both_roles_is_none_of_them(client: aiohttp.ClientSession) -> None:
    async with serve_engine(EngineConfig(**MOONCAKE)) as engine:
        alone = await complete(client, engine)
        await prefill(client, engine)
        await ask(client, engine, "/reset_prefix_cache")
        params = await load(client, engine)
        assert await complete(client, engine, kv_transfer_params=params) == alone


async def test_an_engine_that_was_seen_is_asked_although_it_is_gone(
    client: aiohttp.ClientSession,
) -> None:
    """Its address is kept by its id, so the decode engine waits as for unknown blocks."""
    async with decode_engine(prefix_caching=False) as second:
        async with prefill_engine() as first:
            await prefill(client, first)
            params = await load(client, first)
            await complete(client, second, kv_transfer_params=params)
        await ask(client, second, status=500, prompt=PROMPT, kv_transfer_params=params)


async def test_a_refused_decode_request_frees_the_blocks(client: aiohttp.ClientSession) -> None:
    async with prefill_engine() as first, decode_engine() as second:
        await prefill(client, first)
        params = await load(client, first)
        request: dict[str, Any] = {"prompt": PROMPT, "kv_transfer_params": params}
        await ask(client, second, status=400, max_tokens=-1, **request)
        while first.state["pinned_blocks"]:
            await complete(client, second, prompt="a few more steps")
