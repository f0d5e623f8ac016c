"""Every refusal has its true status and OpenAI's shape, and costs no engine anything."""

import asyncio
from collections.abc import Callable

import orjson
import pytest

from router.core.events import RequestEnded
from router.net.client_connection import NEVER, NEXT_REQUEST
from tests.net.client import Answer, Truncated, request
from tests.net.engine import chunk, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    STREAM,
    completion,
)


async def raw(router: Running, data: bytes, method: str = "POST") -> Answer:
    """What these bytes are answered on a connection of their own."""
    client = await router.client()
    await client.send(data)
    return await client.answer(method)


# Bodies.

BAD_BODIES = {
    "empty": b"",
    "no JSON": b"{",
    "more than JSON": b"{} {}",
    "bad UTF-8": b'{"a":"\xff"}',
    "NaN": b'{"a":NaN}',
    "an array": b"[]",
    "a string": b'"a"',
    "null": b"null",
    "too deep": b'{"a":' * 2000 + b"1" + b"}" * 2000,
    "a model that is a number": b'{"model":1}',
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES, EMBEDDINGS])
@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_a_body_that_no_engine_could_read_is_400(
    harness: Harness, path: str, body: bytes
) -> None:
    engine = await harness.engine()
    router = await harness.router(engine)
    answer = await router.ask(path, body)
    assert answer.status == 400
    assert answer.error["type"] == "BadRequestError"
    assert answer.error["param"] in ("body", "model")
    assert engine.seen == 0


async def test_a_refusal_leaves_the_connection_usable(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    client = await router.client()
    for _ in range(3):
        assert (await client.ask(COMPLETIONS, b"{")).status == 400
        assert (await client.ask(COMPLETIONS, completion())).status == 200


async def test_a_model_that_no_engine_serves_is_404(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine)
    answer = await router.ask(COMPLETIONS, {"model": "gpt-5", "prompt": "x"})
    assert answer.status == 404
    assert answer.error["param"] == "model"
    assert answer.error["message"] == "The model `gpt-5` does not exist."
    assert engine.seen == 0


async def test_a_refusal_names_the_request_and_is_recorded(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    answer = await router.ask(COMPLETIONS, b"{", (b"x-request-id", b"mine"))
    assert answer.values(b"x-request-id") == [b"mine"]
    record = await router.record()
    assert (record.request_id, record.status, record.outcome) == ("mine", 400, "error")
    assert record.error == answer.error["message"]


@pytest.mark.parametrize("coding", [b"gzip", b"br", b"GZIP", b"gzip, identity", b"zstd"])
async def test_a_compressed_body_is_415(harness: Harness, coding: bytes) -> None:
    engine = await harness.engine()
    router = await harness.router(engine)
    answer = await router.ask(COMPLETIONS, b"\x1f\x8b", (b"content-encoding", coding))
    assert answer.status == 415
    assert answer.error["type"] == "UnsupportedMediaTypeError"


async def test_identity_is_no_compression(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    answer = await router.ask(COMPLETIONS, completion(), (b"content-encoding", b"Identity"))
    assert answer.status == 200


async def test_a_post_that_declares_no_body_is_411(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    answer = await raw(router, request(COMPLETIONS))
    assert answer.status == 411
    assert answer.error["type"] == "LengthRequiredError"


# Sizes.

LIMIT = 1024


def padded(size: int) -> bytes:
    """A good body of `size` bytes."""
    empty = orjson.dumps(completion(""))
    return orjson.dumps(completion("x" * (size - len(empty))))


async def test_a_body_of_the_largest_size_passes(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine, max_body_bytes=LIMIT)
    body = padded(LIMIT)
    assert len(body) == LIMIT
    assert (await router.ask(COMPLETIONS, body)).status == 200
    chunked = (b"transfer-encoding", b"chunked")
    answer = await router.ask(
        COMPLETIONS, chunk(body[:500]) + chunk(body[500:]) + chunk(b""), chunked
    )
    assert answer.status == 200


async def test_a_declared_body_of_one_byte_more_is_413_before_it_is_sent(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), max_body_bytes=LIMIT)
    head = request(COMPLETIONS, b"", (b"content-length", b"%d" % (LIMIT + 1)))
    answer = await raw(router, head)
    assert answer.status == 413
    assert answer.error["type"] == "RequestTooLargeError"
    assert answer.values(b"connection") == [b"close"]


async def test_a_chunked_body_of_one_byte_more_is_413(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), max_body_bytes=LIMIT)
    body = padded(LIMIT + 1)
    data = request(COMPLETIONS, chunk(body[:1000]), (b"transfer-encoding", b"chunked"))
    client = await router.client()
    await client.send(data)
    await client.send(chunk(body[1000:]))
    assert (await client.answer()).status == 413


async def test_a_length_of_many_digits_is_413_or_400(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %b\r\n\r\n"
    assert (await raw(router, head % (b"9" * 18))).status == 413
    assert (await raw(router, head % (b"9" * 5000))).status == 400


async def test_a_client_that_goes_on_sending_can_read_its_413(harness: Harness) -> None:
    """Closing with bytes unread would make the kernel take the answer back."""
    router = await harness.router(await harness.engine(), max_body_bytes=LIMIT)
    client = await router.client()
    await client.send(request(COMPLETIONS, b"x" * 5_000_000))
    assert (await client.answer()).status == 413
    assert await client.ended() == b""


async def test_behind_an_answer_that_closes_nothing_is_served(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine, max_body_bytes=LIMIT)
    client = await router.client()
    body = b"x" * (LIMIT + 1)
    await client.send(request(COMPLETIONS, body[:1]).replace(b": 1\r", b": %d\r" % len(body)))
    assert (await client.answer()).status == 413
    await client.send(body[1:] + request(COMPLETIONS, completion()))
    assert await client.ended() == b""
    assert engine.seen == 0


async def test_a_body_that_does_not_arrive_in_time_is_408(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, body_timeout=0.05)
    answer = await raw(router, request(COMPLETIONS, STREAM)[:-1])
    assert answer.status == 408
    assert answer.error["type"] == "RequestTimeoutError"
    assert answer.values(b"connection") == [b"close"]
    assert engine.seen == 0


# Routes and methods.

UNKNOWN = [
    "/",
    "/v1",
    "/v1/",
    "/v1/completion",
    "/v1/completions/",
    "/v1/chat/completions/",
    "/V1/completions",
    "/v1/Completions",
    "//v1/completions",
    "/v1//completions",
    "/v1/./completions",
    "/v1/x/../completions",
    "/../v1/completions",
    "/v1/completions;a=b",
    "/v1/completions%00",
    "/v1/completions%20",
    "/v1/completions%2f",
    "/v1%2fcompletions/x",
    "/v1/%2e/completions",
    "/v1/completions%3fa=b",
    "/v1/completions%252f",
    "/v1/completions%ff",
    "/sleep",
    "/sleep?level=1",
    "/%73leep",
    "/wake_up",
    "/is_sleeping",
    "/reset_prefix_cache",
    "/collective_rpc",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/server_info",
    "/pause",
    "/inference/v1/abort_requests",
    "/v1/models/../load_lora_adapter",
    "/v1/completions/../../sleep",
    "http://engine/sleep",
    "http://127.0.0.1/wake_up",
]


@pytest.mark.parametrize("target", UNKNOWN)
async def test_a_route_that_is_not_listed_is_404_and_never_asked_of_an_engine(
    harness: Harness, target: str
) -> None:
    engine = await harness.engine()
    router = await harness.router(engine)
    answer = await router.ask(target, STREAM)
    # A path under /v1/models/ is a model's name, which is for GET.
    assert answer.status == (405 if target.startswith("/v1/models/") else 404)
    assert answer.error["type"] in ("NotFoundError", "MethodNotAllowedError")
    assert engine.seen == 0


@pytest.mark.parametrize(
    "target",
    [
        "/v1/completions",
        "/v1/%63ompletions",
        "/v1%2fcompletions",
        "http://any.host/v1/completions",
        "http://any.host:81/v1/completions",
        "/v1/completions?a=b%20c&d=/../sleep",
        "/v1/completions#fragment",
    ],
)
async def test_whatever_the_spelling_the_engine_is_asked_for_the_listed_path(
    harness: Harness, target: str
) -> None:
    engine = await harness.engine()
    router = await harness.router(engine)
    client = await router.client()
    await client.send(request(target, completion()))
    call = await engine.call()
    _, mark, query = target.partition("?")
    assert call.target == f"/v1/completions{mark}{query}".encode()
    assert call.values(b"host") == [f"127.0.0.1:{engine.port}".encode()]
    call.send(json_reply({}))
    await client.answer()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "TRACE"])
@pytest.mark.parametrize("path", [CHAT, EMBEDDINGS])
async def test_another_method_than_post_is_405_and_told_which(
    harness: Harness, method: str, path: str
) -> None:
    engine = await harness.engine()
    router = await harness.router(engine)
    answer = await (await router.client()).get(path, method)
    assert answer.status == 405
    assert answer.values(b"allow") == [b"POST"]
    assert answer.error["type"] == "MethodNotAllowedError"
    assert engine.seen == 0


@pytest.mark.parametrize(
    ("path", "status"),
    [(CHAT, 405), ("/nothing", 404), ("/health", 200), ("/ready", 200), ("/metrics", 200)],
)
async def test_an_answer_to_head_has_no_body(harness: Harness, path: str, status: int) -> None:
    router = await harness.router(await harness.engine())
    client = await router.client()
    for _ in range(2):  # a body would stand where the second answer is looked for
        answer = await client.get(path, "HEAD")
        assert (answer.status, answer.body) == (status, b"")


@pytest.mark.parametrize(
    ("path", "status", "allow"),
    [
        (CHAT, 204, [b"OPTIONS, POST"]),
        (f"{CHAT}?a=b", 204, [b"OPTIONS, POST"]),
        ("/health", 204, [b"GET, HEAD, OPTIONS"]),
        ("/v1/models/org/name", 204, [b"GET, HEAD, OPTIONS"]),
        ("/nothing", 404, []),
    ],
)
async def test_options_says_what_a_path_takes(
    harness: Harness, path: str, status: int, allow: list[bytes]
) -> None:
    engine = await harness.engine()
    router = await harness.router(engine)
    client = await router.client()
    for _ in range(2):
        answer = await client.get(path, "OPTIONS")
        assert answer.status == status
        assert answer.values(b"allow") == allow
    assert engine.seen == 0


# What is not HTTP, or too much of it.

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
async def test_what_is_not_http_is_400_in_the_same_shape(harness: Harness, data: bytes) -> None:
    engine = await harness.engine()
    router = await harness.router(engine)
    client = await router.client()
    await client.send(data)
    answer = await client.answer()
    assert answer.status == 400
    assert answer.error["type"] == "BadRequestError"
    assert answer.values(b"connection") == [b"close"]
    assert await client.ended() == b""
    assert engine.seen == 0


async def test_bytes_behind_a_good_request_do_not_spoil_its_answer(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine)
    client = await router.client()
    await client.send(request(COMPLETIONS, STREAM) + b"this is not HTTP\r\n\r\n")
    call = await engine.call()
    call.stream(b"data: 1\n\n")
    answer = await client.begin()
    await answer.until(b"data: 1\n\n")
    call.end()
    await answer.rest()
    assert answer.body == b"data: 1\n\n"
    assert await client.ended() == b""
    assert engine.seen == 1


async def test_bytes_that_come_while_a_stream_runs_do_not_spoil_it(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine)
    client = await router.client()
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.stream(b"data: 1\n\n")
    answer = await client.begin()
    await answer.until(b"data: 1\n\n")
    await client.send(b"this is not HTTP\r\n\r\n")
    (connection,) = router.connections
    await eventually(lambda: connection._discards_input)
    call.events(b"data: 2\n\n")
    call.end()
    await answer.rest()
    assert answer.body == b"data: 1\n\ndata: 2\n\n"
    assert await client.ended() == b""


async def test_a_body_that_turns_out_to_be_no_http_is_refused_once(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine)
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
async def test_a_line_without_an_end_is_not_collected_for_ever(
    harness: Harness, name: str, start: bytes
) -> None:
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


# Slowness.


@pytest.fixture
def head_seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the patience with heads from the next one on."""
    return lambda seconds: monkeypatch.setattr("router.net.client_connection.HEAD_SECONDS", seconds)


async def test_a_head_that_does_not_arrive_in_time_is_408(
    harness: Harness, head_seconds: Callable[[float], None]
) -> None:
    router = await harness.router(await harness.engine())
    client = await router.client()
    assert (await client.get("/health")).status == 200
    head_seconds(0.05)
    await client.send(b"POST /v1/completions HTTP/1.1\r\nhost:")
    answer = await client.answer()
    assert answer.status == 408
    assert answer.error["type"] == "RequestTimeoutError"
    assert await client.ended() == b""


async def test_a_connection_that_asks_nothing_is_closed(
    harness: Harness, head_seconds: Callable[[float], None]
) -> None:
    router = await harness.router(await harness.engine())
    head_seconds(0.05)
    client = await router.client()
    assert await client.ended() == b""


async def test_a_connection_that_was_refused_something_may_stay_as_long_as_any(
    harness: Harness,
) -> None:
    """The answer is over in the very read that brought the request."""
    router = await harness.router(await harness.engine())
    client = await router.client()
    assert (await client.get(COMPLETIONS)).status == 405
    (connection,) = router.connections
    assert connection._awaited == NEXT_REQUEST
    left = connection.deadline - asyncio.get_running_loop().time()
    assert left <= router.router.settings.keep_alive_timeout


async def test_empty_lines_do_not_keep_a_connection_open(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), keep_alive_timeout=0.1)
    client = await router.client()
    assert (await client.get("/health")).status == 200
    await client.send(b"\r\n")
    assert await client.ended() == b""


async def test_a_head_may_wait_while_another_answer_is_under_way(
    harness: Harness, head_seconds: Callable[[float], None]
) -> None:
    """Behind pipelined requests it is the router who does not read on."""
    engine = await harness.engine()
    router = await harness.router(engine)
    client = await router.client()
    assert (await client.get("/health")).status == 200
    (connection,) = router.connections
    head_seconds(0.05)
    await client.send(request(COMPLETIONS, STREAM) + b"GET /health HTTP/1.1\r\n")
    call = await engine.call()
    assert connection.deadline == NEVER  # it is not timed meanwhile
    head_seconds(3600)
    call.stream(b"data: 1\n\n")
    call.end()
    assert (await client.answer()).body == b"data: 1\n\n"
    await client.send(b"\r\n")
    assert (await client.answer("GET")).status == 200


async def test_an_idle_client_connection_is_closed_after_the_keep_alive_time(
    harness: Harness,
) -> None:
    router = await harness.router(await harness.engine(), keep_alive_timeout=0.05)
    client = await router.client()
    assert (await client.get("/health")).status == 200
    assert await client.ended() == b""


# Engines.


async def test_an_engine_that_refuses_is_502(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine)
    engine.refuse()
    answer = await router.ask(COMPLETIONS, STREAM)
    assert answer.status == 502
    assert answer.error["type"] == "EngineError"


async def test_no_engine_is_503_with_retry_after(harness: Harness) -> None:
    engine = await harness.engine(listening=False)
    router = await harness.router(engine, ready=False)
    answer = await router.ask(COMPLETIONS, STREAM)
    assert answer.status == 503
    assert answer.error["type"] == "ServiceUnavailableError"
    assert answer.values(b"retry-after") == [b"1"]


async def test_a_fault_of_our_own_is_500_and_logged(
    harness: Harness, complaints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    router = await harness.router(await harness.engine())
    monkeypatch.setattr(router.router.handler.network, "plans", broken)
    client = await router.client()
    answer = await client.ask(COMPLETIONS, STREAM)
    assert answer.status == 500
    assert "secret" not in answer.error["message"]
    assert answer.error["type"] == "InternalServerError"
    assert "ZeroDivisionError: secret" in complaints[0]
    complaints.clear()
    assert (await client.get("/health")).status == 200
    assert [r.outcome for r in router.all(RequestEnded)] == ["error"]


async def test_a_refused_connection_tells_nothing_more(harness: Harness) -> None:
    """The strict client itself notices an answer that is cut off."""
    router = await harness.router(await harness.engine())
    client = await router.client()
    client.writer.write_eof()
    with pytest.raises(Truncated):
        await client.answer()
