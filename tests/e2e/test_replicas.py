"""Three routers, each a process (or several), in front of eight engines: without word of each other
they meet on the same engines, with it they do not, and one that dies is forgotten. With a common
key each knows where the others' prompts were computed."""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

from tests.e2e.process import Process, serving
from tests.e2e.worker_processes import until
from tests.net.client import Client, request
from tests.net.engine import Call, ScriptedEngine
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, DONE, STREAM, completion, token
from tests.ports import own_port

ENGINES, REPLICAS, STREAMS = 8, 3, 4
BLIND = ("--engine-stats-interval", "3600")
"""They do not read the engines' gauges."""

LOADS = ("--load-balancing-strategy", "least_loaded", "--prefix-cache", "off")
TWO_WORKERS = ("--workers", "2")
HISTORY = ("--load-balancing-strategy", "shortest_expected_delay", "--speed-probe-interval", "0")
PROMPTS = [f"{number} " + "And what does that mean? " * 200 for number in range(6)]
"""Each of 1,250 estimated tokens."""


async def gauge(admin_port: int, name: str) -> float:
    """The sum over a replica's engines."""
    client = await Client.open(admin_port)
    text = (await client.get("/metrics")).body.decode()
    client.leave()
    found = re.findall(rf"^pd_router_endpoint_{name}\{{.*\}} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


async def sibling_requests(admin_port: int) -> float:
    """What a replica knows of its siblings' requests."""
    return await gauge(admin_port, "peer_requests")


async def held_tokens(admin_port: int) -> float:
    """What it believes to be in engines' prefix caches."""
    return await gauge(admin_port, "prefix_cache_held_tokens")


async def replicas(
    stack: AsyncExitStack,
    engines: Sequence[ScriptedEngine],
    flags: Sequence[str],
    *,
    told: bool,
    launcher: Sequence[str] = (),
) -> tuple[list[Process], list[int]]:
    """Routers that are ready, and their admin ports."""
    ports = [own_port() for _ in range(REPLICAS)]
    urls = ",".join(f"http://127.0.0.1:{port}" for port in ports)
    common = [word for engine in engines for word in ("--decode", engine.url)]
    common += [*BLIND, *flags, *(("--peers", urls, "--peer-key", "secret") if told else ())]
    started = [
        await stack.enter_async_context(
            serving(*common, "--admin-port", str(port), launcher=launcher)
        )
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
    """Engines whose answers never end."""

    def answer(engine: ScriptedEngine, call: Call) -> None:
        calls[engine] += 1
        call.stream(token("a"))

    engines = [await harness.engine() for _ in range(ENGINES)]
    for engine in engines:
        engine.answer_all(partial(answer, engine))
    return engines


async def is_known_to_all(admin_port: int, due: int) -> bool:
    """Whether each worker knows of so many requests of siblings: 16 connections ask."""
    for _ in range(16):
        if await sibling_requests(admin_port) != due:
            return False
    return True


def silent(process: Process) -> list[str]:
    """Its lines about siblings that have become silent."""
    return [r["message"] for r in process.records if "is silent" in r["message"]]


async def test_reporting_replicas_do_not_choose_the_same_engine(harness: Harness) -> None:
    calls: Counter[ScriptedEngine] = Counter()
    async with AsyncExitStack() as stack:
        engines = await engines_of(harness, calls)
        processes, ports = await replicas(stack, engines, (*LOADS, *TWO_WORKERS), told=True)
        for number, process in enumerate(processes):
            due = number * STREAMS
            for admin_port in ports[number:]:
                known = partial(is_known_to_all, admin_port, due)
                await until(known, f"{due} requests of siblings")
            await streams(process)
        loads = sorted(calls[engine] for engine in engines)
        assert loads == [1, 1, 1, 1, 2, 2, 2, 2]

        await processes[0].kill()

        forgotten = partial(is_known_to_all, ports[1], STREAMS)
        await until(forgotten, "the requests of the one that died are forgotten")

        async def is_logged() -> bool:
            return bool(silent(processes[1]))

        await until(is_logged, "it is logged")
    assert silent(processes[1]) == [
        f"sibling replica http://127.0.0.1:{ports[0]} is silent: its requests are not known"
    ], "one of several workers logs it"


async def test_replicas_that_do_not_meet_on_the_same_engines(harness: Harness) -> None:
    calls: Counter[ScriptedEngine] = Counter()
    async with AsyncExitStack() as stack:
        engines = await engines_of(harness, calls)
        processes, _ = await replicas(stack, engines, LOADS, told=False)
        await asyncio.gather(*map(streams, processes))
        loads = sorted(calls[engine] for engine in engines)
        assert loads == [0, 0, 0, 0, 3, 3, 3, 3]


async def test_a_prompt_goes_to_the_engine_that_a_sibling_chose(harness: Harness) -> None:
    served: list[ScriptedEngine] = []

    def answer(engine: ScriptedEngine, call: Call) -> None:
        served.append(engine)
        call.stream_whole(token("a"), DONE)

    engines = [await harness.engine() for _ in range(ENGINES)]
    for engine in engines:
        engine.answer_all(partial(answer, engine))
    async with AsyncExitStack() as stack:
        # Not forked: they must be able to begin anew, with the replicas' hash seed.
        processes, ports = await replicas(
            stack, engines, (*HISTORY, *TWO_WORKERS), told=True, launcher=("env",)
        )
        first, *others = zip(processes, ports, strict=True)
        await takes_prompts(first[1])
        for prompt in PROMPTS:
            await ask(first[0], prompt)
        due = len(PROMPTS) * 1250

        async def is_known(port: int) -> bool:
            for _ in range(16):
                if await held_tokens(port) < due:
                    return False
            return True

        for _, port in (first, *others):
            await until(partial(is_known, port), "all prompts are known")
        before, served[:] = list(served), []
        assert len(set(before)) > 1
        for process, _ in others:
            for prompt in PROMPTS:
                await ask(process, prompt)
    assert served == before * len(others)


async def takes_prompts(admin_port: int) -> None:
    """Wait until both siblings get reports of prompts, and each worker shows it."""

    async def both() -> bool:
        for _ in range(16):  # 16 connections: each worker is asked
            client = await Client.open(admin_port)
            told = (await client.get("/admin/peers")).json["told"]
            client.leave()
            if sum(each["prompts"] for each in told) != REPLICAS - 1:
                return False
        return True

    await until(both, "siblings are told of prompts")


async def ask(process: Process, prompt: str) -> None:
    """One request, to its end."""
    client = await process.client()
    await client.send(request(COMPLETIONS, completion(prompt, stream=True)))
    assert (await client.answer()).status == 200
