"""Three routers, each a process (or several), in front of eight engines: without word of each other
they meet on the same engines, with it they do not, and one that dies is forgotten."""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import pytest

from benchmarks.overload.processes import free_port
from tests.e2e.process import Process, serving
from tests.e2e.test_workers import until
from tests.net.client import Client, request
from tests.net.engine import Call, ScriptedEngine
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, STREAM, token

ENGINES, REPLICAS, STREAMS = 8, 3, 4
BLIND = ("--load-balancing-strategy", "least_loaded", "--engine-stats-interval", "3600")
"""They learn nothing from the engines' gauges."""


async def sibling_requests(admin_port: int) -> float:
    """What a replica knows of its siblings' requests."""
    client = await Client.open(admin_port)
    text = (await client.get("/metrics")).body.decode()
    client.leave()
    found = re.findall(r"^pd_router_endpoint_peer_requests\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


async def replicas(
    stack: AsyncExitStack, engines: Sequence[ScriptedEngine], flags: Sequence[str], told: bool
) -> tuple[list[Process], list[int]]:
    """Routers that are ready, and their admin ports."""
    ports = [free_port() for _ in range(REPLICAS)]
    urls = ",".join(f"http://127.0.0.1:{port}" for port in ports)
    common = [word for engine in engines for word in ("--decode", engine.url)]
    common += [*BLIND, *flags, *(("--peers", urls, "--peer-key", "secret") if told else ())]
    started = [
        await stack.enter_async_context(serving(*common, "--admin-port", str(port)))
        for port in ports
    ]
    for process in started:
        await process.ready()
    return started, ports


async def streams(process: Process) -> list[Client]:
    """Clients whose streams stay open."""
    clients = []
    for _ in range(STREAMS):
        client = await process.client()
        await client.send(request(COMPLETIONS, STREAM))
        assert (await client.begin()).status == 200
        clients.append(client)
    return clients


async def engines_of(harness: Harness, calls: Counter[ScriptedEngine]) -> list[ScriptedEngine]:
    """Engines that begin to answer, and go on for ever."""

    def answer(engine: ScriptedEngine, call: Call) -> None:
        calls[engine] += 1
        call.stream(token("a"))

    engines = [await harness.engine() for _ in range(ENGINES)]
    for engine in engines:
        engine.answer_all(partial(answer, engine))
    return engines


@pytest.mark.parametrize("flags", [(), ("--workers", "2")], ids=["one", "two"])
async def test_replicas_that_tell_each_other_do_not_meet_on_an_engine(
    harness: Harness, flags: tuple[str, ...]
) -> None:
    calls: Counter[ScriptedEngine] = Counter()
    async with AsyncExitStack() as stack:
        engines = await engines_of(harness, calls)
        processes, ports = await replicas(stack, engines, flags, told=True)
        for number, process in enumerate(processes):
            for admin_port in ports[number:]:  # 16 connections: each worker is asked

                async def is_told(port: int = admin_port, due: int = number * STREAMS) -> bool:
                    return all([await sibling_requests(port) == due for _ in range(16)])

                await until(is_told, f"{number * STREAMS} requests of siblings")
            await streams(process)
        loads = sorted(calls[engine] for engine in engines)
        assert loads == [1, 1, 1, 1, 2, 2, 2, 2]

        await processes[0].kill()

        async def is_forgotten() -> bool:
            return await sibling_requests(ports[1]) == STREAMS

        await until(is_forgotten, "the requests of the one that died are forgotten")


async def test_replicas_that_do_not_meet_on_the_same_engines(harness: Harness) -> None:
    calls: Counter[ScriptedEngine] = Counter()
    async with AsyncExitStack() as stack:
        engines = await engines_of(harness, calls)
        processes, _ = await replicas(stack, engines, (), told=False)
        await asyncio.gather(*map(streams, processes))
        loads = sorted(calls[engine] for engine in engines)
        assert loads == [0, 0, 0, 0, 3, 3, 3, 3]
