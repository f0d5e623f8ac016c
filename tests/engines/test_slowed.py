"""Claim: a real engine that is slow, as a whole or with prompts only, is spared and taken back."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count

import aiohttp
import pytest

from tests.engines import lab, observe, slowed
from tests.engines.conftest import Engines
from tests.engines.layout import layout
from tests.engines.service import Service
from tests.engines.slowed import plain_engines, router_service
from tests.engines.traffic import COMPLETIONS, body, prompt

FAIR = 1 / 3

RETURNED = 30.0
"""Seconds, half of those after which a speed that nothing measures is forgotten."""


@pytest.mark.timeout(600)
async def test_a_slowed_engine_is_found_spared_and_taken_back() -> None:
    where = layout()
    engines = plain_engines(where)
    started = lab.start(where, engines)
    try:
        result = await slowed.run("shortest_expected_delay", engines, where)
    finally:
        for engine in started:
            engine.stop()
    healthy, slow, recovered = result.phases
    assert result.failed == 0
    assert healthy.share(result.slowed) > FAIR / 2
    assert "slow" in result.exclusions(slow)
    # From 4 s on: the requests that it had must have ended, and its speed be known.
    assert slow.share(result.slowed, since=4.0) < FAIR / 4
    assert result.exclusions(recovered)[-1] is None
    assert recovered.share(result.slowed, since=10.0) > FAIR / 2


class Late:
    """A proxy before an engine that keeps requests waiting for `seconds`."""

    def __init__(self, engine: Service) -> None:
        self.seconds = 0.0
        self._engine = engine

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[Service]:
        """The engine through the proxy."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield Service("late", url, "/health", (), {}, layout().run)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._engine.port)
        answer = asyncio.create_task(self._pass_on(there, writer, is_late=False))
        await self._pass_on(reader, back, is_late=True)
        await answer

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_late: bool
    ) -> None:
        while data := await reader.read(1 << 16):
            await asyncio.sleep(self.seconds if is_late else 0)
            writer.write(data)
        writer.close()


async def test_an_engine_that_was_slow_with_prompts_is_taken_back(
    session: aiohttp.ClientSession, engines: Engines
) -> None:
    late, answered, numbers = Late(engines.decodes[0]), Counter[str](), count()

    async def client(router: Service) -> None:
        while True:
            text = prompt(next(numbers), 400)
            request = body(COMPLETIONS, text, stream=True)
            async with session.post(router.url + COMPLETIONS, json=request) as response:
                assert response.status == 200
                await response.read()
            answered[response.headers["x-pd-router-endpoint"]] += 1

    async with AsyncExitStack() as stack:
        slow = await stack.enter_async_context(late.listen())
        pool = (slow, engines.decodes[1], engines.prefill)  # all as whole engines
        router = router_service("shortest_expected_delay", pool, layout())
        stack.callback(router.stop)
        router.start()
        router.wait_ready(30)
        clients = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = [clients.create_task(client(router)) for _ in range(4)]

        async def probes() -> dict[str, float]:
            return await observe.speed_probes(session, router, slow.url)

        async def answers() -> int:
            return answered[slow.url]

        await observe.eventually(answers, lambda number: number > 5, 30)
        late.seconds = 1.5
        await observe.eventually(probes, lambda seen: seen["ok"] > 0, 60)
        late.seconds, before = 0.0, answered[slow.url]
        await observe.eventually(answers, lambda number: number > before + 10, RETURNED)
        seen = await probes()
        for task in tasks:
            task.cancel()
        assert seen["failed"] == 0
