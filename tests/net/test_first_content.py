"""The first token of a stream is its first content; events before it are held back."""

from typing import Any

import pytest

from router.core.speed.speed_estimator import SpeedEstimator
from tests.net.engine import chunk, sse_head
from tests.net.harness import Harness, eventually
from tests.net.payloads import (
    CHAT,
    COMPLETIONS,
    DONE,
    MESSAGES,
    RESPONSES,
    ROLE,
    STREAM,
    event,
    token,
)
from tests.net.streams import COMMENT, DELTA, NAMED, held, relay_of, remote

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
START = b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n'
PREAMBLES = {
    COMPLETIONS: token(""),
    CHAT: ROLE,
    RESPONSES: NAMED + event({"type": "response.in_progress"}),
    MESSAGES: START + event({"type": "content_block_start"}),
}
CONTENTS = {
    COMPLETIONS: token("a"),
    CHAT: event({"choices": [{"index": 0, "delta": {"content": "a"}}]}),
    RESPONSES: DELTA,
    MESSAGES: event({"type": "content_block_delta"}),
}
ASKED = {"model": "m", "prompt": "x", "input": "x", "messages": [], "stream": True}


def _timed(speed: SpeedEstimator) -> tuple[int, int, int]:
    """What is open at an engine, the streams among it, and the prompts measured lately."""
    return speed.counts.open, speed.counts.streams, speed.counts._prompt_work


def _has_first_byte(relay: Any) -> bool:
    return relay._downstream.record.first_byte is not None


@pytest.mark.parametrize("path", PREAMBLES)
async def test_the_first_token_is_the_first_content(harness: Harness, path: str) -> None:
    engine, router = await harness.single()
    speed = router.router.fleet.member(router.endpoint(engine)).speed
    client = await router.send(path, ASKED)
    call = await engine.call()
    call.stream(PREAMBLES[path])
    answer = await client.begin()  # the head does not wait
    relay = await relay_of(router, engine)
    await eventually(lambda: held(relay) == PREAMBLES[path])
    assert _timed(speed) == (1, 0, 0)
    assert not _has_first_byte(relay)
    assert relay._listener._run.facts is not None  # it can still go elsewhere
    call.events(CONTENTS[path])
    await answer.until(PREAMBLES[path] + CONTENTS[path])
    assert _timed(speed)[:2] == (1, 1)
    assert _has_first_byte(relay)
    assert held(relay) == b""
    call.end(CONTENTS[path], DONE)
    await answer.rest()
    assert answer.body == PREAMBLES[path] + CONTENTS[path] * 2 + DONE


@pytest.mark.parametrize(
    ("path", "sent", "seen"), [(CHAT, COMMENT, COMMENT), (MESSAGES, PING, b": ping\n\n")]
)
async def test_keep_alive_comments_are_not_held_back(
    harness: Harness, path: str, sent: bytes, seen: bytes
) -> None:
    engine, router = await harness.single()
    client = await router.send(path, ASKED)
    call = await engine.call()
    call.stream(PREAMBLES[path])
    answer = await client.begin()
    for number in range(1, 4):
        call.events(sent)
        await answer.until(seen * number)
    relay = await relay_of(router, engine)
    assert relay._downstream.record.first_byte is None
    call.end(CONTENTS[path], DONE)
    await answer.rest()
    held = PREAMBLES[path] + (PING * 3 if sent is PING else b"")
    assert answer.body == seen * 3 + held + CONTENTS[path] + DONE


async def test_comments_are_no_tokens_and_end_no_hold(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine with a hung core continues sending them (--sse-keep-alive-interval)."""
    monkeypatch.setattr("router.net.request.event_readers.MAX_HELD_EVENTS", 3)
    engine, router = await harness.single()
    speed = router.router.fleet.member(router.endpoint(engine)).speed
    client = await router.send(COMPLETIONS, STREAM)
    call = await engine.call()
    alive = b": keep-alive\n\n"
    call.stream(*[alive] * 10)
    answer = await client.begin()
    await answer.until(alive * 10)
    assert speed.counts.streams == 0
    call.events(token("a"))
    await answer.until(token("a"))
    before = speed.counts.counted.events
    for number in range(1, 4):
        call.events(alive)
        await answer.until(token("a") + number * alive)
    assert (speed.counts.streams, speed.counts.counted.events) == (1, before)
    call.end(DONE)
    await answer.rest()


async def test_held_back_bytes_are_bounded(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, router = await harness.single()
    monkeypatch.setattr("router.net.request.event_readers.MAX_HELD_EVENTS", 3)
    monkeypatch.setattr("router.net.request.event_readers.MAX_HELD_BYTES", 10_000)
    for number, preamble in ((4, token("")), (1, token("", more="x" * 10_000))):
        client = await router.send(COMPLETIONS, STREAM)
        call = await engine.call()
        call.stream(*[preamble] * number)
        answer = await client.begin()
        await answer.until(preamble * number)
        call.end(DONE)
        await answer.rest()


async def test_an_error_event_after_a_direct_streams_head_passes_with_earlier_events(
    harness: Harness,
) -> None:
    engine, router = await harness.single()
    speed = router.router.fleet.member(router.endpoint(engine)).speed
    failed = event({"error": {"message": "no", "type": "T", "param": None, "code": 400}})
    client = await router.send(CHAT, ASKED)
    call = await engine.call()
    call.stream(ROLE)
    answer = await client.begin()
    call.events(failed)
    await answer.until(ROLE + failed)
    assert _timed(speed) == (0, 0, 0)  # it was no token
    call.end(DONE)
    await answer.rest()
    assert (answer.status, answer.body) == (200, ROLE + failed + DONE)


@pytest.mark.parametrize("mode", ["direct", "remote"])
async def test_a_stream_without_content_passes_at_its_end(harness: Harness, mode: str) -> None:
    engine, router = await harness.single()
    if mode == "remote":
        router, _, engine = await remote(harness)
    client = await router.send(CHAT, ASKED)
    call = await engine.call()
    call.stream_whole(ROLE, b"data: [DONE]")  # this event is not complete before the end
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, ROLE + b"data: [DONE]")


async def test_a_break_behind_done_is_none_although_all_came_at_once(harness: Harness) -> None:
    _, _, client, call = await harness.stream()
    call.send(sse_head(), chunk(token("a") + DONE))
    answer = await client.begin()
    await answer.until(DONE)
    call.reset()
    await answer.rest()
    assert answer.body == token("a") + DONE
