"""Engines, the router and ZeroMQ as processes: prompts go where the engines say that they lie."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.e2e.process import Process, serving
from tests.forked import SECONDS
from tests.ports import own_ports
from tests.simulated import Engine
from tests.simulated import engines as simulated_engines

BLOCK = 16


def publisher(port: int, *flags: str) -> Engine:
    """One that publishes KV-cache events."""
    events = ("--kv-events", "--kv-events-port", str(port + 1))
    return Engine(port, *events, "--prompt-tokens-details", "--eos-one-in", "0", *flags)


class Cluster:
    """Engines and a router before them."""

    def __init__(self, client: aiohttp.ClientSession, engines: list[Engine]) -> None:
        self.client = client
        self.engines = engines
        self.router: Process
        self.chance = random.Random(5)

    def ids(self, count: int) -> list[int]:
        """Token ids of letters, that no other prompt has."""
        return [self.chance.choice(range(97, 123)) for _ in range(count)]

    async def ask(self, url: str, **body: Any) -> tuple[str | None, dict[str, Any]]:
        """An answer, and its engine (through the router)."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        whole = {"model": "sim", "max_tokens": 4, **body}
        async with self.client.post(url + path, json=whole) as response:
            document = await response.json()
            assert response.status == 200, document
            return response.headers.get("x-pd-router-endpoint"), document

    async def told(self) -> list[dict[str, Any]]:
        """The /endpoints document."""
        async with self.client.get(f"{self.router.url}/endpoints") as response:
            found: list[dict[str, Any]] = await response.json()
            return found

    async def until(self, holds: Callable[[list[dict[str, Any]]], object]) -> None:
        """Wait for a state of /endpoints."""
        async with asyncio.timeout(SECONDS):
            while not holds(told := await self.told()):
                assert told
                await asyncio.sleep(0.02)

    async def all_live(self) -> None:
        """Wait until all engines' events come."""
        await self.until(lambda told: all(e["kv_events"]["state"] == "live" for e in told))

    async def announced(self, engine: Engine, blocks: int) -> None:
        """Wait until the router knows of so many blocks."""
        await self.until(
            lambda told: any(
                source["held_blocks"] >= blocks
                for entry in told
                if entry["url"] == engine.url
                for source in entry["kv_events"]["sources"]
            )
        )


@asynccontextmanager
async def cluster(
    *flags: str, engines: int = 3, of_engine: tuple[str, ...] = ()
) -> AsyncIterator[Cluster]:
    """Engines, and a router with these flags."""
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    connector = aiohttp.TCPConnector(force_close=True)
    ports = own_ports(range(3 * engines))[::3]  # two neighbours for events stand behind each
    started = [publisher(port, *of_engine) for port in ports]
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:
        made = Cluster(client, started)
        try:
            for engine in started:
                await engine.start()
            urls = [word for engine in started for word in ("--decode", engine.url)]
            more = ("--prefix-cache", "events", "--engine-header", "on", *flags)
            async with serving(*urls, *more) as router:
                made.router = router
                await router.ready()
                await made.all_live()
                yield made
        finally:
            for engine in started:
                await engine.kill()


async def test_a_prompt_follows_the_choice_of_another_router() -> None:
    async with cluster() as running:
        holder = running.engines[2]
        prompt = running.ids(1_600)
        await running.ask(holder.url, prompt=prompt)
        await running.announced(holder, 100)
        for _ in range(6):
            longer = [*prompt, *running.ids(200)]
            engine, answer = await running.ask(running.router.url, prompt=longer)
            assert engine == holder.url
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 1_600


async def test_a_late_router_learns_earlier_blocks_and_a_restart_drops_them() -> None:
    async with cluster(engines=2) as running:
        holder = running.engines[1]
        prompt = running.ids(1_600)
        await running.ask(holder.url, prompt=prompt)
        await running.announced(holder, 100)
        urls = [word for engine in running.engines for word in ("--decode", engine.url)]
        flags = (*urls, "--prefix-cache", "events", "--engine-header", "on")
        async with serving(*flags) as late:
            await late.ready()
            first, running.router = running.router, late
            await running.all_live()
            await running.announced(holder, 100)
            engine, _ = await running.ask(late.url, prompt=[*prompt, *running.ids(200)])
            assert engine == holder.url
            running.router = first
        await holder.kill()
        await holder.start()
        await running.until(
            lambda told: (
                told[1]["kv_events"]["state"] == "live"
                and told[1]["state"] == "up"
                and not told[1]["kv_events"]["sources"][0]["held_blocks"]
            )
        )
        for entry in await running.told():
            if entry["url"] == holder.url:
                assert entry["kv_events"]["is_whole"]


async def test_predictions_equal_found_tokens() -> None:
    """Prompts that share beginnings, on engines too small for all of them."""
    small = ("--total-blocks", "300", "--max-model-len", "4096")
    async with cluster(of_engine=small) as running:
        beginnings = [running.ids(800) for _ in range(12)]
        for number in range(72):
            beginning = running.chance.choice(beginnings)
            prompt = [*beginning, *running.ids(40 + number)]
            await running.ask(running.router.url, prompt=prompt)
        told = await running.told()
        predicted = sum(entry["kv_events"]["predicted_tokens"] for entry in told)
        measured = sum(entry["kv_events"]["measured_tokens"] for entry in told)
        assert predicted > 10_000
        # A block is announced a moment after the answer that it was computed for.
        assert abs(measured - predicted) <= 0.1 * predicted
        async with running.client.get(f"{running.router.url}/metrics") as response:
            text = await response.text()
        assert "pd_router_endpoint_kv_events_state{" in text
        assert (
            f'pd_router_cached_prompt_tokens_total{{endpoint="{told[0]["url"]}",kind="predicted"'
            in text
        )


async def test_a_conversation_is_known_by_the_token_ids_of_its_answers() -> None:
    async with cluster() as running:
        system = "You are a helpful assistant. " * 80
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hi"}]
        asked: dict[str, Any] = {"messages": messages, "return_token_ids": True}
        first, answer = await running.ask(running.router.url, **asked)
        ids = answer["prompt_token_ids"]
        # Another client sends it to the other engines as well: the router learns that only by
        # events.
        for engine in running.engines:
            await running.ask(engine.url, messages=messages)
            await running.announced(engine, len(ids) // BLOCK)
        engines = set()
        for number in range(6):
            reply = {"role": "assistant", "content": f"{number} times hello"}
            more = [*messages, reply, {"role": "user", "content": "And now?"}]
            named, answer = await running.ask(running.router.url, messages=more)
            engines.add(named)
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 500
        assert first is not None
        assert len(engines) == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_ids_are_passed_through_and_learned(*, stream: bool) -> None:
    async with cluster(engines=2) as running:
        text = "Once upon a time there was a router. " * 60
        body = {"prompt": text, "return_token_ids": True, "stream": stream, "max_tokens": 4}
        async with running.client.post(
            f"{running.router.url}/v1/completions", json={"model": "sim", **body}
        ) as response:
            assert b'"prompt_token_ids":[' in await response.read()
        holder = running.engines[1]
        await running.ask(holder.url, prompt=text * 2)
        await running.announced(holder, 2 * len(text) // 4 // BLOCK - 1)
        engine, _ = await running.ask(running.router.url, prompt=text * 2)
        assert engine is not None


async def test_each_worker_follows_the_events_itself() -> None:
    async with cluster("--workers", "2", engines=2) as running:
        holder = running.engines[1]
        prompt = running.ids(1_600)
        await running.ask(holder.url, prompt=prompt)

        async def both_know() -> bool:
            for _ in range(12):  # connections that the kernel deals out
                told = await running.told()
                sources = told[1]["kv_events"]["sources"]
                if not sources or sources[0]["held_blocks"] < 100:
                    return False
            return True

        await _until(both_know)
        for _ in range(12):
            longer = [*prompt, *running.ids(100)]
            engine, _ = await running.ask(running.router.url, prompt=longer)
            assert engine == holder.url


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.05)


async def test_an_engine_without_events_is_logged_and_uses_history() -> None:
    async with (
        cluster(engines=1) as running,
        simulated_engines(1) as (_, [plain]),
        serving("--decode", plain, "--prefix-cache", "events") as router,
    ):
        await router.ready()
        line = await _warning(router)
        assert "--kv-events-config" in line["message"]
        assert "--prefix-cache history" in line["message"]
        running.router = router
        told = await running.told()
        assert told[0]["kv_events"]["state"] is None


async def _warning(router: Process) -> dict[str, Any]:
    async with asyncio.timeout(SECONDS):
        while True:
            for record in router.records:
                if record["level"] == "warning" and "KV-cache events" in record["message"]:
                    return record
            await asyncio.sleep(0.05)
