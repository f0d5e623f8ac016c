"""Events of engines, and a router that prefills remotely, for tests."""

from typing import Any

from tests.net.engine import ScriptedEngine
from tests.net.harness import Harness, Running, eventually
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
