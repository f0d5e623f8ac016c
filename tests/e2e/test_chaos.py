"""Whatever clients and engines do: no lease, no connection and no task is left behind.

CHAOS_REQUESTS sets the number of requests; `make test` keeps it small.
"""

import asyncio
import gc
import os
import random
import resource
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import aiohttp

from router.net.exchange import Exchange
from router.settings import Settings
from router.simulator import EngineConfig, Faults, serve_engine
from router.web.app import Router
from router.web.server import Server

REQUESTS = int(os.environ.get("CHAOS_REQUESTS", "600"))
AT_ONCE = 48
DEADLINE_SECONDS = 60.0
LONG = "many words that make a long prompt for the prefill engines " * 4

PREFILL = (Faults(reset="request", rate=0.2), Faults(status=500, rate=0.2))
DECODE = (
    Faults(cut_after_tokens=3, rate=0.2),
    Faults(status=503, rate=0.3),
    Faults(reset="request", rate=0.2),
    Faults(status=500, rate=0.1),
)
ENDS = (200, 500, 502, 503)


async def test_chaos_leaves_nothing_behind() -> None:
    async with AsyncExitStack() as stack:
        urls = {}
        for role, faults in (("prefill", PREFILL), ("decode", DECODE)):
            engines = [
                await stack.enter_async_context(serve_engine(_engine(role, fault)))
                for fault in faults
            ]
            urls[role] = tuple(engine.url for engine in engines)
        settings = Settings(
            host="127.0.0.1",
            port=0,
            prefill=urls["prefill"],
            decode=urls["decode"],
            routing_threshold=20,
            load_balancing_strategy="least_loaded",
        )
        router = Router(settings)
        server = Server(router)
        running = asyncio.create_task(server._serve())
        await _eventually(lambda: server.started and _all_up(router))
        port = server.servers[0].sockets[0].getsockname()[1]

        seen = await _storm(f"http://127.0.0.1:{port}", REQUESTS // 4)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seen += await _storm(f"http://127.0.0.1:{port}", REQUESTS - REQUESTS // 4)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(dict(seen), f"peak memory {before} -> {after} KiB")  # shown by pytest -s

        assert seen["wrong"] == 0
        assert seen["good"] > REQUESTS / 3
        await _eventually(lambda: not server.server_state.tasks)
        assert router.fleet.ledger.total() == 0
        assert all(pool.open == pool.idle for pool in router.pools.values())
        assert not router._silence._watched
        gc.collect()
        assert not [thing for thing in gc.get_objects() if type(thing) is Exchange]

        server.should_exit = True
        await running
        assert all(pool.open == 0 for pool in router.pools.values())


def _engine(role: Any, faults: Faults) -> EngineConfig:
    return EngineConfig(model="m", role=role, step_s=0.002, faults=faults, request_log=0)


def _all_up(router: Router) -> bool:
    return all(member.health.is_usable for member in router.fleet)


async def _eventually(holds: Any) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _storm(url: str, count: int) -> Counter[str]:
    """So many requests, some of which their client leaves at a random moment."""
    seen: Counter[str] = Counter()
    chance = random.Random(count)
    places = asyncio.Semaphore(AT_ONCE)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(number: int) -> None:
            async with places:
                patience = chance.choice((None, None, None, 0.0, 0.002, 0.01, 0.03))
                seen[await _client(session, url, number, patience)] += 1

        await asyncio.gather(*(one(number) for number in range(count)))
    return seen


async def _client(
    session: aiohttp.ClientSession, url: str, number: int, patience: float | None
) -> str:
    stream = number % 2 == 0
    prompt = f"{number} {LONG if number % 3 else 'short'}"
    body = {"model": "m", "prompt": prompt, "max_tokens": 8, "stream": stream, "ignore_eos": True}
    try:
        async with (
            asyncio.timeout(patience),
            session.post(f"{url}/v1/completions", json=body) as response,
        ):
            text = await response.read()
    except TimeoutError:
        return "left"
    if response.status not in ENDS:
        return "wrong"
    if response.status != 200:
        return "refused" if b'"error"' in text else "wrong"
    if stream:
        if not text.endswith(b"data: [DONE]\n\n"):
            return "wrong"
        return "broken" if b'"error"' in text else "good"
    return "good" if b'"finish_reason":"length"' in text else "wrong"
