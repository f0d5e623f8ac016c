"""Broken streams: the client's answer, and the record."""

import time
from collections.abc import Callable

import pytest

from router.core.errors import EngineFailed, RouterError, ShuttingDown
from router.core.events import LegFailed
from router.core.values import FailureKind, RouteKind
from router.core.wire.api_errors import error_event
from router.net.request.readers import INCOMPLETE
from tests.net.client import request
from tests.net.engine import Call, chunk, sse_head
from tests.net.harness import Harness
from tests.net.payloads import (
    COMPLETIONS,
    DONE,
    ROLE,
    STREAM,
    error_in,
    event,
    token,
)
from tests.net.streams import USAGE

COMMENT = b": keep-alive\n\n"
NAMED = b'event: response.created\ndata: {"type":"response.created"}\n\n'
DELTA = b'event: x\ndata: {"sequence_number":7,"type":"response.output_text.delta"}\n\n'
CRLF = b'data: {"choices":[{"index":0,"text":"crlf"}]}\r\n\r\n'
FINISHED = event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
LAST = [
    FINISHED,
    FINISHED.replace(b":", b": "),
    FINISHED + USAGE,
    USAGE,
    FINISHED.replace(b"\n", b"\r\n"),
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    b'event: response.completed\ndata: {"type":"response.completed"}\n\n',
    b"data: [DONE]",
    event({"error": {"message": "no", "code": 400}}),
]
EVENTS = [token("a"), ROLE, COMMENT, CRLF, token("b" * 50)]


@pytest.mark.parametrize("end", ["close", "reset", "garbage", "end"])
async def test_broken_stream_ends_with_error_event(harness: Harness, end: str) -> None:
    engine, router = await harness.single()
    whole = b"".join(EVENTS)
    ends = [sum(map(len, EVENTS[:n])) for n in range(len(EVENTS) + 1)]
    for cut in range(1, len(whole), 7):
        client = await router.send(COMPLETIONS, STREAM)
        call = await engine.call()
        call.stream(whole[:cut])
        answer = await client.begin()
        expected = whole[: max(at for at in ends if at <= cut)]
        await answer.until(expected)
        _break(call, end)
        await answer.rest()
        assert answer.status == 200
        assert answer.body.startswith(expected + b'data: {"error":'), (cut, answer)
        error = error_in(answer.body)
        assert (error["code"], error["type"]) == (502, "EngineError")


def _break(call: Call, how: str) -> None:
    if how == "close":
        call.close()
    elif how == "reset":
        call.reset()
    elif how == "garbage":
        call.send(b"this is no chunk\r\n")
    else:
        call.end()


async def test_events_before_bytes_that_are_not_http_are_passed_on(harness: Harness) -> None:
    """Whether they come in one read or in two must make no difference."""
    engine, router = await harness.single()
    engine.answer_all(
        lambda call: call.send(sse_head(), chunk(token("a")), b"this is no chunk\r\n")
    )
    answer = await router.ask(COMPLETIONS, STREAM)
    assert answer.status == 200
    assert answer.body.startswith(token("a"))
    assert error_in(answer.body)["code"] == 502


@pytest.mark.parametrize("kind", [RouteKind.RESPONSES, RouteKind.MESSAGES])
@pytest.mark.parametrize(
    "error",
    [
        EngineFailed("The engine closed the connection in the middle of its answer."),
        EngineFailed(INCOMPLETE.message),
        ShuttingDown("The router is shutting down."),
    ],
)
async def test_a_named_event_stream_that_breaks_ends_with_the_apis_error_behind_its_last_event(
    harness: Harness, kind: RouteKind, error: RouterError
) -> None:
    engine, router = await harness.single()
    client = await router.client()
    body = {"model": "m", "input": "x", "messages": [], "stream": True}
    await client.send(request(f"/v1/{kind}", body))
    call = await engine.call()
    call.stream(NAMED, DELTA)
    answer = await client.begin()
    await answer.until(NAMED + DELTA)
    if isinstance(error, ShuttingDown):
        router.router.handler.abort()
    elif error.message == INCOMPLETE.message:
        call.end()
    else:
        call.reset()
    await answer.rest()
    assert answer.body == NAMED + DELTA + error_event(error, kind, DELTA)


@pytest.mark.parametrize("events", [(b": ping\n\n",), (token("a"),), (token("a"), token("b"))])
async def test_a_body_that_ends_with_its_connection_needs_a_last_event(
    harness: Harness, events: tuple[bytes, ...]
) -> None:
    _, router, client, call = await harness.stream()
    call.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", *events)
    call.close()
    answer = await client.answer()
    assert error_in(answer.body)["message"] == INCOMPLETE.message
    assert (await router.record()).outcome != "ok"
    assert [failed.kind for failed in router.all(LegFailed)] == [FailureKind.BROKEN]


@pytest.mark.parametrize("last", LAST)
async def test_a_stream_may_end_without_done(harness: Harness, last: bytes) -> None:
    _, router, client, call = await harness.stream()
    call.stream()
    answer = await client.begin()
    for each in (token("a"), token("b"), token("c")):  # the third passes as a whole chunk
        call.events(each)
        await answer.until(each)
    call.end(last[:9], last[9:])
    await answer.rest()
    assert answer.body.endswith(token("c") + last)
    assert (await router.record()).outcome == "ok"
    assert router.all(LegFailed) == []


@pytest.mark.parametrize("end", [Call.reset, Call.end])
async def test_a_break_is_recorded_and_observed(
    harness: Harness, end: Callable[[Call], None]
) -> None:
    engine, router, client, call = await harness.stream()
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    end(call)
    await answer.rest()
    record = await router.record()
    assert (record.status, record.outcome) == (200, "broken")
    assert record.error is not None
    (failed,) = router.all(LegFailed)
    assert (failed.endpoint, failed.kind) == (router.endpoint(engine), FailureKind.BROKEN)
    assert failed.asked_at <= time.monotonic()


async def test_a_break_after_done_is_no_failure(harness: Harness) -> None:
    _, router, client, call = await harness.stream()
    call.stream(token("a"), DONE)
    answer = await client.begin()
    await answer.until(DONE)
    call.reset()
    await answer.rest()
    assert answer.body == token("a") + DONE
    assert (await router.record()).outcome == "ok"


@pytest.mark.parametrize("text", ["[DONE]", "data: [DONE]", "\n\ndata: [DONE]\n\n"])
async def test_done_inside_a_text_ends_no_stream(harness: Harness, text: str) -> None:
    _, router, client, call = await harness.stream()
    call.stream(token(text))
    answer = await client.begin()
    await answer.until(token(text))
    call.events(token("b"))
    await answer.until(token("b"))
    call.end(DONE)
    await answer.rest()
    assert answer.body == token(text) + token("b") + DONE
    assert (await router.record()).outcome == "ok"


@pytest.mark.parametrize("text", ["[DONE]", "\n\ndata: [DONE]\n\n"])
async def test_break_behind_done_inside_a_text_is_seen(harness: Harness, text: str) -> None:
    _, router, client, call = await harness.stream()
    call.stream(token(text))
    answer = await client.begin()
    await answer.until(token(text))
    call.close()
    await answer.rest()
    assert error_in(answer.body)["code"] == 502
    assert (await router.record()).outcome == "broken"


async def test_a_stream_that_goes_on_behind_done_can_still_break(harness: Harness) -> None:
    _, _, client, call = await harness.stream()
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    for more in (DONE, token("b")):
        call.events(more)
        await answer.until(more)
    call.close()
    await answer.rest()
    assert error_in(answer.body)["code"] == 502
