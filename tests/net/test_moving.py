"""Streams that leave an engine which still serves them, and how many move at a time."""

from typing import Any

import pytest

from router.core.events import FellBack, LegFailed
from router.core.health import State
from router.core.membership.entry import Order
from tests.net.client import Client, request
from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM, completion, error_in
from tests.net.test_continuation import PROMPT, piece
from tests.net.test_exclusion import stall

MOVES_PER_ENGINE = 4
LONG = "x" * 8192
"""The text of a quarter of the tokens that may move at a time."""

SHUTDOWN = {"error": {"message": "cannot schedule new futures after shutdown", "code": 500}}
FULL = json_reply({"error": {"message": "the queue is full", "code": 503}}, 503)


class Bench:
    """Streams with one token on the first of two engines."""

    router: Running
    one: ScriptedEngine
    other: ScriptedEngine
    clients: list[Client]
    answers: list[Any]
    calls: list[Call]

    async def start(self, harness: Harness, number: int = 1, **more: Any) -> None:
        """Begin the streams."""
        self.one, self.other = await harness.engine(), await harness.engine()
        settings: dict[str, Any] = {"stream_continuation": "on", "speed_probe_interval": 0}
        self.router = await harness.router(self.one, self.other, **settings)
        await self.order(Order.DRAIN, self.other)
        self.clients = [await self.router.client() for _ in range(number)]
        for client in self.clients:
            await client.send(
                request(COMPLETIONS, STREAM | {"prompt": LONG, "max_tokens": 9} | more)
            )
        self.calls = [await self.one.call() for _ in range(number)]
        for call in self.calls:
            call.stream(piece("x", [100], prompt_token_ids=PROMPT))
        self.answers = [await client.begin() for client in self.clients]
        for answer in self.answers:
            while b'"x"' not in answer.body:
                await answer.more()
        await self.order(Order.UNDRAIN, self.other)

    async def order(self, order: Order, engine: ScriptedEngine) -> None:
        await self.router.router.sync.order(order, self.router.endpoint(engine))

    @property
    def staying(self) -> list[Call]:
        """Streams that the first engine still serves."""
        return [call for call in self.calls if not call.connection.closed.is_set()]

    def sweep(self) -> None:
        self.router.router.clients.idle_sweep._sweep()

    async def move(self) -> None:
        """Drain the first engine, and let it hand its streams over."""
        await self.order(Order.MOVE, self.one)
        self.sweep()

    async def all_whole(self) -> None:
        """Let the second engine end each answer as it is asked, and expect all of them."""
        for _ in self.answers:
            finish(await self.other.call())
        for answer in self.answers:
            await answer.rest()
            assert answer.body.endswith(DONE)
            assert answer.body.count(b'"z"') == 1
        assert {each.outcome for each in await self.router.records(len(self.answers))} == {"ok"}


def finish(call: Call) -> None:
    """Go on with the answer of another engine, to its end."""
    assert call.json["prompt"] == [*PROMPT, 100]
    call.stream(piece("z", [102], name="b", prompt_token_ids=[*PROMPT, 100]))
    call.end(piece("", [104], name="b", finish_reason="stop"), DONE)


@pytest.fixture
async def bench(harness: Harness) -> Bench:
    bench = Bench()
    await bench.start(harness)
    return bench


@pytest.fixture
async def crowd(harness: Harness) -> Bench:
    """Three times as many streams as may move at a time."""
    bench = Bench()
    await bench.start(harness, 3 * MOVES_PER_ENGINE)
    return bench


async def test_a_drained_engine_hands_its_streams_over(bench: Bench) -> None:
    await bench.move()
    await bench.all_whole()
    await bench.calls[0].left()
    assert [each.reason for each in bench.router.all(FellBack)] == ["moved"]


async def test_that_is_no_failure_of_the_engine(bench: Bench) -> None:
    await bench.move()
    await bench.all_whole()
    assert bench.router.all(LegFailed) == []
    member = bench.router.router.fleet.member(bench.router.endpoint(bench.one))
    assert member.last_error is None


async def test_a_few_streams_move_at_a_time(crowd: Bench) -> None:
    await crowd.move()
    await eventually(lambda: crowd.other.waiting == MOVES_PER_ENGINE)
    moving = [await crowd.other.call() for _ in range(MOVES_PER_ENGINE)]
    crowd.sweep()
    assert crowd.other.waiting == 0
    assert len(crowd.staying) == 2 * MOVES_PER_ENGINE
    moving[0].stream(piece("z", [102], name="b", prompt_token_ids=[*PROMPT, 100]))
    await eventually(lambda: crowd.other.waiting == 1)
    moving[0].end(piece("", [104], name="b", finish_reason="stop"), DONE)
    for call in moving[1:]:
        finish(call)
    for _ in range(2 * MOVES_PER_ENGINE):
        finish(await crowd.other.call())
    for answer in crowd.answers:
        await answer.rest()
        assert answer.body.endswith(DONE)


async def test_the_streams_of_a_dead_engine_move_in_turn_too(crowd: Bench) -> None:
    crowd.one.stop()  # it counts as usable until probes fail
    await eventually(lambda: crowd.other.waiting == 2 * MOVES_PER_ENGINE)
    await crowd.all_whole()


async def test_a_client_that_leaves_the_queue_does_not_block_it(crowd: Bench) -> None:
    crowd.one.stop()  # it counts as usable until probes fail
    await eventually(lambda: crowd.other.waiting == 2 * MOVES_PER_ENGINE)
    for client in crowd.clients:
        client.leave()
    await crowd.router.is_quiet()


async def test_what_cannot_be_continued_ends_on_the_drained_engine(harness: Harness) -> None:
    bench = Bench()
    await bench.start(harness, echo=True)
    await bench.move()
    bench.calls[0].end(DONE)
    await bench.answers[0].rest()
    assert bench.answers[0].body.endswith(DONE)
    assert bench.other.seen == 0


@pytest.mark.parametrize("how", ["drained", "stalled"])
async def test_a_stream_with_nowhere_to_go_stays_until_there_is_room(
    bench: Bench, how: str
) -> None:
    await bench.order(Order.DRAIN, bench.other)
    if how == "drained":
        await bench.move()
    else:
        stall(bench.router, bench.one)
    bench.sweep()
    assert bench.staying == bench.calls
    await bench.order(Order.UNDRAIN, bench.other)
    bench.sweep()
    await bench.all_whole()


async def test_streams_stay_while_the_others_are_full_and_those_that_left_try_again(
    crowd: Bench,
) -> None:
    stall(crowd.router, crowd.one)
    for _ in range(MOVES_PER_ENGINE):
        (await crowd.other.call()).send(FULL)
    member = crowd.router.router.fleet.member(crowd.router.endpoint(crowd.other))
    await eventually(lambda: member.last_error is None and member.full_until > 0)
    crowd.sweep()
    for _ in range(MOVES_PER_ENGINE):  # half a second later
        finish(await crowd.other.call())
    assert len(crowd.staying) == 2 * MOVES_PER_ENGINE
    for call in crowd.staying:  # it was only stalled
        call.end(DONE)
    for answer in crowd.answers:
        await answer.rest()
        assert answer.body.endswith(DONE)
        assert b'"error"' not in answer.body


async def test_an_engine_that_shuts_down_gets_no_more_requests_and_hands_its_streams_over(
    bench: Bench,
) -> None:
    """vLLM with --shutdown-timeout, whose health stays good."""
    await bench.order(Order.DRAIN, bench.other)
    client = await bench.router.send(COMPLETIONS, completion())
    refused = await bench.one.call()
    await bench.order(Order.UNDRAIN, bench.other)
    refused.send(json_reply(SHUTDOWN, 500))
    (await bench.other.call()).send(json_reply({"choices": [{"text": "ok"}]}))
    assert (await client.answer()).status == 200
    member = bench.router.router.fleet.member(bench.router.endpoint(bench.one))
    assert member.health.state is State.DRAINING
    bench.sweep()
    finish(await bench.other.call())
    await bench.answers[0].rest()
    assert bench.answers[0].body.endswith(DONE)
    assert [each.reason for each in bench.router.all(FellBack)] == ["shutting_down", "moved"]


async def test_a_moved_stream_without_another_engine_ends_with_an_error(bench: Bench) -> None:
    bench.calls[0].close()
    (await bench.other.call()).close()
    await bench.answers[0].rest()
    assert error_in(bench.answers[0].body)["code"] >= 500
