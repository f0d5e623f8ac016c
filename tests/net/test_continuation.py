"""Streams whose engine fails behind the first token, and goes on elsewhere."""

import time
from typing import Any

import orjson
import pytest

from router.core.events import FellBack
from tests.net.client import Client, request
from tests.net.engine import LAST_CHUNK, Call, ScriptedEngine, chunk, json_reply, sse_head
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM, error_in, event
from tests.net.test_exclusion import stall

PROMPT = [5, 6, 7]


def piece(text: str, ids: list[int], *, name: str = "a", **more: Any) -> bytes:
    """A token's event, as vLLM sends it when it is asked for ids."""
    choice = {"index": 0, "text": text, "finish_reason": None, "prompt_token_ids": None}
    choice |= {"token_ids": ids} | more
    return event({"id": name, "object": "text_completion", "created": 1, "choices": [choice]})


def shown(text: str, **more: Any) -> dict[str, Any]:
    """The same as the client reads it."""
    choice = {"index": 0, "text": text, "finish_reason": None, "prompt_token_ids": None}
    choice |= {"token_ids": None} | more
    return {"id": "a", "object": "text_completion", "created": 1, "choices": [choice]}


ERROR = event({"error": {"message": "EngineCore died", "code": 500}})
END = shown("", finish_reason="stop")


class Bench:
    """A stream of two tokens in front of two engines."""

    router: Running
    client: Client
    answer: Any
    call: Call
    engines: list[ScriptedEngine]

    async def open(self, harness: Harness) -> None:
        """Send the request."""
        self.engines = [await harness.engine(), await harness.engine()]
        settings: dict[str, Any] = {"stream_continuation": "on", "speed_probe_interval": 0}
        self.router = await harness.router(*self.engines, **settings)
        self.client = await self.router.client()
        await self.client.send(request(COMPLETIONS, STREAM | {"max_tokens": 9}, (b"x-a", b"b")))
        self.call = await self.next_call()
        assert self.call.json["return_token_ids"] is True

    async def start(self, harness: Harness) -> None:
        """Begin the stream."""
        await self.open(harness)
        self.call.stream(piece("x", [100], prompt_token_ids=PROMPT), piece("y", [101]))
        self.answer = await self.client.begin()
        await self.until(b'"y"')

    async def until(self, text: bytes) -> None:
        """Wait for what the client gets."""
        while text not in self.answer.body:
            await self.answer.more()

    async def next_call(self) -> Call:
        """The next request, of whichever engine."""
        await eventually(lambda: any(engine.waiting for engine in self.engines))
        return await next(engine for engine in self.engines if engine.waiting).call()

    async def finish(self, call: Call) -> None:
        """Let the next engine end the answer."""
        call.stream(piece("z", [102], name="b", prompt_token_ids=[*PROMPT, 100, 101]))
        await self.until(b'"z"')
        call.events(piece("!", [103], name="b"))
        await self.until(b'"!"')
        last = piece("", [104], name="b", finish_reason="stop")
        counts = {"prompt_tokens": 5, "completion_tokens": 9999, "total_tokens": 10004}
        usage = {"id": "b", "object": "text_completion", "created": 1, "choices": []}
        call.events(last, event(usage | {"usage": counts}), DONE)
        call.end()
        await self.answer.rest()

    async def finish_here(self) -> None:
        """Let the first engine end the answer."""
        self.call.end(piece("", [104], finish_reason="stop"), DONE)
        await self.answer.rest()


@pytest.fixture
async def bench(harness: Harness) -> Bench:
    bench = Bench()
    await bench.start(harness)
    return bench


@pytest.mark.parametrize("end", ["close", "reset", "garbage", "error", "abort", "end"])
async def test_the_client_of_an_engine_that_fails_sees_one_answer(bench: Bench, end: str) -> None:
    fail(bench.call, end)
    following = await bench.next_call()
    assert following.json["prompt"] == [*PROMPT, 100, 101]
    assert following.json["max_tokens"] == 7
    await bench.finish(following)
    *documents, usage = [orjson.loads(e[6:]) for e in bench.answer.body.split(b"\n\n")[:-2]]
    assert documents == [shown("x"), shown("y"), shown("z"), shown("!"), END]
    assert (usage["id"], usage["usage"]["prompt_tokens"]) == ("a", 3)
    assert bench.answer.body.endswith(DONE)
    assert [each.reason for each in bench.router.all(FellBack)] == ["continued"]
    assert (await bench.router.record()).outcome == "ok"


async def test_a_stream_leaves_a_stalled_engine(bench: Bench) -> None:
    stall(bench.router, next(e for e in bench.engines if e.seen))
    await bench.finish(await bench.next_call())
    await bench.call.left()
    assert bench.answer.body.endswith(DONE)


async def test_behind_several_tokens_the_next_engine_is_asked_for_their_text(bench: Bench) -> None:
    bench.call.events(piece("+", [9998, 9999]))
    await bench.until(b'"+"')
    bench.call.close()
    for tokens, text in (([100, 101, 9998, 9999], "xy+\ufffd"), ([100, 101, 9998], "xy+")):
        question = await bench.next_call()
        assert (question.target, question.json) == (
            b"/detokenize",
            {"tokens": tokens, "model": "m"},
        )
        question.send(json_reply({"prompt": text}))
    following = await bench.next_call()
    assert following.json["prompt"] == [*PROMPT, 100, 101, 9998]
    assert following.json["max_tokens"] == 6
    bench.client.leave()
    await following.left()
    await bench.router.is_quiet()


async def test_the_next_engine_gets_the_clients_headers(bench: Bench) -> None:
    bench.call.close()
    following = await bench.next_call()
    assert following.values(b"x-a") == bench.call.values(b"x-a") == [b"b"]
    assert following.values(b"x-request-id") != bench.call.values(b"x-request-id")


async def test_times_and_token_counts_are_those_of_each_engine(bench: Bench) -> None:
    begun = time.monotonic()
    bench.call.close()
    following = await bench.next_call()
    await bench.finish(following)
    record = await bench.router.record()
    assert record.first_byte is not None
    assert record.first_byte < begun
    for member in bench.router.router.fleet:
        assert member.speed.counts.calibration.tokens_per_event == 1.0


async def test_a_client_that_leaves_ends_the_continuation(bench: Bench) -> None:
    bench.call.close()
    following = await bench.next_call()
    bench.client.leave()
    await following.left()
    await bench.router.is_quiet()


async def test_what_is_kept_counts_in_the_memory_for_bodies(bench: Bench) -> None:
    budget = bench.router.router.handler.network.byte_budget
    before = budget.held
    bench.call.events(piece("+", [9999] * 500))
    await eventually(lambda: budget.held > before + 2000)
    await bench.finish_here()
    await eventually(lambda: budget.held == 0)


class Sweeps:
    """Counts the sweeps over the streams."""

    def __init__(self) -> None:
        self.seen = 0

    def check_idle(self, now: float) -> None:
        self.seen += 1


async def test_without_memory_a_stream_is_whole_but_not_continued(bench: Bench) -> None:
    network, sweeps = bench.router.router.handler.network, Sweeps()
    network.byte_budget.limit = 2 * network.byte_budget.held + 3000  # half is for others
    bench.call.events(piece("z", [9999] * 500))
    await bench.until(b'"z"')
    network.idle_sweep.watch(sweeps)
    await eventually(lambda: sweeps.seen == 2)
    network.idle_sweep.forget(sweeps)
    bench.call.close()
    await bench.answer.rest()
    assert error_in(bench.answer.body)["code"] == 502
    record = await bench.router.record()
    assert record.continuation is not None
    assert record.continuation.outcome == "no_room"


async def test_a_body_is_charged_until_the_first_token_however_little_room_there_is(
    harness: Harness,
) -> None:
    bench = Bench()
    await bench.open(harness)
    network, sweeps = bench.router.router.handler.network, Sweeps()
    held = network.byte_budget.limit = network.byte_budget.held
    network.idle_sweep.watch(sweeps)
    await eventually(lambda: sweeps.seen == 2)
    network.idle_sweep.forget(sweeps)
    assert network.byte_budget.held == held > 0
    bench.call.close()
    following = await bench.next_call()
    bench.client.leave()
    await following.left()


@pytest.mark.parametrize("end", ["error", "abort"])
async def test_an_engine_that_fails_in_the_read_of_its_first_token_is_left(
    harness: Harness, end: str
) -> None:
    bench = Bench()
    first = piece("x", [100], prompt_token_ids=PROMPT)
    ends = {"error": ERROR, "abort": piece("lost", [], finish_reason="abort")}
    await bench.open(harness)
    bench.call.send(sse_head(), *map(chunk, (first, ends[end], DONE)), LAST_CHUNK)
    bench.answer = await bench.client.begin()
    following = await bench.next_call()
    assert following.json["prompt"] == [*PROMPT, 100]
    following.stream(piece("z", [102], name="b", prompt_token_ids=[*PROMPT, 100]))
    following.end(piece("", [104], name="b", finish_reason="stop"), DONE)
    await bench.answer.rest()
    assert bench.answer.body.endswith(DONE)
    assert bench.answer.body.count(b'"text"') == 3


def fail(call: Call, how: str) -> None:
    if how == "close":
        call.close()
    elif how == "reset":
        call.reset()
    elif how == "garbage":
        call.send(b"this is no chunk\r\n")
    elif how == "error":
        call.end(ERROR, DONE)
    elif how == "end":
        call.end()
    else:
        call.end(piece("lost", [], finish_reason="abort"), DONE)


async def test_without_another_engine_the_stream_ends_with_an_error(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, stream_continuation="on")
    client = await router.client()
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.stream(piece("x", [100], prompt_token_ids=PROMPT))
    answer = await client.begin()
    while b'"x"' not in answer.body:
        await answer.more()
    call.close()
    await answer.rest()
    assert error_in(answer.body)["code"] == 503
