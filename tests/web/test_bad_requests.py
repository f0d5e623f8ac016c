"""What is not HTTP, or too much of it, is refused."""

import pytest

from tests.net.client import request
from tests.net.engine import chunk
from tests.net.harness import Harness, eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM

CHUNKED = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
NOT_HTTP = {
    "a word": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/3.0": b"GET /health HTTP/3.0\r\n\r\n",
    "no method": b"/health HTTP/1.1\r\n\r\n",
    "unknown method": b"BREW /health HTTP/1.1\r\n\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\n\r\n",
    "bytes in the target": b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
    "no path": b"GET http://host HTTP/1.1\r\nhost: x\r\n\r\n",
    "CONNECT": b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n",
    "no colon": b"GET /health HTTP/1.1\r\nhost x\r\n\r\n",
    "a space before the colon": b"GET /health HTTP/1.1\r\nhost : x\r\n\r\n",
    "a folded header": b"GET /health HTTP/1.1\r\nhost: x\r\n y\r\n\r\n",
    "NUL in a header": b"GET /health HTTP/1.1\r\nhost: x\x00y\r\n\r\n",
    "a bare CR in a header": b"GET /health HTTP/1.1\r\na: x\ry\r\n\r\n",
    "two lengths": b"POST /v1/completions HTTP/1.1\r\n"
    b"content-length: 1\r\ncontent-length: 2\r\n\r\na",
    "length and chunks": CHUNKED[:-2] + b"content-length: 3\r\n\r\n0\r\n\r\n",
    "a negative length": b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    "a length with a sign": b"POST /v1/completions HTTP/1.1\r\ncontent-length: +1\r\n\r\na",
    "chunks within gzip": CHUNKED.replace(b"chunked", b"chunked, gzip") + b"0\r\n\r\n",
    "no chunk": CHUNKED + b"hello\r\n",
    "a chunk size with a sign": CHUNKED + b"-1\r\n\r\n",
    "an unended chunk": CHUNKED + b"1\r\nab\r\n",
}


@pytest.mark.parametrize("data", NOT_HTTP.values(), ids=NOT_HTTP)
async def test_invalid_http_is_400_in_the_same_format(harness: Harness, data: bytes) -> None:
    engine, router = await harness.single()
    client = await router.client()
    await client.send(data)
    answer = await client.answer()
    assert answer.status == 400
    assert answer.error["type"] == "BadRequestError"
    assert answer.values(b"connection") == [b"close"]
    assert await client.ended() == b""
    assert engine.seen == 0


async def test_bytes_behind_a_good_request_do_not_spoil_its_answer(harness: Harness) -> None:
    engine, router = await harness.single()
    client = await router.client()
    await client.send(request(COMPLETIONS, STREAM) + b"this is not HTTP\r\n\r\n")
    call = await engine.call()
    call.stream(b"data: 1\n\n")
    answer = await client.begin()
    await answer.until(b"data: 1\n\n")
    call.end(DONE)
    await answer.rest()
    assert answer.body == b"data: 1\n\n" + DONE
    assert await client.ended() == b""
    assert engine.seen == 1


async def test_bytes_that_come_while_a_stream_runs_do_not_spoil_it(harness: Harness) -> None:
    _, router, client, call = await harness.stream()
    call.stream(b"data: 1\n\n")
    answer = await client.begin()
    await answer.until(b"data: 1\n\n")
    await client.send(b"this is not HTTP\r\n\r\n")
    (connection,) = router.connections
    await eventually(lambda: connection._discards_input)
    call.end(b"data: 2\n\n", DONE)
    await answer.rest()
    assert answer.body == b"data: 1\n\ndata: 2\n\n" + DONE
    assert await client.ended() == b""


async def test_a_body_that_turns_out_to_be_no_http_is_refused_once(harness: Harness) -> None:
    engine, router = await harness.single()
    client = await router.client()
    await client.send(CHUNKED + chunk(b'{"model"'))
    await eventually(lambda: router.router.handler.active)
    await client.send(b"no chunk\r\n")
    answer = await client.answer()
    assert answer.status == 400
    assert await client.ended() == b""
    await router.is_quiet()
    assert engine.seen == 0


HUGE = 200_000
BIG_HEADS = {
    "one header": b"GET /health HTTP/1.1\r\na: " + b"x" * HUGE + b"\r\n\r\n",
    "one name": b"GET /health HTTP/1.1\r\n" + b"x" * HUGE + b": a\r\n\r\n",
    "many headers": b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * (HUGE // 6) + b"\r\n",
    "some hundred headers": b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 257 + b"\r\n",
    "headers without a value": b"GET /health HTTP/1.1\r\n" + b"a:\r\n" * (HUGE // 4) + b"\r\n",
    "trailers without a value": CHUNKED + b"0\r\n" + b"a:\r\n" * (HUGE // 4) + b"\r\n",
    "target": b"GET /" + b"x" * HUGE + b" HTTP/1.1\r\n\r\n",
    "trailers": CHUNKED + b"0\r\n" + b"a: b\r\n" * (HUGE // 4) + b"\r\n",
    "trailer": CHUNKED + b"0\r\na: " + b"x" * HUGE + b"\r\n\r\n",
}


@pytest.mark.parametrize("data", BIG_HEADS.values(), ids=BIG_HEADS)
async def test_a_head_that_is_too_large_is_431(harness: Harness, data: bytes) -> None:
    router = await harness.router(await harness.engine())
    client = await router.client()
    client.writer.write(data)
    answer = await client.answer()
    assert answer.status == 431
    assert answer.error["type"] == "RequestHeaderFieldsTooLargeError"
    assert await client.ended() == b""


ENDLESS = {
    "header": b"GET /health HTTP/1.1\r\na: ",
    "header name": b"GET /health HTTP/1.1\r\n",
    "target": b"GET /",
    "trailer": CHUNKED + b"0\r\na: ",
    "chunk extension": CHUNKED + b"1;",
    "empty lines": b"",
}


@pytest.mark.parametrize(("name", "start"), ENDLESS.items(), ids=ENDLESS)
async def test_endless_line_is_refused(harness: Harness, name: str, start: bytes) -> None:
    router = await harness.router(await harness.engine())
    client = await router.client()
    await client.send(start)
    piece = b"\r\n" * 2048 if name == "empty lines" else b"x" * 4096
    sent = 0
    while sent < 2_000_000 and not client.reader._buffer:  # type: ignore[attr-defined]
        await client.send(piece)
        sent += len(piece)
    assert sent < 2_000_000
    answer = await client.answer()
    assert answer.status == 431


async def test_a_head_of_the_usual_size_passes_in_single_bytes(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    client = await router.client()
    data = request("/health", None, *[(b"h%d" % n, b"x" * 50) for n in range(20)], method="GET")
    for at in range(len(data)):
        await client.send(data[at : at + 1])
    assert (await client.answer("GET")).status == 200
