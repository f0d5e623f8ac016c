"""Engines in this event loop, routers as processes in front of them, and a load from outside.

The router runs with its default settings but for the strategy, which is given where it is the
point. Tests wait for states, and claim counts and shares: nothing here is about this machine's
speed. Samples and the routers' own view are noted all the while, for the figures.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from typing import Any

import aiohttp

from router.simulator import EngineConfig
from tests.e2e.judgement.engine import Engine
from tests.e2e.judgement.figures import Figures, Look, Sample, figures_of
from tests.e2e.judgement.lateness import MachineTooSlow, RouterLateness
from tests.e2e.judgement.load import Load, Request
from tests.e2e.judgement.slow_reader import SlowReader
from tests.e2e.process import Process, serving

__all__ = ["Cluster", "cluster", "engine"]

HANGING_S = 60.0
"""A wait for a state ends here. It only ends tests that hang: no claim depends on it."""

SAMPLE_S = 0.05
"""Between two looks at the engines: finer than any answer of these tests is long."""

LOOK_S = 0.15
"""Between two looks at a router's /endpoints: it judges every 0.25 s."""


def engine(**config: Any) -> EngineConfig:
    """An engine with the steps of a large model, which a busy machine delays by little.

    It serves the model that loads ask for.
    """
    usual: dict[str, Any] = {"model": "m", "step_s": 0.04, "max_num_seqs": 64}
    return EngineConfig(**(usual | config))


class Cluster:
    """Engines (decode and prefill), routers, and the loads that were sent."""

    def __init__(self, stack: AsyncExitStack, session: aiohttp.ClientSession) -> None:
        self.engines: list[Engine] = []
        """The decode engines."""
        self.prefills: list[Engine] = []
        self.routers: list[Process] = []
        self.targets: list[Process] = []
        """The routers that get requests, in rotation."""
        self.requests: list[Request] = []
        self.samples: list[Sample] = []
        self.looks: dict[str, list[Look]] = defaultdict(list)
        """The routers' views of an engine, by its URL."""
        self._turn = count()
        self._stack = stack
        self._session = session
        self._flags: tuple[str, ...] = ()
        self._lateness: dict[Process, RouterLateness] = {}
        """Of each router when it was ready."""

    # Making it

    async def start(
        self, decode: Sequence[EngineConfig], prefill: Sequence[EngineConfig], flags: Sequence[str]
    ) -> None:
        """Start the engines."""
        self.engines = [Engine(f"d{place}", config) for place, config in enumerate(decode)]
        self.prefills = [Engine(f"p{place}", config) for place, config in enumerate(prefill)]
        for each in (*self.engines, *self.prefills):
            self._stack.push_async_callback(each.stop)
            await each.start()
        roles = (("--decode", self.engines), ("--prefill", self.prefills))
        urls = [word for flag, engines in roles for each in engines for word in (flag, each.url)]
        self._flags = (*urls, *flags)

    async def add_router(self) -> Process:
        """A further router process that finds all engines up."""
        process = await self._stack.enter_async_context(serving(*self._flags))
        self.routers.append(process)

        async def all_up() -> bool:
            # Each worker process learns it by itself; connections reach them at random.
            looks = [await self.endpoints(process) for _ in range(8)]
            return all(entry["state"] == "up" for look in looks for entry in look)

        await self.until(all_up, "all engines up")
        self._lateness[process] = await self._lateness_of(process)
        return process

    # Loading it

    def load(self, count: int, rate: float, **options: Any) -> Load:
        """Start a load; see Load."""
        load = Load(self._session, self.requests, self._target, count=count, rate=rate, **options)
        self._stack.push_async_callback(load.close)
        return load

    async def send(self, count: int, rate: float, **options: Any) -> list[Request]:
        """A whole load, to its last answer."""
        return await self.load(count, rate, **options).done()

    def _target(self) -> str:
        targets = self.targets
        return f"http://127.0.0.1:{targets[next(self._turn) % len(targets)].port}"

    async def unread(self, **body: Any) -> None:
        """A stream whose client reads nothing until the end of the test."""
        client = self._stack.enter_context(SlowReader())
        await client.ask(self.targets[0].port, body)

    # Watching it

    async def endpoints(self, router: Process) -> list[dict[str, Any]]:
        """What a router knows of its engines."""
        url = f"http://127.0.0.1:{router.port}/endpoints"
        # A new connection each time: any of the router's worker processes may get it.
        async with self._session.get(url, headers={"connection": "close"}) as response:
            return await response.json()  # type: ignore[no-any-return]

    async def was_late(self) -> bool:
        """Whether a router that still runs was so late that its judgement shows nothing."""
        for router, before in self._lateness.items():
            with suppress(aiohttp.ClientError):
                if (await self._lateness_of(router)).is_too_much_since(before):
                    return True
        return False

    async def _lateness_of(self, router: Process) -> RouterLateness:
        async with self._session.get(f"{router.url}/metrics") as response:
            return RouterLateness.read(await response.text(), asyncio.get_running_loop().time())

    async def entry(self, engine: Engine) -> dict[str, Any]:
        """What the first router in use knows of an engine."""
        return next(e for e in await self.endpoints(self.targets[0]) if e["url"] == engine.url)

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        """Wait for a state; `holds` may be a coroutine function."""
        try:
            async with asyncio.timeout(HANGING_S):
                while True:
                    found = holds()
                    if await found if asyncio.iscoroutine(found) else found:
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            figures = self.figures() if self.requests else ""
            raise AssertionError(f"never: {what}\n{figures}") from None

    async def until_sent(self, load: Load, count: int) -> None:
        """Wait until so many requests of a load have been sent."""
        await self.until(lambda: load.sent >= count, f"{count} requests sent")

    async def until_known(self, engine: Engine, **known: Any) -> None:
        """Wait until /endpoints has these values for an engine."""

        async def agrees() -> bool:
            entry = await self.entry(engine)
            return all(entry[name] == value for name, value in known.items())

        await self.until(agrees, f"{engine.name}: {known}")

    async def watch(self) -> None:
        """Note samples and what routers say, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sample())
            group.create_task(self._look())

    async def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            engines = (*self.engines, *self.prefills)
            running, waiting = (e.running for e in engines), (e.waiting for e in engines)
            self.samples.append(Sample(loop.time(), tuple(running), tuple(waiting)))
            await asyncio.sleep(SAMPLE_S)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            for router in list(self.targets):
                try:
                    entries = await self.endpoints(router)
                except aiohttp.ClientError:  # it is on its way out
                    continue
                for entry in entries:
                    told = (entry[name] for name in ("exclusion", "slowdown", "slots"))
                    self.looks[entry["url"]].append(Look(loop.time(), *told))
            await asyncio.sleep(LOOK_S)

    # Judging it

    def figures(self, requests: Sequence[Request] | None = None) -> Figures:
        """What became of these requests, or of all, on the decode engines."""
        return figures_of(self.engines, requests or self.requests, self.samples, self.looks)

    def prefill_figures(self, requests: Sequence[Request] | None = None) -> Figures:
        """The same on the prefill engines."""
        first = len(self.engines)
        samples = [Sample(s.at, s.running[first:], s.waiting[first:]) for s in self.samples]
        return figures_of(self.prefills, requests or self.requests, samples, self.looks)


@asynccontextmanager
async def cluster(
    decode: Sequence[EngineConfig],
    *flags: str,
    prefill: Sequence[EngineConfig] = (),
    routers: int = 1,
    strategy: Sequence[str] = (),
) -> AsyncIterator[Cluster]:
    """A cluster whose engines are all up. `flags` go to the routers.

    Raises MachineTooSlow for a claim that does not hold while a router is late.
    """
    connector = aiohttp.TCPConnector(limit=0)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        made = Cluster(stack, session)
        await made.start(decode, prefill, (*strategy, *flags))
        made.targets = await asyncio.gather(*(made.add_router() for _ in range(routers)))
        watch = asyncio.create_task(made.watch())
        stack.callback(watch.cancel)
        try:
            yield made
        except AssertionError as failure:
            if await made.was_late():
                raise MachineTooSlow(f"a router was late: {failure}") from failure
            raise
