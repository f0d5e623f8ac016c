"""The client gets a valid answer for any framing of an engine."""

import pytest

from router.core.events import LegFailed
from router.core.values import FailureKind
from tests.net.client import Answer, request
from tests.net.engine import LAST_CHUNK, Call, Connection, chunk, json_reply, sse_head
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import (
    COMPLETIONS,
    DONE,
    EMBEDDINGS,
    OK,
    STREAM,
    answer_remotely,
    completion,
    error_in,
    event,
    token,
)

BODY = b'{"choices":[{"text":"ok"}]}'
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"

UNARY = {
    "content-length": JSON_HEAD + b"content-length: 27\r\n\r\n" + BODY,
    "chunked": JSON_HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk(BODY) + chunk(b""),
    "chunks of one byte": JSON_HEAD
    + b"transfer-encoding: chunked\r\n\r\n"
    + b"".join(chunk(BODY[at : at + 1]) for at in range(len(BODY)))
    + chunk(b""),
    "chunk extensions": JSON_HEAD
    + b"transfer-encoding: chunked\r\n\r\n1b;a=b\r\n"
    + BODY
    + b"\r\n0\r\n\r\n",
    "trailers": JSON_HEAD
    + b"transfer-encoding: chunked\r\n\r\n"
    + chunk(BODY)
    + b"0\r\nx-trailer: 1\r\n\r\n",
    "after 100 Continue": b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    "after several interim answers": b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + OK,
    "no reason": b"HTTP/1.1 200\r\n" + OK.partition(b"\r\n")[2],
}


@pytest.mark.parametrize("wire", UNARY.values(), ids=UNARY)
@pytest.mark.parametrize("path", [COMPLETIONS, EMBEDDINGS])
async def test_every_framing_of_a_unary_answer_is_understood(
    harness: Harness, wire: bytes, path: str
) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(wire))
    client = await router.client()
    for _ in range(3):
        answer = await client.ask(path, completion())
        assert (answer.status, answer.body) == (200, BODY)
        assert answer.values(b"x-trailer") == answer.values(b"link") == []
    assert client.interim == []
    assert router.pool(engine).open == 1


@pytest.mark.parametrize("framing", [b"content-length: 0", b"transfer-encoding: chunked"])
async def test_a_passed_through_answer_may_have_no_body(harness: Harness, framing: bytes) -> None:
    engine, router = await harness.single()
    end = LAST_CHUNK if framing.startswith(b"transfer") else b""
    engine.answer_all(lambda call: call.send(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (framing, end)))
    answer = await router.ask(EMBEDDINGS, {"input": "x"})
    assert (answer.status, answer.body) == (200, b"")
    assert (await router.record()).outcome == "ok"


@pytest.mark.parametrize("path", [COMPLETIONS, EMBEDDINGS])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_an_answer_that_ends_with_its_connection_is_understood(
    harness: Harness, path: str, version: bytes
) -> None:
    engine, router = await harness.single()
    head = JSON_HEAD.replace(b"1.1", version) + b"connection: close\r\n\r\n"

    def script(call: Call) -> None:
        call.send(head, BODY)
        call.close()

    engine.answer_all(script)
    client = await router.client()
    for _ in range(2):
        answer = await client.ask(path, completion())
        assert (answer.status, answer.body) == (200, BODY)
    assert router.pool(engine).open == 0


async def test_an_http_1_0_answer_with_a_length_is_not_waited_for(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(OK.replace(b"HTTP/1.1", b"HTTP/1.0")))
    answer = await router.ask(COMPLETIONS, completion())
    assert (answer.status, answer.body, answer.version) == (200, BODY, b"1.1")
    await eventually(lambda: router.pool(engine).open == 0)


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_that_has_no_body_ends_with_its_head(harness: Harness, status: int) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(b"HTTP/1.1 %d X\r\nx-own: 1\r\n\r\n" % status))
    client = await router.client()
    for path in (EMBEDDINGS, COMPLETIONS):
        for _ in range(2):  # bytes of a body would be parsed as the next answer
            answer = await client.ask(path, completion())
            assert (answer.status, answer.body) == (status, b"")
            assert answer.values(b"x-own") == [b"1"]


async def test_a_status_without_a_name_passes(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(OK.replace(b" 200 X", b" 599 X")))
    assert (await router.ask(COMPLETIONS, completion())).status == 599
    engine.answer_all(lambda call: call.send(OK.replace(b" 200 X", b" 799 X")))
    client = await router.send(COMPLETIONS, completion())
    (line, _) = (await client.reader.readuntil(b"\r\n")).split(b"\r\n")
    assert line == b"HTTP/1.1 799 "


@pytest.mark.parametrize("name", [b"X-Trailer", b"content-type", b"x-request-id"])
async def test_trailers_do_not_reach_the_next_answer(harness: Harness, name: bytes) -> None:
    engine, _, client, call = await harness.stream()
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    call.send(chunk(DONE) + b"0\r\n" + name + b": 77\r\n\r\n")
    await answer.rest()
    await client.send(request(COMPLETIONS, completion()))
    again = await engine.call()
    assert again.connection is call.connection
    again.send(OK)
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, BODY)
    assert b"77" not in dict(answer.headers).values()


# Early answers.


async def test_an_answer_before_the_body_was_read_is_passed_on(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.on_connect = lambda connection: connection.transport.set_write_buffer_limits(0)
    refusal = json_reply({"error": {"message": "too large"}}, 413)

    def refuse(call: Call) -> None:
        call.connection.transport.pause_reading()
        call.send(refusal)

    engine.on_call = refuse
    client = await router.client()
    answer = await client.ask(COMPLETIONS, completion("x" * 20_000_000))
    assert (answer.status, answer.json) == (413, {"error": {"message": "too large"}})
    # Unsent bytes would be parsed as the next request.
    await eventually(lambda: router.pool(engine).open == 0)


# Too much of an answer.

BEHIND = {
    "garbage": b"this is no HTTP",
    "another answer": json_reply({"choices": [{"text": "of another request"}]}),
    "half an answer": b"HTTP/1.1 200 OK\r\ncontent-le",
    "an empty line": b"\r\n",
}


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
@pytest.mark.parametrize("path", [COMPLETIONS, EMBEDDINGS])
async def test_bytes_after_an_answer_are_dropped(
    harness: Harness, behind: bytes, path: str
) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(OK + behind))
    client = await router.client()
    for _ in range(3):
        answer = await client.ask(path, completion())
        assert (answer.status, answer.body) == (200, BODY)
    assert router.all(LegFailed) == []


@pytest.mark.parametrize("behind", [BEHIND["garbage"], BEHIND["another answer"]])
async def test_bytes_on_an_idle_connection_close_it(harness: Harness, behind: bytes) -> None:
    engine, router = await harness.single()
    client = await router.send(COMPLETIONS, completion())
    call = await engine.call()
    call.send(OK)
    assert (await client.answer()).body == BODY
    call.send(behind)
    await call.left()
    engine.answer_all(lambda call: call.send(OK))
    assert (await client.ask(COMPLETIONS, completion())).body == BODY


async def test_bytes_before_the_request_are_no_answer(harness: Harness) -> None:
    """The first connection speaks too early; the request goes to the second engine."""
    bad, good = await harness.engine(), await harness.engine()
    router = await harness.router(bad, good)
    bad.on_connect = lambda connection: connection.transport.write(OK)
    bad.answer_all(lambda call: None)
    good.answer_all(lambda call: call.send(json_reply({"from": "good"})))
    for _ in range(2):
        answer = await router.ask(COMPLETIONS, completion())
        assert answer.status == 200


# Not an answer.

NO_ANSWER = {
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "two lengths": JSON_HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "length and chunks": JSON_HEAD
    + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded header": JSON_HEAD + b"a: b\r\n c\r\ncontent-length: 0\r\n\r\n",
    "NUL in a header": JSON_HEAD + b"a: b\x00c\r\ncontent-length: 0\r\n\r\n",
    "a bare CR": JSON_HEAD + b"a: b\rc: d\r\ncontent-length: 0\r\n\r\n",
    "HTTP/2": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
}


@pytest.mark.parametrize("wire", NO_ANSWER.values(), ids=NO_ANSWER)
@pytest.mark.parametrize("path", [COMPLETIONS, EMBEDDINGS])
async def test_invalid_http_of_an_engine_is_502(harness: Harness, wire: bytes, path: str) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(wire))
    answer = await router.ask(path, completion())
    assert answer.status == 502
    assert answer.error["type"] == "EngineError"
    assert [f.kind for f in router.all(LegFailed)] == [FailureKind.BROKEN]


# Size.


@pytest.fixture
def small_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.net.request.readers.MAX_REPLY_BYTES", 100_000)


@pytest.mark.usefixtures("small_replies")
async def test_a_unary_answer_without_end_is_not_collected_for_ever(harness: Harness) -> None:
    engine, router = await harness.single()
    client = await router.send(COMPLETIONS, completion())
    call = await engine.call()
    call.send(JSON_HEAD + b"transfer-encoding: chunked\r\n\r\n", chunk(b"x" * 200_000))
    await call.left()
    answer = await client.answer()
    assert answer.status == 502
    assert "too large" in answer.error["message"]
    assert [f.kind for f in router.all(LegFailed)] == [FailureKind.BROKEN]


@pytest.mark.usefixtures("small_replies")
async def test_a_prefill_reply_without_end_is_done_without(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    decode.answer_all(lambda call: call.send(OK))
    client = await router.send(COMPLETIONS, completion())
    call = await prefill.call()
    call.send(JSON_HEAD + b"content-length: 9999999\r\n\r\n", b"x" * 200_000)
    await call.left()
    assert (await client.answer()).status == 200
    assert [f.kind for f in router.all(LegFailed)] == [FailureKind.BROKEN]


async def test_an_event_of_a_megabyte_arrives_whole(harness: Harness) -> None:
    engine, router = await harness.single()
    big = event({"prompt_token_ids": list(range(200_000))})

    def answer(call: Call) -> None:
        call.stream_whole(big, DONE)

    engine.answer_all(answer)
    assert (await router.ask(COMPLETIONS, STREAM)).body == big + DONE


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (b'{"error":{"message":"no","code":"invalid"}}', 500),
        (b'{"error":{"message":"no"}}', 500),
        (b'{"error":"no"}', 500),
        (b'{"error":{"code":200}}', 500),
        (b'{"error":{"code":429}}', 429),
        (b'{"type":"response.failed"}', 500),
    ],
)
async def test_an_error_event_without_a_status_counts_as_500(
    harness: Harness, error: bytes, status: int
) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    prefill.answer_all(answer_remotely)

    def script(call: Call) -> None:
        call.send(sse_head(), chunk(b"data: %b\n\n" % error))
        call.end()

    decode.answer_all(script)
    answer: Answer = await router.ask(COMPLETIONS, STREAM)
    if status == 500:  # counts as a failed KV load; the third engine gets a plain request
        assert decode.seen == 3
    else:
        assert (answer.status, answer.body) == (status, error)


async def test_a_connection_is_reused_for_any_request_to_its_engine(harness: Harness) -> None:
    engine, router = await harness.single()
    seen: set[Connection] = set()

    def script(call: Call) -> None:
        seen.add(call.connection)
        if call.json.get("stream"):
            call.stream_whole(token("a"), DONE)
        else:
            call.send(OK)

    engine.answer_all(script)
    client, other = await router.client(), await router.client()
    for _ in range(3):
        await client.ask(COMPLETIONS, STREAM)
        await other.ask(COMPLETIONS, completion())
        await client.ask(EMBEDDINGS, {"input": "x"})
    assert len(seen) == 1
    assert _open(router) == 1


def _open(router: Running) -> int:
    return sum(pool.open for pool in router.pools.values())


async def test_an_engines_error_event_passes_unchanged(harness: Harness) -> None:
    engine, router = await harness.single()
    failed = event({"error": {"message": "out of memory", "code": 500}})

    def script(call: Call) -> None:
        call.stream_whole(token("a"), failed, DONE)

    engine.answer_all(script)
    answer = await router.ask(COMPLETIONS, STREAM)
    assert answer.body == token("a") + failed + DONE
    assert error_in(answer.body)["message"] == "out of memory"
