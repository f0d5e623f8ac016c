"""The speed of an engine from a stream with several answers."""

from typing import Any

import pytest

from router.core.fleet.leg_timer import MAX_TIMED_SEQUENCES
from router.core.speed.speed_estimator import SpeedEstimator
from tests.net.client import request
from tests.net.engine import ScriptedEngine
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, completion, event


def part(index: int, finish: str | None = None) -> bytes:
    """A token of one of them."""
    return event({"choices": [{"index": index, "text": "a", "finish_reason": finish}]})


def speed(router: Running, engine: ScriptedEngine) -> SpeedEstimator:
    """What is measured of an engine."""
    return router.router.fleet.member(router.endpoint(engine)).speed


@pytest.mark.parametrize("spaced", [b'":', b'": '])
async def test_those_that_have_ended_are_not_waited_for(harness: Harness, spaced: bytes) -> None:
    engine, router = await harness.single()
    client = await router.client()
    asked = completion(stream=True, n=3)
    await client.send(request(COMPLETIONS, asked))
    call = await engine.call()
    call.stream(*(part(index) for index in range(3)))
    await eventually(lambda: speed(router, engine).counts.streams == 3)
    call.events(part(1, "stop").replace(b'":', spaced))
    await eventually(lambda: speed(router, engine).counts.streams == 2)
    call.events(part(0), part(2, "length").replace(b'":', spaced))
    await eventually(lambda: speed(router, engine).counts.streams == 1)
    call.end(part(0, "stop"), DONE)
    answer = await client.answer()
    assert answer.body.count(b"finish_reason") == 7
    await router.is_quiet()
    assert (speed(router, engine).counts.open, speed(router, engine).counts.streams) == (0, 0)


@pytest.mark.parametrize("many", [{"n": MAX_TIMED_SEQUENCES + 1}, {"prompt": ["a"] * 1000}])
async def test_very_many_are_not_timed(harness: Harness, many: dict[str, Any]) -> None:
    engine, router = await harness.single()
    client = await router.send(COMPLETIONS, completion(**{"stream": True, **many}))
    call = await engine.call()
    call.stream(part(0))
    answer = await client.begin()
    await answer.until(part(0))
    call.events(part(1), part(2))
    await answer.until(part(2))
    found = speed(router, engine).counts
    assert (found.open, found.streams, found.counted.events) == (0, 0, 0)
    call.end(DONE)
    await answer.rest()
