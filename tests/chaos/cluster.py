"""The processes: simulated engines, one each, and the router in front of them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from tests.chaos.names import HERE, NAME, Names
from tests.chaos.routers import WORKERS, Routers
from tests.e2e.process import Process
from tests.forked import SECONDS
from tests.net.client import Client, Truncated, request
from tests.ports import own_port
from tests.simulated import Engine

__all__ = ["Cluster", "EngineProcess", "cluster"]

THRESHOLD = 100
"""Tokens from which on prompts are prefilled remotely."""

MAX_NUM_SEQS = "512"
"""Sequences of an engine: of four, three have room for a thousand streams."""

ORDER_SECONDS = 5.0
"""For an order to an engine; one that is stopped takes none."""

SOUND = (None, "slow")
"""Exclusions of an engine that gets requests: one that was slow is tried little by little."""

PATIENCE_SECONDS = "2"
"""The router's patience with silent engines; faults last as long as the load requires."""


class EngineProcess(Engine):
    """A simulated engine whose faults can be set. With `names` the router knows it by a name, and
    by its addresses that stand there."""

    def __init__(self, role: str, step_ms: int, names: Names | None = None) -> None:
        self.role = role
        self._names = names
        self._host = HERE
        size = ("--step-ms", str(step_ms), "--max-num-seqs", MAX_NUM_SEQS)
        super().__init__(own_port(), "--role", role, *size, "--eos-one-in", "0", "--kv-events")
        if names is not None:
            self.url = f"http://{NAME}:{self.port}"

    def resolves_to(self, *addresses: str) -> None:
        """Its name leads there from now on; without addresses, nowhere."""
        assert self._names is not None
        self._names.put(self.port, addresses)

    async def move(self, host: str) -> None:
        """It ends, and comes back at another address, to which its name leads."""
        await self.kill()
        self._host = host
        self.resolves_to(host)
        await self.start("--host", host)

    async def set_faults(self, **faults: Any) -> None:
        """Set these faults; none: no fault."""
        await self._ask("POST", "/sim/faults", faults)

    async def mend(self) -> None:
        """Clear the faults as soon as the engine answers, unless it is absent."""
        self.signal(signal.SIGCONT)
        async with asyncio.timeout(SECONDS):
            while self.is_started:
                with suppress(OSError):
                    await self.set_faults()
                    return
                await asyncio.sleep(0.05)

    async def drop(self) -> None:
        """Reset all its connections."""
        with suppress(ConnectionError):  # this one, too
            await self._ask("POST", "/sim/drop")

    async def state(self) -> dict[str, Any]:
        """Its counts since its start."""
        found: dict[str, Any] = await self._ask("GET", "/sim/state")
        return found

    async def _ask(self, method: str, path: str, body: object = None) -> Any:
        async with asyncio.timeout(ORDER_SECONDS):
            client = await Client.open(self.port, host=self._host)
            try:
                await client.send(request(path, body, method=method))
                answer = await client.answer(method)
            except Truncated as error:
                raise ConnectionResetError(str(error)) from None
            finally:
                client.leave()
        assert answer.status == 200, answer
        return answer.json


class Cluster:
    """The engines and the router."""

    def __init__(
        self, prefills: list[EngineProcess], decodes: list[EngineProcess], routers: Routers
    ) -> None:
        self.prefills = prefills
        self.decodes = decodes
        self.routers = routers
        self.broken: set[str] = set()
        """URLs of the engines that the faults of now are about."""
        self.expected_errors: set[str] = set()
        """Parts of messages that the router may log as errors, because of the faults there were."""

    @property
    def engines(self) -> list[EngineProcess]:
        return [*self.prefills, *self.decodes]

    @property
    def named(self) -> list[EngineProcess]:
        """Engines that the router knows by their names."""
        return [self.prefills[0], self.decodes[0]]

    @property
    def router(self) -> Process:
        """The one that accepts connections."""
        return self.routers.current

    @property
    def workers(self) -> list[int]:
        """The ids of the router's worker processes."""
        return self.routers.workers

    def descriptors(self) -> int:
        """Open files of all processes of the router."""
        return sum(map(self.descriptors_of, (self.router.pid, *self.workers)))

    @staticmethod
    def descriptors_of(pid: int) -> int:
        """Open files of one."""
        return len(os.listdir(f"/proc/{pid}/fd"))

    def memory(self) -> int:
        """Bytes of memory of the workers together."""
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.workers]
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")

    async def endpoints(self) -> list[dict[str, Any]]:
        """The router's view of its engines."""
        client = await Client.open(self.router.port)
        try:
            found: list[dict[str, Any]] = (await client.get("/endpoints")).json
            return found
        finally:
            client.leave()

    async def follows_caches(self) -> None:
        """Wait until the KV-cache events of all engines come."""

        async def is_so() -> bool:
            return all(each["kv_events"]["state"] == "live" for each in await self.endpoints())

        async with asyncio.timeout(SECONDS):
            while not await is_so():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def is_well(self, *, idle: bool = False) -> None:
        """Wait until there is one router with all its workers, and it takes all engines for sound;
        `idle`: and no request is counted on any."""

        async def is_so() -> bool:
            with suppress(Truncated, OSError, orjson.JSONDecodeError):
                found = await self.endpoints()
                return len(self.workers) == WORKERS and all(
                    each["state"] == "up"
                    and each["exclusion"] in SOUND
                    and (each["in_flight"] == 0 or not idle)
                    for each in found
                )
            return False

        await self.routers.only_one()
        async with asyncio.timeout(SECONDS):
            while not await is_so():  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@asynccontextmanager
async def cluster(*flags: str, step_ms: int = 2, **settings: Any) -> AsyncIterator[Cluster]:
    """Two prefill engines, four decode engines and a router, all of them up. It knows one engine
    of each role by a name. It has these flags, and these settings in its file. A stream gets a
    token every `step_ms`."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="chaos-"))
        names = Names(Path(folder))
        prefills = [EngineProcess("prefill", step_ms, each) for each in (names, None)]
        decodes = [EngineProcess("decode", step_ms, each) for each in (names, None, None, None)]
        engines = (*prefills, *decodes)
        for engine in engines:
            stack.push_async_callback(engine.kill)
        await asyncio.gather(*(engine.start() for engine in engines))
        routers = Routers(
            stack,
            Path(folder),
            names,
            *(word for engine in prefills for word in ("--prefill", engine.url)),
            *(word for engine in decodes for word in ("--decode", engine.url)),
            *("--health-check-interval", "0.2", "--health-check-timeout", "1"),
            *("--first-byte-timeout", PATIENCE_SECONDS),
            *("--prefill-timeout", PATIENCE_SECONDS, "--connect-timeout", "1"),
            *("--sse-keep-alive", "0.1"),
            *("--stall-timeout", "1", "--outlier-ejection-time", "0.5", *flags),
            **{
                "routing_threshold": THRESHOLD,
                "stream_idle_timeout": float(PATIENCE_SECONDS),
                **settings,
            },
        )
        await routers.start()
        found = Cluster(prefills, decodes, routers)
        await found.is_well()
        yield found
        for engine in engines:
            engine.signal(signal.SIGCONT)
