"""Events of engines, a router that prefills remotely, and clients that wait long, for tests."""

import asyncio
import math
from typing import Any

from hypothesis import HealthCheck, settings

from tests.net.client import Answer, Client
from tests.net.engine import ScriptedEngine
from tests.net.harness import NEVER, Harness, Running, eventually
from tests.net.payloads import (
    answer_remotely,
    event,
)

USAGE = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
COMMENT = b": keep-alive\n\n"
NAMED = b'event: response.created\ndata: {"type":"response.created"}\n\n'
DELTA = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta"}\n\n'


async def remote(
    harness: Harness, **settings: Any
) -> tuple[Running, ScriptedEngine, ScriptedEngine]:
    """A router that prefills everything remotely; the prefill engine answers by itself."""
    prefill, decode = await harness.engine(), await harness.engine()
    prefill.answer_all(answer_remotely)
    return await harness.router(decode, prefill=(prefill,), **settings), prefill, decode


async def relay_of(router: Running, engine: ScriptedEngine) -> Any:
    """The relay at work for an engine."""
    pool = router.pool(engine)
    await eventually(lambda: pool.open - pool.idle == 1)
    (connection,) = pool._open - set(pool._idle)
    return connection._sink


def held(relay: Any) -> bytes:
    """What a relay keeps or holds back of an answer."""
    return b"".join(getattr(relay._reader, "_parts", ()))


def wait_long(router: Running) -> None:
    """Sweep as if all clients had been sent nothing for longer than `sse_keep_alive`."""
    for served in list(router.router.handler.active):
        served._silent_since = -math.inf  # type: ignore[attr-defined]
    router.router.clients.idle_sweep._sweep()


def fall_silent(router: Running) -> None:
    """Let the only engine at work be silent for longer than any time-out."""
    (leg,) = router.router.clients.idle_sweep._watched
    leg.check_idle(asyncio.get_running_loop().time() + 2 * NEVER)


async def early(router: Running, client: Client, comments: int = 1) -> Answer:
    """The head of a request in progress, ahead of any engine's, and so many comments."""
    wait_long(router)
    answer = await client.begin()
    for _ in range(comments - 1):
        wait_long(router)
    return await answer.until(COMMENT * comments)


over_http = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
"""Each example is a request of its own to the same router."""


async def run_example(example: Any) -> None:
    """Run a hypothesis test of a coroutine in this loop: it is made for functions."""
    loop = asyncio.get_running_loop()
    inner = example.hypothesis.inner_test

    def blocking(**arguments: Any) -> None:
        asyncio.run_coroutine_threadsafe(inner(**arguments), loop).result()

    example.hypothesis.inner_test = blocking
    await asyncio.to_thread(example)
