"""Whoever reads slowly makes the other side wait; the router keeps little in between."""

import asyncio

import pytest

from router.net.client.client_connection import NEVER
from router.net.request.engine_leg import EngineLeg
from tests.net.client import Client, request
from tests.net.engine import (
    LAST_CHUNK,
    Call,
    Connection,
    ScriptedEngine,
    chunk,
    json_reply,
    sse_head,
)
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import (
    COMPLETIONS,
    DONE,
    EMBEDDINGS,
    STREAM,
    answer_remotely,
    completion,
    token,
)

SMALL = 4096
"""A receive buffer; the kernel doubles it."""

ROUTER_KEEPS = 1 << 20
"""Bytes: a write buffer's high-water mark (64 KiB), one read of the event loop (250 kB) on top, and
the same again in the cutter. The kernel's own buffers are not the router's."""

EVENT = token("x" * 1000)

LARGE = json_reply(b'{"x":"' + b"x" * (8 << 20) + b'"}')
"""An answer that does not fit into the kernel's buffers."""


class Pump:
    """An engine's answer that never ends, written as fast as the router takes it."""

    def __init__(self, router: Running, call: Call, piece: bytes) -> None:
        self._router = router
        self._transport = call.connection.transport
        self._piece = piece
        self.written = 0
        """Bytes of body that the engine has written."""

    def fill(self) -> None:
        """Keep something to send in the engine's own buffer."""
        while self._transport.get_write_buffer_size() < 1 << 20:
            self._transport.write(chunk(self._piece) * 100)
            self.written += len(self._piece) * 100

    async def until_stuck(self) -> None:
        """Write until the router takes no more.

        It pauses now and then while the kernel can still take something for the client. A pause
        over two turns of its event loop is final.
        """
        bystander = await self._router.client()

        async def stands_still() -> bool:
            before = _buffered(self._router)
            self.fill()
            for _ in range(2):
                await bystander.get("/version")
            return before > 0 and before == _buffered(self._router)

        while not await stands_still():
            pass


def _buffered(router: Running) -> int:
    """What the router itself holds for its clients."""
    return sum(each.transport.get_write_buffer_size() for each in router.connections)


def _is_read_from(router: Running, engine: ScriptedEngine) -> bool:
    (connection,) = router.pool(engine)._open
    return connection.transport.is_reading()


async def _streaming(harness: Harness, mode: str) -> tuple[Running, Client, Call]:
    """A client with a small buffer, and the decode engine's call for it."""
    prefill, decode = await harness.engine(), await harness.engine()
    prefill.answer_all(answer_remotely)
    router = await harness.router(decode, prefill=(prefill,) if mode == "remote" else ())
    client = await router.client(receive_buffer=SMALL)
    await client.send(request(COMPLETIONS, STREAM))
    return router, client, await decode.call()


@pytest.mark.parametrize("mode", ["direct", "remote"])
async def test_paused_client_pauses_its_engine(harness: Harness, mode: str) -> None:
    router, client, call = await _streaming(harness, mode)
    call.send(sse_head())
    pump = Pump(router, call, EVENT)
    await pump.until_stuck()
    assert 0 < _buffered(router) < ROUTER_KEEPS
    assert not _is_read_from(router, harness.engines[1])
    call.send(chunk(DONE), LAST_CHUNK)
    answer = await (await client.begin()).rest()
    assert answer.body == EVENT * (pump.written // len(EVENT)) + DONE
    await router.is_quiet()
    assert router.pool(harness.engines[1]).idle == 1


async def test_one_unreading_client_delays_no_other(harness: Harness) -> None:
    router, _, call = await _streaming(harness, "direct")
    call.send(sse_head())
    await Pump(router, call, EVENT).until_stuck()
    other = await router.send(COMPLETIONS, STREAM)
    second = await harness.engines[1].call()
    second.stream_whole(token("a"), DONE)
    assert (await other.answer()).body == token("a") + DONE


async def test_a_passed_through_answer_waits_for_its_client_too(harness: Harness) -> None:
    engine, router = await harness.single()
    client = await router.client(receive_buffer=SMALL)
    await client.send(request(EMBEDDINGS, {"input": "x"}))
    call = await engine.call()
    call.send(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ntransfer-encoding: chunked\r\n\r\n")
    pump = Pump(router, call, bytes(range(256)) * 8)
    await pump.until_stuck()
    assert _buffered(router) < ROUTER_KEEPS
    call.send(LAST_CHUNK)
    answer = await (await client.begin()).rest()
    assert answer.body == bytes(range(256)) * 8 * (pump.written // 2048)


async def test_a_reused_connection_is_read_from_after_a_slow_client(harness: Harness) -> None:
    router, client, call = await _streaming(harness, "direct")
    call.send(sse_head())
    await Pump(router, call, EVENT).until_stuck()
    call.end(DONE)
    await client.answer()
    engine = harness.engines[1]
    assert router.pool(engine).idle == 1
    await client.send(request(COMPLETIONS, STREAM))
    again = await engine.call()
    assert again.connection is call.connection
    again.stream_whole(DONE)
    assert (await client.answer()).body == DONE


async def test_an_engine_is_read_while_its_answer_waits_for_the_client(harness: Harness) -> None:
    """The answer has come in full: the connection is idle and must notice when it is closed."""
    engine, router = await harness.single()
    client = await router.client(receive_buffer=SMALL)
    await client.send(request(COMPLETIONS, completion()))
    (await engine.call()).send(LARGE)
    assert (await router.record()).status == 200
    (connection,) = router.connections
    assert connection.write_paused
    assert router.pool(engine).idle == 1
    assert _is_read_from(router, engine)


async def test_stream_behind_an_unread_answer_waits(harness: Harness) -> None:
    engine, router = await harness.single()
    client = await router.client(receive_buffer=SMALL)
    await client.send(request(COMPLETIONS, completion()) + request(COMPLETIONS, STREAM))
    (await engine.call()).send(LARGE)
    assert (await router.record()).status == 200
    (connection,) = router.connections
    assert connection.write_paused
    assert connection.active is None
    await client.answer()
    call = await engine.call()
    call.stream(EVENT, DONE)
    call.end()
    assert (await client.answer()).body == EVENT + DONE


async def test_new_stream_waits_for_a_client_that_does_not_read(harness: Harness) -> None:
    """The client may have had the head and comments already, by an engine that has failed."""
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    client = await router.client(receive_buffer=SMALL)
    await client.send(request(COMPLETIONS, STREAM))
    prefilled = await prefill.call()
    (connection,) = router.connections
    connection.pause_writing()
    answer_remotely(prefilled)
    call = await decode.call()
    call.stream(EVENT)
    (relay,) = router.router.clients.idle_sweep._watched
    assert isinstance(relay, EngineLeg)
    await eventually(lambda: relay.status)
    assert not _is_read_from(router, decode)
    connection.resume_writing()
    call.end(DONE)
    assert (await client.answer()).body == EVENT + DONE


async def test_a_client_that_never_reads_again_is_cut_off(harness: Harness) -> None:
    engine, router = await harness.single(client_stall_timeout=0.05)
    client = await router.client(receive_buffer=SMALL)
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.send(sse_head(), *[chunk(EVENT)] * 10_000)
    await call.left()
    assert (await router.record()).outcome == "client_left"
    await eventually(lambda: not router.connections)


@pytest.mark.parametrize("path", [COMPLETIONS, EMBEDDINGS])
async def test_client_that_never_reads_is_cut_off(harness: Harness, path: str) -> None:
    """The request has ended then; a buffer and a socket remain."""
    engine, router = await harness.single(client_stall_timeout=0.05)
    client = await router.client(receive_buffer=SMALL)
    engine.answer_all(lambda call: call.send(json_reply(b'{"x":"' + b"x" * 20_000_000 + b'"}')))
    await client.send(request(path, completion()))
    assert (await router.record()).status == 200
    await eventually(lambda: not router.connections)


async def test_a_closing_client_that_never_reads_is_cut_off(harness: Harness) -> None:
    """Its answer lies in a buffer that is not full enough to count as a stall by itself."""
    engine, router = await harness.single(client_stall_timeout=0.05)
    client = await router.client(receive_buffer=SMALL)
    await client.send(request(COMPLETIONS, completion(), (b"connection", b"close")))
    call = await engine.call()
    (connection,) = router.connections
    connection.transport.set_write_buffer_limits(high=1 << 30)
    call.send(json_reply(b'{"x":"' + b"x" * 20_000_000 + b'"}'))
    assert (await router.record()).status == 200
    await eventually(lambda: not router.connections)


@pytest.mark.parametrize("more", [(), ((b"connection", b"close"),)], ids=["kept", "closing"])
async def test_a_client_that_reads_on_gets_all_of_a_large_answer(
    harness: Harness, more: tuple[tuple[bytes, bytes], ...]
) -> None:
    """However long it takes to read what the router holds for it."""
    engine, router = await harness.single(client_stall_timeout=3600)
    client = await router.client(receive_buffer=SMALL)
    await client.send(request(COMPLETIONS, completion(), *more))
    (await engine.call()).send(LARGE)
    assert (await router.record()).status == 200
    (connection,) = router.connections
    answer = await client.begin()
    before = _buffered(router)
    while _buffered(router) == before:
        await answer.more()
    connection.on_deadline()
    assert connection.deadline < NEVER
    assert LARGE.endswith((await answer.rest()).body)


async def test_a_client_that_reads_slowly_but_reads_is_not_cut_off(harness: Harness) -> None:
    """Each time its buffer has emptied the patience begins anew."""
    engine, router = await harness.single(client_stall_timeout=3600)
    client = await router.client(receive_buffer=SMALL)
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.send(sse_head())
    (connection,) = router.connections
    pump = Pump(router, call, EVENT)
    await pump.until_stuck()
    first = connection.deadline
    assert first < NEVER
    answer = await client.begin()
    while connection.deadline == first:
        pump.fill()
        await answer.more()
    assert connection.deadline > first
    call.end(DONE)
    await answer.rest()
    await eventually(lambda: not connection.write_paused)


async def test_paused_client_hides_a_silent_engine(harness: Harness) -> None:
    router, client, call = await _streaming(harness, "direct")
    call.send(sse_head())
    pump = Pump(router, call, EVENT)
    await pump.until_stuck()
    (relay,) = router.router.clients.idle_sweep._watched
    now = asyncio.get_running_loop().time()
    for hours in range(1, 4):
        relay.check_idle(now + hours * 3600)
    call.end(DONE)
    assert (await client.answer()).body == EVENT * (pump.written // len(EVENT)) + DONE


@pytest.mark.parametrize("mode", ["direct", "remote"])
async def test_an_unread_stream_is_no_evidence_about_the_engine(
    harness: Harness, mode: str
) -> None:
    router, client, call = await _streaming(harness, mode)
    engine = harness.engines[1]
    speed = router.router.fleet.member(router.endpoint(engine)).speed
    call.send(sse_head())
    pump = Pump(router, call, EVENT)
    await pump.until_stuck()
    idle_sweep = router.router.clients.idle_sweep
    for _ in range(3):
        idle_sweep._sweep()
    idle_sweep._disarm()  # from here on only the test sweeps
    assert (speed.counts.open, speed.counts.streams) == (0, 0)
    (relay,) = idle_sweep._watched
    assert isinstance(relay, EngineLeg)
    answer = await client.begin()
    while relay._is_paused or len(answer.body) < pump.written:
        await answer.more()
    # What had piled up came at once. It is timed again when the client has kept up for a while.
    idle_sweep._sweep()
    idle_sweep._disarm()
    assert (speed.counts.open, speed.counts.streams) == (0, 0)
    assert relay.timer.counter is not speed.counts.counter
    idle_sweep._sweep()
    assert (speed.counts.open, speed.counts.streams) == (1, 1)
    assert relay.timer.counter is speed.counts.counter
    call.send(chunk(DONE), LAST_CHUNK)
    await answer.rest()
    assert answer.body.endswith(DONE)
    await router.is_quiet()
    assert (speed.counts.open, speed.counts.streams) == (0, 0)


async def test_a_stream_ends_well_while_its_client_does_not_read(harness: Harness) -> None:
    router, client, call = await _streaming(harness, "direct")
    speed = router.router.fleet.member(router.endpoint(harness.engines[1])).speed
    call.send(sse_head())
    await Pump(router, call, EVENT).until_stuck()
    client.leave()
    await call.left()
    await router.is_quiet()
    assert (speed.counts.open, speed.counts.streams) == (0, 0)


# The other way: an engine that reads slowly.


async def test_a_large_body_waits_for_a_slow_engine_and_arrives_whole(harness: Harness) -> None:
    engine, router = await harness.single()

    def pause(connection: Connection) -> None:
        connection.transport.pause_reading()

    engine.on_connect = pause
    body = completion("x" * 30_000_000)
    client = await router.send(COMPLETIONS, body)
    await eventually(lambda: engine.connections and router.pool(engine).open == 1)
    engine.connections[-1].transport.resume_reading()
    call = await engine.call()
    assert call.json == body
    call.send(json_reply({}))
    assert (await client.answer()).status == 200


async def test_an_upload_is_not_read_faster_than_it_is_taken(harness: Harness) -> None:
    """A body is refused as soon as it is too large: the limit bounds the held bytes."""
    engine, router = await harness.single(max_body_bytes=100_000)
    client = await router.client()
    await client.send(
        request(COMPLETIONS, chunk(b"x" * 90_000), (b"transfer-encoding", b"chunked"))
    )
    await client.send(chunk(b"x" * 20_000))
    assert (await client.answer()).status == 413
    assert engine.seen == 0
