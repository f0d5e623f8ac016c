"""LMCache's hand-over: disagg_spec, first token, push, notification over ZeroMQ."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import msgpack
import pytest
import zmq
import zmq.asyncio

from router.simulator import EngineConfig, RunningEngine, serve_engine
from tests.simulator.talk import PROMPT, ask, complete, until

SPEC = {
    "req_id": "r1",
    "receiver_host": "decoder",
    "receiver_init_port": [7300, 7301],
    "receiver_alloc_port": [7400, 7401],
}


@pytest.fixture
def inbox() -> Iterator[zmq.asyncio.Socket]:
    """The socket that a router binds."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PULL)
    socket.bind_to_random_port("tcp://127.0.0.1")
    yield socket
    socket.close(linger=0)
    context.term()


def address(inbox: zmq.asyncio.Socket) -> str:
    return inbox.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://")


@pytest.fixture
async def decoder() -> AsyncIterator[RunningEngine]:
    async with serve_engine(EngineConfig(connector="lmcache", eos_one_in=0)) as running:
        yield running


@pytest.fixture
async def sender(decoder, inbox) -> AsyncIterator[RunningEngine]:
    config = EngineConfig(
        connector="lmcache",
        eos_one_in=0,
        receivers={"decoder:7300": decoder.url},
        notify=address(inbox),
    )
    async with serve_engine(config) as running:
        yield running


async def prefill(
    client: aiohttp.ClientSession,
    engine: RunningEngine,
    status: int = 200,
    spec: object = SPEC,
    **body: Any,
) -> Any:
    params = {"ret_first_tok": True, "disagg_spec": spec}
    whole = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": params, **body}
    return await ask(client, engine, status=status, **whole)


async def test_decoder_continues_as_one_engine_would(client, sender, decoder, inbox):
    tokens = (await ask(client, sender, "/tokenize", prompt=PROMPT))["tokens"]
    first = (await prefill(client, sender, prompt=tokens))["kv_transfer_params"]["first_tok"]
    assert isinstance(first, int)
    await inbox.recv()
    head = (await ask(client, sender, "/detokenize", tokens=[first]))["prompt"]
    rest = await complete(client, decoder, prompt=[*tokens, first], max_tokens=7)
    assert decoder.state["tokens"]["external_kv_transfer"] == len(tokens)
    assert decoder.state["tokens"]["local_compute"] == 1
    assert head + rest == await complete(client, sender, max_tokens=8)


async def test_the_router_is_notified_once_per_rank(client, sender, inbox):
    await prefill(client, sender)
    messages = [msgpack.unpackb(await inbox.recv()) for _ in range(2)]
    assert messages == [{"type": "ProxyNotif", "req_id": "r1"}] * 2
    assert await inbox.poll(0) == 0


async def test_the_key_alone_requests_the_first_token(client, sender):
    params = {"ret_first_tok": False}
    answer = await ask(client, sender, prompt=PROMPT, kv_transfer_params=params)
    assert "first_tok" in answer["kv_transfer_params"]
    assert (await ask(client, sender, prompt=PROMPT))["kv_transfer_params"] is None


async def test_notifications_can_be_kept_back(client, sender, inbox):
    await sender.set_faults(drop_notifications=True)
    await prefill(client, sender)
    await until(lambda: sender.state["lmcache"]["pushed"] == 1)
    assert sender.state["lmcache"]["notified"] == 0
    assert await inbox.poll(0) == 0


async def test_an_unknown_receiver_gets_no_prefill(client, sender, decoder):
    await prefill(client, sender, spec={**SPEC, "receiver_host": "elsewhere"})
    await until(lambda: sender.state["lmcache"]["lost"] == 1)
    await complete(client, decoder)
    assert decoder.state["tokens"]["external_kv_transfer"] == 0
    assert sender.state["lmcache"]["notified"] == 0


async def test_a_request_id_that_comes_twice_is_counted(client, sender):
    for _ in range(2):
        await prefill(client, sender)
    assert sender.state["lmcache"]["duplicate_ids"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"req_id": None},
        {"receiver_host": 3},
        {"receiver_init_port": 7300},
        {"receiver_init_port": []},
        {"receiver_alloc_port": ["7400"]},
    ],
)
async def test_a_bad_spec_fails_the_request_and_is_counted(client, sender, change):
    await prefill(client, sender, status=500, spec={**SPEC, **change})
    assert sender.state["lmcache"]["bad_specs"] == 1


async def test_without_a_push_the_decoder_computes_the_same_answer(client, sender, decoder):
    assert await complete(client, decoder) == await complete(client, sender)
    assert decoder.state["tokens"]["external_kv_transfer"] == 0
