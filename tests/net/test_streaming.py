"""Streams pass as they come, byte for byte but for the cut into chunks."""

import asyncio
import itertools

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.net.client import request
from tests.net.engine import LAST_CHUNK, Call, ScriptedEngine, chunk, json_reply, sse_head
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import (
    CHAT,
    COMPLETIONS,
    DONE,
    KV,
    ROLE,
    STREAM,
    completion,
    error_in,
    event,
    prefilled,
    token,
)
from tests.net.streams import (
    COMMENT,
    NAMED,
    USAGE,
    held,
    over_http,
    relay_of,
    remote,
    run_example,
)

CRLF = b'data: {"choices":[{"index":0,"text":"crlf"}]}\r\n\r\n'


async def test_each_event_passes_before_the_next_is_sent(harness: Harness) -> None:
    _, _, client, call = await harness.stream()
    call.stream()
    answer = await client.begin()
    for text in "abc":
        call.events(token(text))
        await answer.until(token(text))
    call.end(DONE)
    await answer.rest()
    assert answer.body == token("a") + token("b") + token("c") + DONE


@pytest.mark.parametrize("end", ["whole", "broken", "left"])
async def test_relayed_chunks_are_counted_for_every_end_of_a_stream(
    harness: Harness, end: str
) -> None:
    _, router, client, call = await harness.stream()
    call.stream()
    answer = await client.begin()
    passed = [token(text) for text in "abcd"]  # from the third on as whole chunks
    for each in passed:
        call.events(each)
        await answer.until(each)
    if end == "left":
        client.leave()
    elif end == "broken":
        call.reset()
    else:
        call.end(DONE)
        passed.append(DONE)
    record = await router.record()
    assert (record.chunks, record.bytes_out) == (len(passed), len(b"".join(passed)))


async def test_a_direct_streams_head_does_not_wait_for_an_event(harness: Harness) -> None:
    _, _, client, call = await harness.stream()
    call.stream()
    assert (await client.begin()).status == 200


async def test_comments_usage_and_named_events_survive(harness: Harness) -> None:
    engine, router = await harness.single()
    parts = [COMMENT, ROLE, token("a"), COMMENT, NAMED, CRLF, USAGE, DONE, COMMENT]

    def script(call: Call) -> None:
        call.stream_whole(*parts)

    engine.answer_all(script)
    answer = await router.ask(COMPLETIONS, STREAM)
    assert answer.body == b"".join(parts)
    assert answer.values(b"content-type") == [b"text/event-stream; charset=utf-8"]


pieces = st.sampled_from([ROLE, COMMENT, NAMED, CRLF, USAGE, token("é"), token("x" * 300)])


@st.composite
def split_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """Events, and an engine's chunked bytes for them in arbitrary pieces."""
    body = b"".join([*draw(st.lists(pieces, max_size=6)), token("a"), DONE])
    cuts = draw(st.lists(st.integers(0, len(body)), max_size=4))
    edges = sorted({0, len(body), *cuts})
    chunks = [chunk(body[a:b]) for a, b in itertools.pairwise(edges)]
    wire = sse_head() + b"".join(chunks) + LAST_CHUNK
    cuts = draw(st.lists(st.integers(0, len(wire)), max_size=6))
    edges = sorted({0, len(wire), *cuts})
    return body, [wire[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("mode", ["direct", "remote"])
async def test_any_split_gives_the_same_events(harness: Harness, mode: str) -> None:
    if mode == "direct":
        engine, router = await harness.single()
    else:
        router, _, engine = await remote(harness)
    client = await router.client()

    @over_http
    @given(split_streams())
    async def holds(example: tuple[bytes, list[bytes]]) -> None:
        body, reads = example
        await client.send(request(COMPLETIONS, STREAM))
        call = await engine.call()
        for data in reads:
            call.send(data)
            await asyncio.sleep(0)  # the loop sends what was written; when it is read may vary
        answer = await client.answer()
        assert answer.status == 200
        if mode == "direct":  # comments may go ahead of what has no content yet
            assert answer.body.count(COMMENT) == body.count(COMMENT)
            assert answer.body.replace(COMMENT, b"") == body.replace(COMMENT, b"")
        else:
            assert answer.body == body

    await run_example(holds)


@pytest.mark.parametrize(
    "content_type",
    ["text/event-stream", "text/event-stream; charset=utf-8", "Text/Event-Stream;charset=UTF-8"],
)
async def test_stream_has_the_engines_headers(harness: Harness, content_type: str) -> None:
    _, _, client, call = await harness.stream()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\nX-Own: 1\r\ntransfer-encoding: chunked\r\n\r\n"
    call.send(head % content_type.encode(), chunk(token("a")))
    answer = await client.begin()
    await answer.until(token("a"))  # it is passed on as a stream
    assert answer.values(b"content-type") == [content_type.encode()]
    assert answer.values(b"x-own") == [b"1"]
    call.end(DONE)
    await answer.rest()


async def test_an_engines_error_status_and_body_pass_unchanged(harness: Harness) -> None:
    engine, router = await harness.single()
    for status in (400, 401, 404, 409, 422, 429, 500, 501):
        body = orjson.dumps({"error": {"message": "no", "code": status, "kept": None}})
        engine.answer_all(lambda call, s=status, b=body: call.send(json_reply(b, s)))  # type: ignore[misc]
        answer = await router.ask(COMPLETIONS, STREAM)
        assert (answer.status, answer.body) == (status, body)
        assert answer.values(b"content-type") == [b"application/json"]


async def test_unterminated_event_stream_passes_whole(harness: Harness) -> None:
    engine, router = await harness.single()

    def script(call: Call) -> None:
        call.stream_whole(token("a"), b"data: [DONE]")

    engine.answer_all(script)
    answer = await router.ask(COMPLETIONS, STREAM)
    assert answer.body == token("a") + b"data: [DONE]"


async def test_an_error_in_the_form_of_a_stream_passes_unchanged(harness: Harness) -> None:
    """It needs no last event."""
    engine, router = await harness.single()
    body = event({"detail": "no"})
    engine.answer_all(lambda call: call.send(sse_head(status=400), chunk(body), LAST_CHUNK))
    answer = await router.ask(COMPLETIONS, STREAM)
    assert (answer.status, answer.body) == (400, body)
    assert (await router.record()).outcome == "error"


# After a remote prefill.


async def test_head_waits_for_content_after_remote_prefill(harness: Harness) -> None:
    router, _, decode = await remote(harness)
    client = await router.send(CHAT, {"model": "m", "messages": [], "stream": True})
    call = await decode.call()
    call.stream(COMMENT, ROLE)
    sent = call.connection
    # What the engine sent has been read and kept: all is known of it, nothing was passed on.
    relay = await relay_of(router, decode)
    await eventually(lambda: held(relay) == COMMENT + ROLE)
    assert not relay._response.is_started
    content = event({"choices": [{"index": 0, "delta": {"content": "a"}}]})
    call.events(content)
    answer = await client.begin()
    await answer.until(COMMENT + ROLE + content)
    call.end(DONE)
    await answer.rest()
    assert answer.body == COMMENT + ROLE + content + DONE
    assert not sent.closed.is_set()


@pytest.mark.parametrize("status", [400, 404, 422, 500, 503])
async def test_early_error_event_gets_its_status(harness: Harness, status: int) -> None:
    router, prefill, decode = await remote(harness)
    failed = event({"error": {"message": "no", "type": "T", "param": None, "code": status}})

    def script(call: Call) -> None:
        call.stream_whole(ROLE, failed, DONE)

    decode.answer_all(script)
    answer = await router.ask(COMPLETIONS, STREAM)
    if status == 500:  # a failed KV load: prefilled once more, then decoded without a reference
        assert answer.status == 200  # a plain stream is as the engine makes it
        assert (prefill.seen, decode.seen) == (2, 3)
        return
    assert answer.status == status
    assert answer.error["message"] == "no"


async def test_a_failed_kv_load_is_not_the_clients_business(harness: Harness) -> None:
    router, prefill, decode = await remote(harness)
    client = await router.send(COMPLETIONS, STREAM)
    first = await decode.call()
    first.stream(event({"error": {"message": "KV load failed", "code": 500}}), DONE)
    await first.left()
    second = await decode.call()
    assert second.json["kv_transfer_params"] == KV
    second.stream_whole(token("a"), DONE)
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, token("a") + DONE)
    assert prefill.seen == 2


CACHED = b'{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":%b}}'


async def _told_cached(harness: Harness) -> tuple[Running, ScriptedEngine]:
    """A router behind which the prefill engine says that 3 tokens were cached."""
    router, prefill, decode = await remote(harness)
    usage = orjson.loads(CACHED % b"3")
    prefill.answer_all(lambda call: call.send(prefilled(usage=usage)))
    return router, decode


async def test_cached_tokens_are_the_prefill_engines(harness: Harness) -> None:
    router, decode = await _told_cached(harness)
    client = await router.send(COMPLETIONS, STREAM)
    call = await decode.call()
    call.stream(token("a"))
    answer = await client.begin()
    sent = token("a")
    for text in "bcd":
        call.events(token(text))
        sent += token(text)
        await answer.until(sent)
    relay = await relay_of(router, decode)
    assert relay._events.passed == 2  # unread whole chunks
    usage = b'data: {"choices":[],"usage":%b}\n\n' % CACHED
    call.events(usage % b"8")
    await answer.until(sent + usage % b"3")
    assert (relay._events.passed, relay._events._sent) == (2, 1)
    call.end(DONE)
    await answer.rest()
    assert answer.body == sent + usage % b"3" + DONE


async def test_a_unary_answers_cached_tokens_are_the_prefill_engines(harness: Harness) -> None:
    router, decode = await _told_cached(harness)
    whole = b'{"choices":[{"text":"d"}],"usage":%b}' % CACHED
    decode.answer_all(lambda call: call.send(json_reply(whole % b"8")))
    answer = await router.ask(COMPLETIONS, completion())
    assert answer.body == whole % b"3"
    assert answer.values(b"content-length") == [b"%d" % len(answer.body)]


# KV parameters.

LEAKS: list[tuple[bytes, bytes]] = [
    (b'{"a":1,"kv_transfer_params":null}', b'{"a":1,"kv_transfer_params":null}'),
    (b'{"kv_transfer_params":{"remote_host":"10.0.0.7","x":[{}]},"a":1}', b'{"a":1}'),
    (b'{"kv_transfer_params":{"remote_host":"10.0.0.7"}}', b"{}"),
    (b'{"r":{"kv_transfer_params":{"remote_host":"10.0.0.7"},"b":2}}', b'{"r":{"b":2}}'),
    (b'{"a":1,"ec_transfer_params":{"remote_host":"10.0.0.7"}}', b'{"a":1}'),
    (b'{"text":"\\"kv_transfer_params\\": {}"}', b'{"text":"\\"kv_transfer_params\\": {}"}'),
]


@pytest.mark.parametrize("mode", ["direct", "remote"])
@pytest.mark.parametrize(("engine_says", "client_hears"), LEAKS)
async def test_no_kv_parameters_reach_the_client(
    harness: Harness, mode: str, engine_says: bytes, client_hears: bytes
) -> None:
    if mode == "direct":
        decode, router = await harness.single()
    else:
        router, _, decode = await remote(harness)
    client = await router.client()

    await client.send(request(COMPLETIONS, STREAM))
    call = await decode.call()
    stream = b"data: %b\n\n" % engine_says
    call.send(sse_head(), chunk(stream[:20]))
    await asyncio.sleep(0)
    call.send(chunk(stream[20:]))
    call.end(DONE)
    assert (await client.answer()).body == b"data: %b\n\n" % client_hears + DONE

    await client.send(request(COMPLETIONS, completion()))
    (await decode.call()).send(json_reply(engine_says))
    assert (await client.answer()).body == client_hears


@pytest.mark.parametrize(("engine_says", "client_hears"), LEAKS)
async def test_none_reach_it_in_a_whole_chunk_behind_tokens(
    harness: Harness, engine_says: bytes, client_hears: bytes
) -> None:
    """Such chunks are not parsed."""
    _, _, client, call = await harness.stream()
    call.stream()
    answer = await client.begin()
    for data in (token("a"), token("b"), b"data: %b\n\n" % engine_says):
        call.events(data)
        await answer.more()
    call.end(DONE)
    await answer.rest()
    assert answer.body == token("a") + token("b") + b"data: %b\n\n" % client_hears + DONE


async def test_prefill_refusal_passes_without_kv_parameters(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    refusal = {"error": {"message": "too long", "code": 400}, "kv_transfer_params": KV}
    prefill.answer_all(lambda call: call.send(json_reply(refusal, 400)))
    answer = await router.ask(COMPLETIONS, STREAM)
    assert answer.status == 400
    assert answer.json == {"error": {"message": "too long", "code": 400}}
    assert decode.seen == 0


# Other framings.


async def test_an_event_in_two_chunks_is_passed_on_whole(harness: Harness) -> None:
    engine, router, client, call = await harness.stream()
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    relay = await relay_of(router, engine)
    for half in (token("b")[:20], token("b")[20:]):  # each in a read of its own
        relay.connection.data_received(chunk(half))
    call.end(DONE)
    await answer.rest()
    assert answer.body == token("a") + token("b") + DONE


async def test_a_close_delimited_stream_passes(harness: Harness) -> None:
    _, _, client, call = await harness.stream()
    call.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    call.send(DONE)
    call.close()
    await answer.rest()
    assert answer.body == token("a") + DONE


async def test_reset_is_no_end_of_a_close_delimited_stream(harness: Harness) -> None:
    _, _, client, call = await harness.stream()
    call.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    call.reset()
    await answer.rest()
    assert error_in(answer.body)["code"] == 502


async def test_a_unary_answer_is_whole_with_its_length(harness: Harness) -> None:
    engine, router = await harness.single()
    body = orjson.dumps({"choices": [{"text": "é" * 200_000}]})

    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        call.send(b"transfer-encoding: chunked\r\n\r\n", chunk(body[:70_000]), chunk(body[70_000:]))
        call.end()

    engine.answer_all(script)
    answer = await router.ask(COMPLETIONS, completion())
    assert answer.body == body
    assert answer.values(b"content-length") == [b"%d" % len(body)]


async def test_the_client_of_a_remote_prefill_sees_the_decode_engine_only(harness: Harness) -> None:
    router, prefill, decode = await remote(harness)
    decode.answer_all(lambda call: call.send(json_reply({"choices": [{"text": "d"}]})))
    answer = await router.ask(COMPLETIONS, completion())
    assert answer.json == {"choices": [{"text": "d"}]}
    record = await router.record()
    assert record.prefill == router.endpoint(prefill)
    assert record.decode == router.endpoint(decode)
    assert prefilled() not in answer.body
