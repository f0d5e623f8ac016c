"""A disconnect ends the work at once, in every phase, and leaves no state.

That no lease, connection or task is left is checked for every test of this folder at its end; here
it is checked while client and router continue.
"""

import asyncio
import ssl
from collections.abc import Callable

import pytest

from router.core.events import LegFailed
from router.core.urls import origin
from router.net.limits.start_limiter import StartLimiter
from router.net.request.served_request import ServedRequest
from router.net.watched_files import TLSFiles
from tests.net.client import SECONDS, Client, request
from tests.net.engine import Call, json_reply
from tests.net.harness import Harness, Running, eventually, flow_of
from tests.net.mute_server import mute_server
from tests.net.payloads import (
    COMPLETIONS,
    DONE,
    EMBEDDINGS,
    STREAM,
    answer_remotely,
    completion,
    token,
)

BIG = "x" * 300_000
"""More than uvicorn takes in before it stops reading, and more than one read of the event loop."""


def _leave(client: Client) -> None:
    client.leave()


def _hang_up(client: Client) -> None:
    client.hang_up()


def _stop_sending(client: Client) -> None:
    client.writer.write_eof()


WAYS = {"abort": _leave, "close": _hang_up, "half-close": _stop_sending}
ways = pytest.mark.parametrize("leave", WAYS.values(), ids=WAYS)
"""uvicorn takes a half-closed connection for a closed one, and so do we: no client of an LLM API
half-closes, and one that is gone looks the same."""

bodies = pytest.mark.parametrize("prompt", ["hi", BIG], ids=["small", "big"])

Leave = Callable[[Client], None]


async def _is_over(router: Running, *calls: Call) -> None:
    """The engines are free, nothing is held, and the record has the reason."""
    for call in calls:
        await call.left()
    await router.is_quiet()
    record = await router.record()
    assert record.outcome == "client_left"
    assert record.error is None
    assert router.all(LegFailed) == []


@ways
async def test_during_the_bodys_upload(harness: Harness, leave: Leave) -> None:
    engine, router = await harness.single()
    client = await router.client()
    await client.send(request(COMPLETIONS, STREAM)[:-5])
    await eventually(lambda: router.router.handler.active)
    leave(client)
    await _is_over(router)
    assert (await router.record()).status == 0
    assert engine.seen == 0


@ways
async def test_before_the_head_is_whole(harness: Harness, leave: Leave) -> None:
    engine, router = await harness.single()
    client = await router.client()
    await client.send(b"POST /v1/completions HTTP/1.1\r\nhost:")
    leave(client)
    await eventually(lambda: not router.connections)
    assert engine.seen == 0


@ways
async def test_while_others_that_came_with_it_are_begun(harness: Harness, leave: Leave) -> None:
    engine, router = await harness.single()
    start_limiter = router.router.handler.network.start_limiter = StartLimiter(0)
    client = await router.send(COMPLETIONS, STREAM)
    await eventually(lambda: start_limiter._waiting)
    leave(client)
    await _is_over(router)
    [(begin, _, _)] = start_limiter._waiting
    waiting: ServedRequest = begin.__self__  # type: ignore[attr-defined]
    assert waiting._request.take_body() == b"", "the budget has its bytes back"
    begin()
    await router.is_quiet()
    assert engine.seen == 0


@ways
async def test_while_a_connection_is_being_made(harness: Harness, leave: Leave) -> None:
    """An engine that accepts without a TLS answer leaves the router half connected."""
    engine, router = await harness.single()
    pool = router.pool(engine)
    async with mute_server() as mute:
        pool.origin = origin(f"https://127.0.0.1:{mute.port}")
        pool._tls = TLSFiles("engines", ssl.create_default_context)
        client = await router.send(COMPLETIONS, STREAM)
        async with asyncio.timeout(SECONDS):
            await mute.has_come.wait()
            leave(client)
            await mute.is_gone.wait()
        await _is_over(router)


@ways
@bodies
async def test_during_the_prefill(harness: Harness, leave: Leave, prompt: str) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    client = await router.send(COMPLETIONS, completion(prompt, stream=True))
    call = await prefill.call()
    leave(client)
    await _is_over(router, call)
    assert decode.seen == 0


@ways
async def test_in_the_middle_of_the_prefills_reply(harness: Harness, leave: Leave) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    client = await router.send(COMPLETIONS, STREAM)
    call = await prefill.call()
    call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
    leave(client)
    await _is_over(router, call)


@ways
@bodies
@pytest.mark.parametrize("mode", ["direct", "remote"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "unary"])
async def test_before_the_decode_engines_head(
    harness: Harness, leave: Leave, prompt: str, mode: str, stream: bool
) -> None:
    router, client, call = await _decoding(harness, mode, completion(prompt, stream=stream))
    leave(client)
    await _is_over(router, call)
    assert (await router.record()).status == 0


async def _decoding(
    harness: Harness, mode: str, body: object, path: str = COMPLETIONS
) -> tuple[Running, Client, Call]:
    """A request that has come to the decode engine."""
    prefill, decode = await harness.engine(), await harness.engine()
    prefill.answer_all(answer_remotely)
    router = await harness.router(decode, prefill=(prefill,) if mode == "remote" else ())
    client = await router.send(path, body)
    return router, client, await decode.call()


@ways
@bodies
@pytest.mark.parametrize("mode", ["direct", "remote"])
async def test_in_the_middle_of_a_stream(
    harness: Harness, leave: Leave, prompt: str, mode: str
) -> None:
    router, client, call = await _decoding(harness, mode, completion(prompt, stream=True))
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    leave(client)
    await _is_over(router, call)
    record = await router.record()
    assert (record.status, record.chunks) == (200, 1)


@ways
async def test_between_a_streams_head_and_its_first_event(harness: Harness, leave: Leave) -> None:
    router, client, call = await _decoding(harness, "direct", STREAM)
    call.stream()
    await client.begin()
    leave(client)
    await _is_over(router, call)


@ways
async def test_while_the_head_is_held_back(harness: Harness, leave: Leave) -> None:
    router, client, call = await _decoding(harness, "remote", STREAM)
    call.stream(b": keep-alive\n\n")
    leave(client)
    await _is_over(router, call)


@ways
async def test_in_the_middle_of_a_unary_answer(harness: Harness, leave: Leave) -> None:
    router, client, call = await _decoding(harness, "direct", completion())
    call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
    leave(client)
    await _is_over(router, call)
    assert (await router.record()).status == 0


@ways
async def test_in_the_middle_of_a_passed_through_answer(harness: Harness, leave: Leave) -> None:
    router, client, call = await _decoding(harness, "direct", {"input": "x"}, EMBEDDINGS)
    call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
    answer = await client.begin()
    await answer.until(b"{")
    leave(client)
    await _is_over(router, call)


async def test_while_it_does_not_read(harness: Harness) -> None:
    router, client, call = await _decoding(harness, "direct", STREAM)
    client = await router.client(receive_buffer=4096)
    call.close()
    await client.send(request(COMPLETIONS, STREAM))
    call = await harness.engines[1].call()
    call.stream(*[token("x" * 10_000)] * 2000)
    await eventually(lambda: any(flow_of(c).write_paused for c in router.connections))
    client.leave()
    await call.left()
    await router.is_quiet()


@ways
async def test_a_pipelined_request_waits_behind(harness: Harness, leave: Leave) -> None:
    """Reading stops after a pipelined request, so only a write shows the client's end."""
    engine, router = await harness.single()
    client = await router.send(COMPLETIONS, STREAM)
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    leave(client)

    def write_more() -> bool:
        if not call.connection.closed.is_set():
            call.events(token("b"))
        return call.connection.closed.is_set()

    await eventually(write_more)
    await _is_over(router, call)
    assert engine.seen == 1


async def test_writes_of_an_abandoned_engine_are_ignored(harness: Harness) -> None:
    """The engine's bytes and the client's end may come in the same turn of the event loop."""
    engine, router = await harness.single()
    for _ in range(30):
        client = await router.send(COMPLETIONS, STREAM)
        call = await engine.call()
        call.stream(token("a"))
        answer = await client.begin()
        await answer.until(token("a"))
        client.leave()
        call.end(token("b"), DONE)
    await router.is_quiet()


async def test_others_on_the_same_engine_are_not_touched(harness: Harness) -> None:
    engine, router = await harness.single()
    leaving, staying = await router.client(), await router.client()
    await leaving.send(request(COMPLETIONS, STREAM))
    first = await engine.call()
    await staying.send(request(COMPLETIONS, STREAM))
    second = await engine.call()
    first.stream(token("a"))
    second.stream(token("b"))
    leaving.leave()
    await first.left()
    assert router.router.fleet.ledger.total() == 1
    second.end(DONE)
    assert (await staying.answer()).body == token("b") + DONE


async def test_a_client_that_left_does_not_bring_its_engine_down(harness: Harness) -> None:
    engine, router = await harness.single()
    for _ in range(5):
        client = await router.send(COMPLETIONS, STREAM)
        call = await engine.call()
        client.leave()
        await call.left()
    await router.records(5)
    assert router.router.fleet.is_ready
    assert router.all(LegFailed) == []


async def test_an_answer_in_time_beats_the_clients_leaving(harness: Harness) -> None:
    """A client that closes after it has read all is a client that was answered."""
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(json_reply({})))
    client = await router.client()
    await client.ask(COMPLETIONS, completion())
    client.leave()
    assert (await router.record()).outcome == "ok"
    assert router.pool(engine).idle == 1
