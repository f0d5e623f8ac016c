"""An engine's answer is as hostile as a client's: no answer takes memory, time or secrets.

What is not HTTP at all is in test_engine_answers.py.
"""

import asyncio
import gzip

import pytest

from router.core.events import LegFailed, Scraped
from router.core.values import FailureKind
from router.core.wire.jsonspan import MAX_CONTAINERS
from router.net.engine.engine_connection import MAX_HEADERS, MAX_OVERHEAD_BYTES
from tests.net.client import SECONDS
from tests.net.engine import Call, chunk, json_reply, sse_head
from tests.net.harness import Harness, eventually
from tests.net.kv_events.kv_publisher import Publisher
from tests.net.payloads import (
    CHAT,
    COMPLETIONS,
    DONE,
    EMBEDDINGS,
    KV,
    STREAM,
    completion,
    error_in,
    event,
    prefilled,
    token,
)

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
PIECE = b"x" * 4096


async def _pour(call: Call, piece: bytes, most: int) -> int:
    """Send a piece again and again until the router has enough; returns how often."""
    for number in range(most):
        if call.connection.closed.is_set():
            return number
        call.send(piece)
        await asyncio.sleep(0)
    return most


ENDLESS = {
    "status line": (b"HTTP/1.1 200 ", PIECE),
    "header": (HEAD + b"a: ", PIECE),
    "header name": (HEAD, PIECE),
    "headers": (HEAD, b"a: b\r\n" * 40),
    "interim answers": (b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 100),
    "interim headers": (b"HTTP/1.1 103 Early Hints\r\n", b"link: </a>\r\n" * 40),
    "chunk extension": (CHUNKED + b"1;", PIECE),
    "trailer": (CHUNKED + b"0\r\na: ", PIECE),
    "trailers": (CHUNKED + b"0\r\n", b"a: b\r\n" * 100),
}


@pytest.mark.parametrize(("start", "piece"), ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("path", [COMPLETIONS, EMBEDDINGS])
async def test_endless_non_bodies_are_not_read(
    harness: Harness, path: str, start: bytes, piece: bytes
) -> None:
    engine, router = await harness.single()
    client = await router.client()
    asked = asyncio.ensure_future(client.ask(path, completion()))
    call = await engine.call()
    call.send(start)
    most = 4 * MAX_OVERHEAD_BYTES // len(piece)
    assert await _pour(call, piece, most) < most
    if path == COMPLETIONS or start[: len(CHUNKED)] != CHUNKED:
        assert (await asked).status == 502
    else:  # its head was passed on: the answer breaks
        client.leave()
        await asyncio.wait([asked], timeout=SECONDS)
        asked.exception()
    assert [f.kind for f in router.all(LegFailed)] == [FailureKind.BROKEN]


async def test_an_answer_of_many_headers_in_one_read_is_refused(harness: Harness) -> None:
    engine, router = await harness.single()
    lines = b"a: b\r\n" * MAX_HEADERS
    engine.answer_all(lambda call: call.send(HEAD + lines + b"content-length: 2\r\n\r\n{}"))
    assert (await router.ask(COMPLETIONS, completion())).status == 502


@pytest.mark.parametrize("path", [COMPLETIONS, EMBEDDINGS])
@pytest.mark.parametrize("status", [b"000", b"036", b"103", b"199"])
@pytest.mark.parametrize(
    "body", [b"content-length: 3\r\n\r\nabc", b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"]
)
async def test_a_body_after_an_interim_status_is_502(
    harness: Harness, status: bytes, path: str, body: bytes
) -> None:
    engine, router = await harness.single()
    answer = b"HTTP/1.1 %b X\r\n%b" % (status, body)
    engine.answer_all(lambda call: call.send(answer))
    assert (await router.ask(path, completion())).status == 502
    assert {failed.kind for failed in router.all(LegFailed)} == {FailureKind.BROKEN}


async def test_a_long_stream_has_more_framing_than_that(harness: Harness) -> None:
    """The limit is on bytes without a body in between."""
    engine, router = await harness.single()
    tokens = 40
    extension = b";a=" + b"x" * 4000

    def script(call: Call) -> None:
        call.send(sse_head())
        for _ in range(tokens):
            data = token("a")
            call.send(b"%x%b\r\n%b\r\n" % (len(data), extension, data))
        call.end(DONE)

    engine.answer_all(script)
    assert tokens * len(extension) > MAX_OVERHEAD_BYTES
    assert (await router.ask(COMPLETIONS, STREAM)).body == token("a") * tokens + DONE


# Answers that send the client elsewhere, or that cannot be read.


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("path", [CHAT, EMBEDDINGS])
async def test_a_redirect_is_a_fault_of_the_engine(
    harness: Harness, path: str, status: int
) -> None:
    """OpenAI's clients follow it, with their keys, to an address inside."""
    engine, router = await harness.single()
    head = b"HTTP/1.1 %d X\r\nlocation: http://10.0.0.7:8000/v1\r\ncontent-length: 0\r\n\r\n"
    engine.answer_all(lambda call: call.send(head % status))
    answer = await router.ask(path, completion())
    assert answer.status == 502
    assert answer.error["message"] == "The engine answered with a redirect."
    assert b"10.0.0.7" not in answer.body
    assert answer.values(b"location") == []
    assert engine.seen == 1


async def test_a_prefill_that_redirects_is_done_without(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    head = b"HTTP/1.1 307 X\r\nlocation: http://10.0.0.7/\r\ncontent-length: 0\r\n\r\n"
    prefill.answer_all(lambda call: call.send(head))
    decode.answer_all(lambda call: call.send(json_reply({})))
    assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert (prefill.seen, decode.seen) == (1, 1)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_unrequested_compressed_data_is_a_failure(
    harness: Harness, *, is_stream: bool
) -> None:
    """KV parameters could not be taken out of it, nor could it end in an error event."""
    engine, router = await harness.single()
    secret = {"choices": [{"text": "a"}], "kv_transfer_params": KV}
    kind = b"text/event-stream" if is_stream else b"application/json"
    body = gzip.compress(event(secret) + DONE)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-encoding: gzip\r\n" % kind
    engine.answer_all(lambda call: call.send(head, b"content-length: %d\r\n\r\n" % len(body), body))
    answer = await router.ask(COMPLETIONS, completion(stream=is_stream))
    if answer.status == 200:  # a stream's head is sent before
        assert error_in(answer.body)["code"] == 502
    else:
        assert answer.status == 502
    assert b"content-encoding" not in dict(answer.headers)
    assert router.all(LegFailed)[0].kind is FailureKind.BROKEN


# Replies that would take the event loop's time.


async def test_slow_prefill_reply_is_skipped(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    heavy = prefilled(x=[{}] * 2 * MAX_CONTAINERS)
    prefill.answer_all(lambda call: call.send(heavy))
    decode.answer_all(lambda call: call.send(json_reply({})))
    client = await router.client()
    assert (await client.ask(COMPLETIONS, completion())).status == 200
    assert (prefill.seen, decode.seen) == (1, 1)


async def test_models_that_take_too_long_to_read_are_not_known(harness: Harness) -> None:
    engine = await harness.engine()
    engine.models = json_reply({"data": [{"id": "m"}], "x": [{}] * 2 * MAX_CONTAINERS})
    router = await harness.router(engine)
    assert router.router.fleet.member(router.endpoint(engine)).cards is None


# Probes and scrapes.


async def test_scrapes_keep_no_cookies_and_decompress_nothing(harness: Harness) -> None:
    engine = await harness.engine()
    asked: list[Call] = []

    def probed(call: Call) -> bool:
        asked.append(call)
        return original(call)

    original, engine.probed = engine.probed, probed  # type: ignore[method-assign]
    bomb = gzip.compress(b"vllm:num_requests_running 3\n")
    engine.metrics = json_reply(bomb, 200, b"content-encoding: gzip\r\nset-cookie: a=b")
    router = await harness.router(engine, engine_stats_interval=0.01)
    await eventually(lambda: len(router.all(Scraped)) > 2)
    assert all(scraped.gauges is None for scraped in router.all(Scraped))
    assert all(call.values(b"cookie") == [] for call in asked)
    assert all(call.values(b"accept-encoding") == [b"identity"] for call in asked)


async def test_sources_of_kv_events_that_come_in_two_reads_are_whole(harness: Harness) -> None:
    """Half of them are no JSON, which would look like an engine without any."""
    engine, publisher = await harness.engine(), Publisher()
    named = {"0": publisher.address._asdict()}
    wire = json_reply(named)
    halves = wire[: len(wire) - 9], wire[len(wire) - 9 :]
    asked: list[bytes] = []

    async def script(call: Call) -> None:
        asked.append(call.target)
        call.send(halves[0])
        for _ in range(20):  # turns of the event loop, in which the router reads the first half
            await asyncio.sleep(0)
        call.send(halves[1])

    tasks: set[asyncio.Task[None]] = set()
    engine.answer_all(lambda call: tasks.add(asyncio.ensure_future(script(call))))
    running = await harness.router(engine, prefix_cache="events")
    cache = running.router.fleet.member(running.endpoint(engine)).prompts.events
    assert cache is not None
    await eventually(lambda: (publisher.answer(), cache.state == "live")[1])
    assert asked[0] == b"/kv_event_sources"
    publisher.close()


async def test_false_chunk_length_leaks_into_no_answer(harness: Harness) -> None:
    engine, router = await harness.single()
    client = await router.client()
    asked = asyncio.ensure_future(client.ask(COMPLETIONS, STREAM))
    call = await engine.call()
    call.stream(token("a"))
    call.send(b"5\r\n" + token("not five")[:20])
    answer = await asked
    assert answer.body.startswith(token("a"))
    assert error_in(answer.body)["code"] == 502
    engine.answer_all(lambda other: other.send(json_reply({"mine": True})))
    assert (await client.ask(COMPLETIONS, completion())).json == {"mine": True}


@pytest.mark.parametrize(
    "body",
    [
        chunk(b"{}") + b"0\r\n\r\n" + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        chunk(b"{}") + b"0\r\n\r\n" + b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
    ids=["an answer", "an interim answer"],
)
async def test_an_unrequested_answer_is_discarded(harness: Harness, body: bytes) -> None:
    engine, router = await harness.single()
    client = await router.client()
    asked = asyncio.ensure_future(client.ask(COMPLETIONS, completion()))
    call = await engine.call()
    call.send(CHUNKED + body)
    assert (await asked).json == {}
    await call.left()
