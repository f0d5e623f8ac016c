"""The client's side of a connection: reuse, pipelining, HTTP/1.0, 100 Continue."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import orjson
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from router.core.events import RequestEnded
from router.net.client.client_request import MAX_WAITING, SMALL_BYTES, UNREAD_BYTES
from tests.net.client import Truncated, request
from tests.net.engine import Call, chunk, json_reply
from tests.net.harness import Harness, eventually, flow_of
from tests.net.payloads import COMPLETIONS, DONE, OK, STREAM, completion, token


def stream(call: Call) -> None:
    """A short stream that echoes the prompt."""
    call.stream_whole(token(call.json["prompt"]), DONE)


async def test_a_connection_serves_streams_and_unary_answers_in_turn(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: stream(call) if call.json.get("stream") else call.send(OK))
    client = await router.client()
    for _ in range(5):
        assert (await client.ask(COMPLETIONS, STREAM)).body == token("hi") + DONE
        assert (await client.ask(COMPLETIONS, completion())).status == 200
        assert (await client.get("/health")).status == 200
    assert len(router.connections) == 1


async def test_a_request_with_connection_close_is_answered_and_closed(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(stream)
    client = await router.client()
    answer = await client.ask(COMPLETIONS, STREAM, (b"connection", b"close"))
    assert answer.values(b"connection") == [b"close"]
    assert answer.body == token("hi") + DONE
    assert await client.ended() == b""


@pytest.mark.parametrize("sizes", [(1, 2, 3), (1, 300_000, 2), (300_000, 300_000, 300_000)])
async def test_pipelined_requests_are_answered_in_order(
    harness: Harness, sizes: tuple[int, ...]
) -> None:
    engine, router = await harness.single()
    engine.answer_all(stream)
    client = await router.client()
    prompts = [letter * size for letter, size in zip("abc", sizes, strict=True)]
    data = b"".join(request(COMPLETIONS, completion(p, stream=True)) for p in prompts)
    client.writer.write(data)
    for prompt in prompts:
        assert (await client.answer()).body == token(prompt) + DONE
    assert engine.seen == 3


async def test_pipelined_requests_run_one_after_the_other(harness: Harness) -> None:
    engine, router = await harness.single()
    client = await router.send(COMPLETIONS, completion("a"))
    await client.send(request(COMPLETIONS, completion("b")))
    first = await engine.call()
    assert engine.seen == 1
    assert router.router.fleet.ledger.total() == 1
    first.send(OK)
    await client.answer()
    (await engine.call()).send(OK)
    await client.answer()


async def test_many_pipelined_requests_are_all_answered(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(stream)
    client = await router.client()
    number = 100
    client.writer.write(
        b"".join(request(COMPLETIONS, completion(str(n), stream=True)) for n in range(number))
    )
    for n in range(number):
        assert (await client.answer()).body == token(str(n)) + DONE


async def test_a_pipelined_flood_is_not_read_ahead(harness: Harness) -> None:
    _, router, client, call = await harness.stream()
    (connection,) = router.connections
    one = request("/health", method="GET")
    client.writer.write(one * 100_000)
    await eventually(lambda: flow_of(connection).read_paused)
    # Some of what was read is queued; nothing more is read until an answer is over.
    assert len(connection._waiting or ()) <= MAX_WAITING
    client.leave()
    call.stream()

    def write_more() -> bool:
        if not call.connection.closed.is_set():
            call.events(token("x"))
        return call.connection.closed.is_set()

    await eventually(write_more)


async def test_a_client_with_thousands_of_pipelined_requests_is_cut_off(harness: Harness) -> None:
    """Each answer would let another read be queued: thousands more requests for one answered."""
    router = await harness.router(await harness.engine())
    client = await router.client()
    client.writer.write(request("/health", method="GET") * 20_000)
    number = 0
    with contextlib.suppress(Truncated, ConnectionError):
        while True:
            answer = await client.answer("GET")
            assert answer.status == 200
            number += 1
    assert 0 < number <= MAX_WAITING + 1


async def test_bodies_behind_a_request_are_not_read_ahead(harness: Harness) -> None:
    _, router, client, call = await harness.stream()
    (connection,) = router.connections
    one = request(COMPLETIONS, b"x" * 60_000)
    client.writer.write(one * 40)
    await eventually(lambda: flow_of(connection).read_paused)
    for _ in range(20):  # nothing more comes
        await asyncio.sleep(0)
    assert connection._waiting.size <= UNREAD_BYTES + (256 << 10)
    call.stream_whole(token("hi"), DONE)
    await client.answer()
    for _ in range(40):
        assert (await client.answer()).status == 400


async def test_a_body_in_tiny_chunks_takes_no_more_memory_than_its_bytes(harness: Harness) -> None:
    engine, router = await harness.single()
    client = await router.client()
    head = request(COMPLETIONS, b"", (b"transfer-encoding", b"chunked")).partition(b"\r\n\r\n")[0]
    body = orjson.dumps(completion("x" * 50_000))
    client.writer.write(head + b"\r\n\r\n" + b"".join(chunk(bytes([each])) for each in body))
    (connection,) = router.connections
    await eventually(lambda: connection.active and connection.active.size == len(body))
    assert len(connection.active._parts) <= 2 * len(body) // SMALL_BYTES + 1
    await client.send(b"0\r\n\r\n")
    call = await engine.call()
    assert await call.read() == body
    call.send(OK)
    assert (await client.answer()).status == 200


async def test_invalid_http_is_refused_only_after_the_current_answer(harness: Harness) -> None:
    """The broken request cannot be answered before the first answer ends."""
    _, router, client, call = await harness.stream()
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    await client.send(request(COMPLETIONS, b"ZZZ\r\n", (b"transfer-encoding", b"chunked")))
    with pytest.raises(Truncated):
        await answer.rest()
    assert answer.body == token("a")
    await call.left()
    assert (await router.record()).outcome == "client_left"


async def test_pipelined_requests_end_at_connection_close(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(stream)
    client = await router.client()
    close = (b"connection", b"close")
    await client.send(request(COMPLETIONS, STREAM, close) + request(COMPLETIONS, STREAM))
    assert (await client.answer()).body == token("hi") + DONE
    assert await client.ended() == b""
    assert engine.seen == 1


async def test_a_second_content_type_hides_no_kv_parameters_from_the_router(
    harness: Harness,
) -> None:
    """Of two, engines read the body by the first, and the last one would pass it unread."""
    engine, router = await harness.single()
    client = await router.client()
    body = completion() | {"kv_transfer_params": {"remote_host": "10.0.0.1"}}
    types = ((b"content-type", b"application/json"), (b"content-type", b"text/plain"))
    await client.send(request("/v1/chat/completions/batch", body, *types))
    assert (await client.answer()).status == 400
    assert engine.seen == 0


# HTTP/1.0.


@pytest.mark.parametrize("body", [STREAM, completion()], ids=["stream", "unary"])
async def test_an_http_1_0_client_gets_no_chunks_and_a_closed_connection(
    harness: Harness, body: dict[str, object]
) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: stream(call) if call.json.get("stream") else call.send(OK))
    client = await router.client()
    keep = (b"connection", b"keep-alive")
    await client.send(request(COMPLETIONS, body, keep, version="1.0"))
    answer = await client.answer()
    assert answer.values(b"transfer-encoding") == []
    assert answer.values(b"connection") == [b"close"]
    assert answer.body in (token("hi") + DONE, b'{"choices":[{"text":"ok"}]}')
    assert await client.ended() == b""


async def test_a_stream_that_breaks_ends_with_a_frame_for_http_1_0_too(harness: Harness) -> None:
    engine, router = await harness.single()

    def script(call: Call) -> None:
        call.stream(token("a"))
        call.close()

    engine.answer_all(script)
    client = await router.send(COMPLETIONS, STREAM, version="1.0")
    answer = await client.answer()
    assert answer.body.startswith(token("a"))
    assert answer.body.endswith(DONE)


# Expect.


async def test_100_continue_is_sent_when_the_body_is_wanted(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(OK))
    client = await router.client()
    data = request(COMPLETIONS, completion(), (b"expect", b"100-continue"))
    head, _, body = data.partition(b"\r\n\r\n")
    await client.send(head + b"\r\n\r\n")
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(body)
    assert (await client.answer()).status == 200


async def test_100_continue_is_not_sent_for_a_body_that_is_refused(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), max_body_bytes=1024)
    client = await router.client()
    expect = (b"expect", b"100-continue")
    await client.send(request(COMPLETIONS, b"", expect, (b"content-length", b"2000")))
    assert (await client.answer()).status == 413
    assert client.interim == []
    assert await client.ended() == b""


async def test_a_client_that_expects_and_does_not_wait_is_served(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(OK))
    client = await router.client()
    answer = await client.ask(COMPLETIONS, completion(), (b"expect", b"100-continue"))
    assert answer.status == 200
    assert (await client.ask(COMPLETIONS, completion())).status == 200


# Bodies.


@pytest.mark.parametrize("size", [1, 10, 100_000, 1_000_000])
async def test_chunked_body_gets_a_content_length(harness: Harness, size: int) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(json_reply({"got": len(call.json["prompt"])})))
    client = await router.client()
    raw = request(COMPLETIONS, completion("x" * size)).partition(b"\r\n\r\n")[2]
    step = max(1, len(raw) // 7)
    body = b"".join(chunk(raw[at : at + step]) for at in range(0, len(raw), step)) + chunk(b"")
    chunked = (b"transfer-encoding", b"chunked")
    for _ in range(2):
        assert (await client.ask(COMPLETIONS, body, chunked)).json == {"got": size}


async def test_a_body_in_single_bytes_arrives(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(json_reply(call.json)))
    client = await router.client()
    data = request(COMPLETIONS, completion())
    for at in range(len(data)):
        await client.send(data[at : at + 1])
    assert (await client.answer()).json == completion()


async def test_every_request_leaves_one_record(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(stream)
    client = await router.client()
    for number in range(3):
        await client.ask(COMPLETIONS, STREAM, (b"x-request-id", b"r%d" % number))
    records = await router.records(3)
    assert [r.request_id for r in records] == ["r0", "r1", "r2"]
    for record in records:
        assert (record.route, record.model, record.stream) == (COMPLETIONS, "m", True)
        assert (record.status, record.outcome, record.error) == (200, "ok", None)
        assert record.bytes_out == len(token("hi") + DONE)
        assert record.first_byte is not None
        assert record.started <= record.first_byte <= record.ended
    assert router.all(RequestEnded) == records


async def test_an_operation_waits_for_a_client_that_does_not_read(harness: Harness) -> None:
    """Operations have the same flow control as inference."""
    router = await harness.router(await harness.engine())
    operations = router.router.operations.app
    assert isinstance(operations, FastAPI)
    text = b"x" * (8 << 20)
    went_on = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield text
        yield b"the "
        went_on.set()
        yield b"end"

    @operations.get("/many")
    async def many() -> StreamingResponse:
        return StreamingResponse(pieces())

    client = await router.client(receive_buffer=4096)
    await client.send(request("/many", method="GET"))
    (connection,) = router.connections
    await eventually(lambda: flow_of(connection).write_paused)
    for _ in range(10):  # turns of the loop, in which it could continue
        assert (await router.ask("/health", None)).status == 405
    assert not went_on.is_set()
    answer = await client.answer("GET")
    assert answer.body == text + b"the end"
    assert not flow_of(connection).write_paused
