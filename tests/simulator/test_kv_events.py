"""Simulated engines publish what a real one does, in the form of the version that they pretend."""

import asyncio
import itertools
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgpack
import pytest
import zmq

from router.core.kv_events.batches import read_batch
from router.core.kv_events.block_index import BlockIndex
from router.core.kv_events.parsing import read_event
from router.core.kv_events.source_blocks import SourceBlocks
from router.core.request_facts import PromptTokens
from router.simulator import EngineConfig, RunningEngine, serve_engine
from tests.simulator.talk import ask

SECONDS = 60.0
POLL_MS = 100
SMALL: dict[str, Any] = {
    "total_blocks": 64,
    "max_model_len": 1024,
    "kv_events": True,
    "eos_one_in": 0,
}


class Follower:
    """A subscriber that requests all events so far, repeatedly."""

    def __init__(self, engine: RunningEngine) -> None:
        self._events = engine.engine.events
        self.frames: list[list[bytes]] = []
        self.index = BlockIndex()
        self.blocks = SourceBlocks(self.index)

    async def look(self) -> None:
        """Take all batches from the first on."""
        await asyncio.to_thread(self._replay)
        self.blocks = SourceBlocks(self.index)
        for frames in self.frames[:-1]:
            for raw in read_batch(msgpack, frames[-1]):
                [event] = read_event(raw)
                self.blocks.apply(event)

    def _replay(self) -> None:
        context: zmq.Context[Any] = zmq.Context()
        try:
            socket = context.socket(zmq.DEALER)
            socket.linger = 0
            socket.rcvtimeo = int(1000 * SECONDS)
            socket.connect(self._events.replay_endpoint)
            socket.send_multipart([b"", bytes(8)])
            self.frames = [socket.recv_multipart()]
            while self.frames[-1][-2] != b"\xff" * 8:
                self.frames.append(socket.recv_multipart())
        finally:
            context.destroy(linger=0)

    def held(self, ids: list[int], lora: str | None = None, salt: str | None = None) -> int:
        """Tokens of a prompt in the events."""
        data = array("I", ids).tobytes()
        prompt = PromptTokens(data, len(ids), lora, salt, is_whole=True)
        return self.index.match(prompt).get(self.blocks.bit, 0)


def ids_of(first: int, count: int) -> list[int]:
    """A prompt of letters."""
    return [97 + (first + place * (first + 3)) % 26 for place in range(count)]


@pytest.mark.parametrize(
    ("version", "frames", "form"),
    [("0.11.0", 3, list), ("0.25.1", 3, dict), ("0.26.0", 4, dict), ("0.33.0", 4, dict)],
)
async def test_each_version_has_its_own_form(
    client: aiohttp.ClientSession, version: str, frames: int, form: type
) -> None:
    async with serve_engine(EngineConfig(version=version, **SMALL)) as engine:
        await ask(client, engine, prompt=ids_of(1, 100), max_tokens=1)
        follower = Follower(engine)
        await follower.look()
        assert {len(each) for each in follower.frames} == {frames}
        events = list(read_batch(msgpack, follower.frames[0][-1]))
        assert {type(event) for event in events} == {form}
        assert follower.held(ids_of(1, 100)) == 96


async def test_announced_blocks_are_found_by_the_engine(client: aiohttp.ClientSession) -> None:
    """Sixty prompts through a cache that holds ten: evictions are announced, too."""
    config = EngineConfig(**SMALL, prompt_tokens_details=True)
    async with serve_engine(config) as engine:
        follower = Follower(engine)
        for number in range(60):
            prompt = [*ids_of(number * number % 17, 64), *ids_of(number % 5, 40)]
            await follower.look()
            expected = follower.held(prompt)
            answer = await ask(client, engine, prompt=prompt, max_tokens=20)
            details = answer["usage"]["prompt_tokens_details"] or {"cached_tokens": 0}
            assert details["cached_tokens"] == expected
        assert follower.blocks.held <= config.total_blocks
        await ask(client, engine, "/reset_prefix_cache")
        await follower.look()
        assert follower.blocks.held == 0


async def test_adapters_and_salts_are_announced(client: aiohttp.ClientSession) -> None:
    prompt = ids_of(1, 100)
    async with serve_engine(EngineConfig(**SMALL, loras=["sql"])) as engine:
        await ask(client, engine, model="sql", prompt=prompt, cache_salt="mine", max_tokens=1)
        follower = Follower(engine)
        await follower.look()
        assert follower.held(prompt, "sql", "mine") == 96
        assert follower.held(prompt, "sql") == follower.held(prompt) == 0


async def sources(client: aiohttp.ClientSession, config: EngineConfig) -> Any:
    """The events of such an engine."""
    async with serve_engine(config) as engine:
        answer = await client.get(f"{engine.url}/kv_event_sources")
        return await answer.json()


async def test_an_engine_reports_its_event_address(client: aiohttp.ClientSession) -> None:
    [one] = (await sources(client, EngineConfig(**SMALL, version="0.32.0"))).values()
    [other] = await sources(client, EngineConfig(**SMALL, version="0.33.0"))
    assert one["endpoint"].startswith("tcp://*:")
    assert other["replay_endpoint"].startswith("tcp://*:")
    assert await sources(client, EngineConfig()) == {}


class Subscriber:
    """The PUB socket's other end."""

    def __init__(self, context: zmq.Context[Any], endpoint: str) -> None:
        self._socket = context.socket(zmq.SUB)
        self._socket.rcvtimeo = int(1000 * SECONDS)
        self._socket.subscribe(b"")
        self._socket.connect(endpoint)

    async def has_message(self) -> bool:
        """Whether one comes soon."""
        return bool(await asyncio.to_thread(self._socket.poll, POLL_MS))

    async def message(self) -> list[bytes]:
        """The next one."""
        return await asyncio.to_thread(self._socket.recv_multipart)


@asynccontextmanager
async def following(
    client: aiohttp.ClientSession, engine: RunningEngine
) -> AsyncIterator[tuple[Subscriber, int]]:
    """A subscriber of the engine's batches, and the number of the last one. Those that
    are sent before the publisher knows of its subscription are lost."""
    context: zmq.Context[Any] = zmq.Context()
    subscriber = Subscriber(context, engine.engine.events.endpoint)
    try:
        for last in itertools.count():
            await ask(client, engine, prompt=ids_of(100 + last, 40), max_tokens=1)
            if await subscriber.has_message():
                break
        while int.from_bytes((await subscriber.message())[1], "big") < last:
            pass
        yield subscriber, last
    finally:
        context.destroy(linger=0)


async def test_lost_batches_are_kept_for_replay(client: aiohttp.ClientSession) -> None:
    async with (
        serve_engine(EngineConfig(**SMALL)) as engine,
        following(client, engine) as (subscriber, first),
    ):
        await engine.set_faults(lose_kv_events=True)
        await ask(client, engine, prompt=ids_of(2, 100), max_tokens=1)
        await engine.clear_faults()
        await ask(client, engine, prompt=ids_of(3, 100), max_tokens=1)
        assert int.from_bytes((await subscriber.message())[1], "big") > first + 1
        follower = Follower(engine)
        await follower.look()
        assert follower.held(ids_of(2, 100)) == 96


@pytest.mark.parametrize("in_reverse", [False, True])
async def test_held_batches_arrive_together_in_the_requested_order(
    client: aiohttp.ClientSession, in_reverse: bool
) -> None:
    async with (
        serve_engine(EngineConfig(**SMALL)) as engine,
        following(client, engine) as (subscriber, first),
    ):
        await engine.set_faults(hold_kv_events=3, reverse_kv_events=in_reverse)
        for number in (2, 3, 4):
            await ask(client, engine, prompt=ids_of(number, 100), max_tokens=1)
        came = [int.from_bytes((await subscriber.message())[1], "big") for _ in range(3)]
        numbers = [first + 1, first + 2, first + 3]
        assert came == (numbers[::-1] if in_reverse else numbers)


async def test_forged_messages_follow_and_are_not_kept(client: aiohttp.ClientSession) -> None:
    async with (
        serve_engine(EngineConfig(**SMALL)) as engine,
        following(client, engine) as (subscriber, first),
    ):
        await engine.set_faults(forge_kv_events=True)
        await ask(client, engine, prompt=ids_of(2, 100), max_tokens=1)
        true, *forged = [await subscriber.message() for _ in range(9)]
        assert int.from_bytes(true[1], "big") == first + 1
        assert forged[0] == [b"kv-events"]
        assert forged[-1] == [b"kv-events", bytes(8), true[2]]
        follower = Follower(engine)
        await follower.look()
        numbers = [int.from_bytes(frames[-2], "big") for frames in follower.frames[:-1]]
        assert numbers == list(range(len(numbers)))
