"""An overloaded router reads its engine connections in turns, and loses nothing."""

import math
import time
from typing import Any

from router.net.limits.read_rotation import SAMPLE, ReadRotation
from tests.net.engine import LAST_CHUNK, chunk
from tests.net.harness import Harness, eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM, token


async def begin(harness: Harness, number: int) -> tuple[ReadRotation, list[Any], list[Any]]:
    """A router that reads two of so many streams at a time; their calls and their answers."""
    engine, router = await harness.single()
    rotation = router.router.connections.read_rotation
    rotation._most_read = 2
    calls, answers = [], []
    for _ in range(number):
        client = await router.send(COMPLETIONS, STREAM)
        calls.append(await engine.call())
        calls[-1].stream(token("first"))
        answers.append(await client.begin())
        await answers[-1].until(token("first"))
    rotation._begin(time.monotonic(), number)
    rotation._ends = math.inf
    return rotation, calls, answers


async def test_reads_from_engines_are_counted(harness: Harness) -> None:
    rotation, calls, answers = await begin(harness, 2 * SAMPLE)
    [router] = harness.routers
    router.router._loop_lag.close()  # nothing counts from 0 again
    rotation._end()
    rotation._reads, rotation._looks_at = 0, 2
    rotation._refilled_at = -math.inf
    for call, answer in zip(calls, answers, strict=True):
        call.events(token("once"))
        await answer.until(token("once"))
    assert not rotation.is_on, "3 reads are enough where 2 connections count"
    for call in calls:
        call.events(token("twice"))
    await eventually(lambda: rotation.is_on)


async def test_streams_that_take_turns_arrive_whole(harness: Harness) -> None:
    rotation, calls, answers = await begin(harness, 7)
    texts = [token(str(number)) for number in range(50)]
    for text in texts:
        for call in calls:
            call.events(text)
    for call in calls:
        call.end(DONE)
    for answer in answers:
        await answer.rest()
        assert answer.body == b"".join((token("first"), *texts, DONE))
    await eventually(lambda: not rotation.is_on)
    [router] = harness.routers
    for one in router.pool(harness.engines[0])._open:
        assert one.transport.is_reading()


async def test_one_that_waits_for_its_first_token_is_read(harness: Harness) -> None:
    """vLLM sends the head at once."""
    rotation, _, _ = await begin(harness, 1)
    [router], [engine] = harness.routers, harness.engines
    rotation._most_read = 0  # no other one is
    client = await router.send(COMPLETIONS, STREAM)
    call = await engine.call()
    call.stream()
    answer = await client.begin()
    rotation._begin(time.monotonic(), 1)
    assert len(rotation._aside) == 1
    call.events(token("first"))
    await answer.until(token("first"))


async def test_each_slice_has_streams_of_every_engine(harness: Harness) -> None:
    """Else an engine that was read twice between two looks at the speeds would seem twice as fast
    as one that was read once."""
    engines = [await harness.engine() for _ in range(3)]
    router = await harness.router(*engines)
    for engine in engines:
        engine.answer_all(lambda call: call.stream(token("first")))
    for _ in range(12):
        client = await router.send(COMPLETIONS, STREAM)
        await (await client.begin()).until(token("first"))
    rotation = router.router.connections.read_rotation
    rotation._most_read = 3
    rotation._begin(time.monotonic(), 12)
    for _ in range(8):
        ports = [one.transport.get_extra_info("peername")[1] for one in rotation._reading]
        assert len(set(ports)) == 3
        rotation._next(time.monotonic())


async def test_engines_that_have_left_take_turns_too(harness: Harness) -> None:
    rotation, calls, answers = await begin(harness, 5)
    [router] = harness.routers
    rotation._end()
    router.router.connections.pools.follow([])
    rotation._begin(time.monotonic(), 5)
    assert len(rotation._aside) == 3
    for call, answer in zip(calls, answers, strict=True):
        call.end(DONE)
        await answer.rest()
    pools = router.router.connections.pools
    assert not pools.answering()
    await eventually(lambda: not any(pool.open for pool in pools._retired))
    pools.follow([])
    assert not pools._retired


async def test_connections_with_tls_are_excluded(harness: Harness) -> None:
    """uvloop reads from them though they are paused, and loses the end of an answer if the engine
    closes the connection then."""
    engine = await harness.engine(tls=True)
    router = await harness.router(engine)
    rotation = router.router.connections.read_rotation
    rotation._sample = 1
    client = await router.send(COMPLETIONS, STREAM)
    call = await engine.call()
    call.stream(token("first"))
    answer = await client.begin()
    await answer.until(token("first"))
    assert not router.router.connections.pools.answering()
    assert not rotation._reads


async def test_a_connection_that_is_reused_is_read(harness: Harness) -> None:
    """A read that was held back by the read limiter may end an answer of one that is set aside."""
    rotation, calls, answers = await begin(harness, 3)
    [router] = harness.routers
    rotation._slice_ends = math.inf
    [aside] = rotation._aside
    port = aside.transport.get_extra_info("sockname")
    [answer] = [
        answer
        for call, answer in zip(calls, answers, strict=True)
        if call.connection.transport.get_extra_info("peername") == port
    ]
    aside.wait_for_turn()
    aside.read_on(chunk(DONE) + LAST_CHUNK)
    await answer.rest()
    assert router.pool(harness.engines[0]).idle == 1
    assert aside.transport.is_reading()


async def test_leaving_is_noticed_while_the_engine_is_paused(harness: Harness) -> None:
    rotation, calls, _ = await begin(harness, 5)
    [router] = harness.routers
    for client in router.clients:
        client.leave()
    for call in calls:
        await call.left()
    await eventually(lambda: not rotation._aside)


async def test_an_engine_that_dies_while_it_is_not_read_fails_its_streams(harness: Harness) -> None:
    rotation, calls, answers = await begin(harness, 5)
    for call in calls:
        call.events(token("last"))
        call.close()
    for answer in answers:
        await answer.rest()
        assert answer.body.startswith(token("first") + token("last")), (
            "what it has sent is not lost"
        )
        assert b'"code":502' in answer.body
    await eventually(lambda: not rotation._aside)


async def test_time_in_which_it_lasts_counts_as_late(harness: Harness) -> None:
    """The alert RouterIsTheLimit watches it: turns are short then, so the loop is not late."""
    rotation, _, _ = await begin(harness, 5)
    [router] = harness.routers
    late = router.router.metrics._late
    before = late[0]
    rotation._tried_at = math.inf
    rotation._begin(time.monotonic(), 5)
    rotation._ends = math.inf
    await eventually(lambda: late[0] > before + 0.05)
    assert rotation.is_on
