"""Routes whose bodies the router does not read: they pass unchanged."""

import os

import pytest

from router.core.events import LegFailed
from router.core.values import FailureKind
from tests.net.client import Truncated, request
from tests.net.engine import chunk, json_reply
from tests.net.faults import sends_an_empty_answer
from tests.net.harness import Harness
from tests.net.payloads import (
    COMPLETIONS,
    EMBEDDINGS,
    OK,
    completion,
)


@pytest.mark.parametrize("megabytes", [0.3, 3.0])
async def test_binary_bodies_pass_unchanged_on_retry(harness: Harness, megabytes: float) -> None:
    engine, other = await harness.engine(), await harness.engine()
    router = await harness.router(engine, other)
    client = await router.client()
    body = (
        b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        + os.urandom(int(megabytes * 1e6))
        + b"\r\n--b--\r\n"
    )
    kind = (b"content-type", b"multipart/form-data; boundary=b")
    await client.send(request("/v1/audio/transcriptions", body, kind))
    for each, status in ((engine, 500), (other, 200)):
        call = await each.call()
        assert call.body == body
        assert call.values(b"content-type") == [kind[1]]
        call.send(json_reply({"text": "hi"}, status))
    answer = await client.answer()
    assert (answer.status, answer.json) == (200, {"text": "hi"})
    assert (await router.record()).model == "m"


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
async def test_a_binary_answer_is_streamed_unchanged(harness: Harness, framing: str) -> None:
    engine, router = await harness.single()
    client = await router.send("/v1/audio/speech", {"model": "m", "input": "hi"})
    call = await engine.call()
    audio = os.urandom(500_000)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\n"
    if framing == "chunked":
        call.send(head + b"transfer-encoding: chunked\r\n\r\n", chunk(audio[:1000]))
    else:
        call.send(head + b"content-length: 500000\r\n\r\n", audio[:1000])
    answer = await client.begin()
    await answer.until(audio[:1000])  # before the engine has sent more
    if framing == "chunked":
        call.send(chunk(audio[1000:]), chunk(b""))
    else:
        call.send(audio[1000:])
    assert (await answer.rest()).body == audio
    assert answer.values(b"content-type") == [b"audio/wav"]
    assert answer.values(b"content-length") == ([b"500000"] if framing != "chunked" else [])


async def test_text_in_place_of_a_completion_passes_unchanged(harness: Harness) -> None:
    """Only JSON shows whether it is complete."""
    engine, router = await harness.single()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n"
    engine.answer_all(lambda call: call.send(head + b"ok"))
    assert (await router.ask(COMPLETIONS, completion())).body == b"ok"


async def test_an_empty_answer_of_a_pass_through_route_passes(harness: Harness) -> None:
    engine, router = await harness.single()
    sends_an_empty_answer(engine)
    answer = await router.ask(EMBEDDINGS, {"model": "m", "input": "x"})
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("status", [200, 500])
async def test_a_compressed_answer_passes_unchanged(harness: Harness, status: int) -> None:
    engine, router = await harness.single()
    client = await router.client()
    body = {"model": "m", "input": "x"}
    await client.send(request(EMBEDDINGS, body, (b"accept-encoding", b"gzip")))
    call = await engine.call()
    assert call.values(b"accept-encoding") == [b"gzip"]
    call.send(json_reply(b"\x1f\x8b\x00", status, b"content-encoding: gzip"))
    answer = await client.answer()
    assert (answer.status, answer.body) == (status, b"\x1f\x8b\x00")
    assert answer.values(b"content-encoding") == [b"gzip"]


async def test_no_compression_is_requested_for_parsed_answers(harness: Harness) -> None:
    engine, router = await harness.single()
    client = await router.send(COMPLETIONS, completion(), (b"accept-encoding", b"gzip"))
    call = await engine.call()
    assert call.values(b"accept-encoding") == []
    call.send(OK)
    await client.answer()


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_broken_pass_through_breaks_for_client(harness: Harness, end: str) -> None:
    """Its end cannot be made up: a client must not take half an answer for a whole one."""
    engine, router = await harness.single()
    client = await router.send(EMBEDDINGS, {"input": "x"})
    call = await engine.call()
    call.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", chunk(b"half"))
    answer = await client.begin()
    await answer.until(b"half")
    getattr(call, end)()
    with pytest.raises(Truncated):
        await answer.rest()
    record = await router.record()
    assert (record.status, record.outcome) == (200, "broken")
    assert record.error is not None
    assert [f.kind for f in router.all(LegFailed)] == [FailureKind.BROKEN]


async def test_a_stream_of_a_pass_through_route_passes_as_bytes(harness: Harness) -> None:
    """Its events are not understood, so no error event is made up for it."""
    engine, router = await harness.single()
    client = await router.send("/v1/audio/transcriptions", b"x", (b"content-type", b"audio/wav"))
    call = await engine.call()
    call.stream(b"data: half")
    answer = await client.begin()
    await answer.until(b"data: half")
    call.end(b" an event\n\n")
    assert (await answer.rest()).body == b"data: half an event\n\n"
