"""Each connector against what may happen to a request: several choices, a restart of either engine,
and a client that leaves in any phase. Answers equal those of one engine, and nothing is kept."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from router.simulator import EngineConfig, RunningEngine
from tests.e2e.connectors import ask, router_process, urls
from tests.net.client import SECONDS
from tests.net.harness import eventually

MODEL = "m"
PROMPT = "the quick brown fox jumps over the lazy dog " * 6
COMPLETION: tuple[str, dict[str, Any]] = (
    "/v1/completions",
    {"model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": 8},
)
CHAT: tuple[str, dict[str, Any]] = (
    "/v1/chat/completions",
    {
        "model": MODEL,
        "messages": [{"role": "user", "content": PROMPT}],
        "temperature": 0,
        "max_tokens": 8,
    },
)
RESPONSE: tuple[str, dict[str, Any]] = (
    "/v1/responses",
    {"model": MODEL, "input": PROMPT, "temperature": 0, "max_output_tokens": 8},
)
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
REQUESTS = [(path, body | more) for path, body in (COMPLETION, CHAT) for more in ({}, STREAM)]

CONNECTORS = ("nixl", "nixl-push", "mooncake", "moriio", "lmcache", "store")

WAIT_SECONDS = 0.2
"""For which a decode engine waits for a KV cache that does not come."""


STEP_SECONDS = 0.002
"""Of decode engines, so that the stream of a client that leaves is not over."""


@dataclass
class Pools:
    """A prefill engine, two decode engines, a router before them, and an engine for comparison."""

    alone: RunningEngine
    prefill: RunningEngine
    decodes: list[RunningEngine]
    router: str
    session: aiohttp.ClientSession

    @property
    def engines(self) -> list[RunningEngine]:
        """Those behind the router."""
        return [self.prefill, *self.decodes]

    async def compare(self, path: str, body: dict[str, Any]) -> None:
        """Ask the router and the engine for comparison."""
        routed = await ask(self.session, self.router, path, body)
        expected = await ask(self.session, self.alone.url, path, body)
        assert (routed.status, routed.texts, routed.usage, routed.finish) == (
            200,
            expected.texts,
            expected.usage,
            expected.finish,
        ), routed.raw

    async def endpoints(self) -> list[dict[str, Any]]:
        """As the router reports them."""
        async with self.session.get(f"{self.router}/endpoints") as response:
            found: list[dict[str, Any]] = await response.json()
        return found

    async def are(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until it is true of all endpoints."""
        async with asyncio.timeout(SECONDS):
            while not all(map(holds, await self.endpoints())):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)

    async def are_quiet(self) -> None:
        """Wait until neither the router nor an engine has anything left of a request. The leases
        of KV caches that no decode engine reads end."""
        await self.are(lambda endpoint: endpoint["in_flight"] == 0)
        work = ("running", "waiting", "loading", "pinned_blocks")

        def are_idle() -> bool:
            self.prefill.engine.machine.kv.references.expire(math.inf)
            return not any(engine.state[each] for engine in self.engines for each in work)

        await eventually(are_idle, lambda: str([engine.state for engine in self.engines]))

    def moved(self) -> int:
        """Prompt tokens whose KV cache came from the prefill engine."""
        return sum(int(each.state["tokens"]["external_kv_transfer"]) for each in self.decodes)


@asynccontextmanager
async def pools(connector: str, folder: Path, port: int) -> AsyncIterator[Pools]:
    """Pools with this connector. `port`: for notifications."""
    common: dict[str, Any] = {"model": MODEL, "connector": connector}
    common |= {"store": str(folder)} if connector == "store" else {}
    flags = ["--disagg-connector-type", "nixl" if connector == "nixl-push" else connector]
    async with AsyncExitStack() as stack:

        async def engine(**config: Any) -> RunningEngine:
            running = RunningEngine(EngineConfig(**config))
            stack.push_async_callback(running.stop)
            await running.start()
            return running

        alone = await engine(model=MODEL)
        decoding = common | {"role": "decode", "prefix_caching": False, "step_s": STEP_SECONDS}
        decoding["kv_lease_s"] = WAIT_SECONDS
        decodes = [await engine(**decoding) for _ in range(2)]
        if connector == "lmcache":
            common |= {
                "receivers": {f"h{n}:7300": each.url for n, each in enumerate(decodes)},
                "notify": f"127.0.0.1:{port}",
            }
            receivers = {
                each.url: {
                    "receiver_host": f"h{n}",
                    "receiver_init_port": [7300],
                    "receiver_alloc_port": [7400],
                }
                for n, each in enumerate(decodes)
            }
            flags += ["--decoder-registry", orjson.dumps(receivers).decode()]
            flags += ["--lmcache-notify-bind", f"tcp://127.0.0.1:{port}"]
        prefill = await engine(**common, role="prefill")
        if connector == "moriio":
            ports = orjson.dumps({each.url: each.port for each in decodes}).decode()
            flags += ["--moriio-handshake-port", ports, "--moriio-notify-port", ports]
        if connector == "mooncake":  # a simulated engine is its own bootstrap server
            flags += ["--mooncake-bootstrap-port", str(prefill.port)]
        session = await stack.enter_async_context(aiohttp.ClientSession())
        router = await stack.enter_async_context(
            router_process(
                *("--prefill", prefill.url, "--decode", urls(decodes)),
                *("--routing-threshold", "0", "--health-check-interval", "0.05", *flags),
            )
        )
        yield Pools(alone, prefill, decodes, router, session)


@pytest.fixture(params=CONNECTORS)
async def found(
    request: pytest.FixtureRequest, tmp_path: Path, own_port: int
) -> AsyncIterator[Pools]:
    """Pools of each connector. At the end nothing is left in them."""
    async with pools(request.param, tmp_path, own_port) as each:
        yield each
        await each.are_quiet()


async def restart(engine: RunningEngine) -> RunningEngine:
    """End an engine at once, and start it again at the same address, with nothing in its memory."""
    await engine.stop()
    again = RunningEngine(replace(engine.config, port=engine.port))
    await again.start()
    return again


async def test_answers_equal_those_of_one_engine_and_caches_move(found: Pools) -> None:
    for path, body in (*REQUESTS, RESPONSE, (RESPONSE[0], RESPONSE[1] | {"stream": True})):
        before = found.moved()
        await found.compare(path, body)
        assert found.moved() > before


async def test_all_choices_equal_those_of_one_engine(found: Pools) -> None:
    for path, body in REQUESTS:
        await found.compare(path, body | {"n": 3})


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_engines_that_have_restarted_are_used_again(found: Pools, role: str) -> None:
    await found.compare(*REQUESTS[0])
    ended = [found.prefill] if role == "prefill" else found.decodes
    if role == "decode" and found.prefill.config.connector == "moriio":
        ended = found.engines  # a prefill engine does not find restarted decode engines
    again = [await restart(each) for each in ended]
    if role == "prefill" or ended is not found.decodes:
        found.prefill = again[0]
    if role == "decode":
        found.decodes = again[-2:]
    try:
        for path, body in REQUESTS:
            await found.compare(path, body)
        before = found.moved()
        async with asyncio.timeout(SECONDS):  # until it is probed; answers are right before
            while found.moved() == before:
                await found.compare(*REQUESTS[1])
        await found.are_quiet()
    finally:
        for each in again:
            await each.stop()


@pytest.mark.parametrize("phase", ["prefill", "decode", "stream"])
async def test_of_a_client_that_leaves_nothing_is_left(found: Pools, phase: str) -> None:
    """An engine that makes no steps has its request until that is aborted."""
    busy = [found.prefill] if phase == "prefill" else found.decodes
    if phase != "stream":
        for engine in busy:
            await engine.set_faults(stall=True)
    path, body = COMPLETION
    endless = body | STREAM | {"max_tokens": 20_000, "ignore_eos": True}
    asked = asyncio.ensure_future(found.session.post(found.router + path, json=endless))
    if phase == "stream":
        answer = await asked
        await answer.content.readuntil(b"\n\n")
        assert any(engine.state["running"] for engine in busy)
        answer.close()
    else:
        await eventually(lambda: any(e.state["running"] + e.state["waiting"] for e in busy))
        asked.cancel()
    await found.are_quiet()
    for engine in busy:
        await engine.clear_faults()
    await found.compare(path, body)
