"""Answers that are read whole, or held back before their first token, have one limit in all."""

from collections.abc import Callable
from functools import partial

import orjson
import pytest

from router.core.events import FellBack, RequestEnded
from router.core.values import FailureKind, Role
from router.net.client.client_connection import ClientConnection
from router.net.client.client_request import ClientRequest
from router.net.request.event_readers import FREE_TAIL_BYTES
from router.telemetry import families
from tests.net.client import Client, request
from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import CHAT, COMPLETIONS, DONE, STREAM, completion, event, prefilled, token

ROOM = 10_000
LONG = b"x" * 8000
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})


def held(router: Running) -> int:
    """Bytes of answers that it holds."""
    return router.router.handler.network.answer_budget.held


def limit(router: Running, room: int = ROOM) -> None:
    """Let it hold so many."""
    router.router.handler.network.answer_budget.limit = room


async def asked(router: Running, engine: ScriptedEngine) -> tuple[Client, Call]:
    """A client whose engine has sent 8,000 bytes of an answer of 8,001."""
    client = await router.client()
    before = held(router)
    await client.send(request(COMPLETIONS, completion()))
    call = await engine.call()
    call.send(HEAD % (len(LONG) + 1), LONG)
    await eventually(lambda: held(router) == before + len(LONG))
    return client, call


def is_unblamed(router: Running, engine: ScriptedEngine) -> bool:
    """Whether the engine has not failed in the router's eyes."""
    member = router.router.fleet.member(router.endpoint(engine))
    return member.last_error is None and member.health.is_up


async def test_answer_without_room_is_503_without_blame(harness: Harness) -> None:
    engines = [await harness.engine() for _ in range(2)]
    router = await harness.router(*engines, load_balancing_strategy="round_robin")
    limit(router)
    first, call = await asked(router, engines[0])
    other = await router.send(COMPLETIONS, completion())
    refused = await engines[1].call()
    refused.send(HEAD % (len(LONG) + 1), LONG)
    await refused.left()
    answer = await other.answer()
    assert answer.status == 503
    assert answer.error["message"] == "The router holds too many answers now."
    assert answer.values(b"retry-after") == [b"1"]
    assert [engine.seen for engine in engines] == [1, 1]  # no other one would have had room for it
    assert all(is_unblamed(router, engine) for engine in engines)
    assert held(router) == len(LONG)
    call.send(b"}")
    assert (await first.answer()).status == 200
    assert held(router) == 0


async def test_a_prefill_reply_without_room_is_skipped(harness: Harness) -> None:
    prefills, decode = [await harness.engine() for _ in range(2)], await harness.engine()
    router = await harness.router(decode, prefill=tuple(prefills))
    limit(router)
    for engine in prefills:
        engine.answer_all(lambda call: call.send(prefilled(prompt_token_ids=[0] * ROOM)))
    decode.answer_all(lambda call: call.send(json_reply({})))
    assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert router.all(FellBack) == [FellBack(Role.PREFILL, FailureKind.NO_ROOM)]
    assert sum(engine.seen for engine in prefills) == 1
    assert all(is_unblamed(router, engine) for engine in prefills)
    assert held(router) == 0


@pytest.mark.parametrize("continuation", ["off", "on"])
async def test_the_reply_of_a_prefill_is_held_until_the_first_token(
    harness: Harness, continuation: str
) -> None:
    """Also if the stream may be continued: then its body and ids are held, but not the reply."""
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), stream_continuation=continuation)
    prefill.answer_all(lambda call: call.send(prefilled(ignored=LONG.decode())))
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    client = await router.send(CHAT, body)
    call = await decode.call()
    kept = held(router)
    assert kept > len(LONG)
    call.stream(ROLE)
    await eventually(lambda: held(router) == kept + len(ROLE))
    choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": None, "token_ids": [2]}
    call.events(event({"id": "a", "choices": [choice], "prompt_token_ids": [1]}))
    await eventually(lambda: held(router) == 0)
    call.end(DONE)
    assert (await client.answer()).status == 200
    assert held(router) == 0


async def test_bytes_of_a_failed_engine_are_released_during_the_retry(harness: Harness) -> None:
    engines = [await harness.engine() for _ in range(2)]
    router = await harness.router(*engines, load_balancing_strategy="round_robin")
    client, broken = await asked(router, engines[0])
    broken.close()
    call = await engines[1].call()
    assert held(router) == 0
    call.send(json_reply({}))
    assert (await client.answer()).status == 200


async def test_held_events_without_room_end_their_stream(harness: Harness) -> None:
    engine, router = await harness.single()
    limit(router, len(ROLE) + 10)
    client = await router.send(CHAT, {**STREAM, "messages": []})
    call = await engine.call()
    call.stream(ROLE)
    await eventually(lambda: held(router) == len(ROLE))
    call.events(ROLE)
    await call.left()
    assert b"holds too many answers" in (await client.answer()).body
    assert is_unblamed(router, engine)
    assert held(router) == 0


async def test_a_comment_needs_no_room(harness: Harness) -> None:
    """It is passed on, and ends no stream that waits while a reload has lowered the limit."""
    engine, router = await harness.single()
    client = await router.send(CHAT, {**STREAM, "messages": []})
    call = await engine.call()
    call.stream(ROLE)
    await eventually(lambda: held(router) == len(ROLE))
    limit(router, 1)
    call.events(b": wait\n\n")
    answer = await client.begin()
    await answer.until(b": wait\n\n")
    assert held(router) == len(ROLE)
    call.end(token("a"), DONE)
    assert (await answer.rest()).body.endswith(token("a") + DONE)
    assert held(router) == 0


async def test_a_stream_that_has_begun_needs_no_room(harness: Harness) -> None:
    engine, router = await harness.single()
    limit(router, 0)
    many = [token("a" * 5000) for _ in range(3)]

    def answer(call: Call) -> None:
        call.stream_whole(*many, DONE)

    engine.answer_all(answer)
    assert (await router.ask(COMPLETIONS, STREAM)).body == b"".join(many) + DONE


async def test_a_long_event_that_goes_on_counts_until_its_end(harness: Harness) -> None:
    """An engine that sends the half of one does not fill the memory, whoever waits for the rest."""
    _, router, client, call = await harness.stream()
    call.stream(token("a"))
    answer = await (await client.begin()).until(token("a"))
    long = token("b" * 500_000)
    call.events(long[:50_000])  # what streams may have without being counted
    call.events(long[50_000:300_000])
    await eventually(lambda: held(router) == 300_000 - FREE_TAIL_BYTES)
    call.events(long[300_000:])
    await answer.until(long)
    assert held(router) == 0
    call.events(DONE)
    call.end()
    assert (await answer.rest()).body == token("a") + long + DONE


async def test_half_an_event_that_has_no_room_ends_its_stream(harness: Harness) -> None:
    engine, router = await harness.single()
    limit(router)
    client = await router.send(COMPLETIONS, STREAM)
    call = await engine.call()
    call.stream(token("a"))
    answer = await (await client.begin()).until(token("a"))
    call.events(token("b" * 500_000)[:300_000])
    await call.left()
    body = (await answer.rest()).body
    assert body.startswith(token("a") + b'data: {"error":')
    assert b"holds too many answers" in body
    assert body.endswith(DONE)
    assert is_unblamed(router, engine)
    assert held(router) == 0


async def test_a_disconnect_within_a_long_event_releases_its_bytes(harness: Harness) -> None:
    _, router, client, call = await harness.stream()
    call.stream(token("a"), token("b" * 500_000)[:300_000])
    await eventually(lambda: held(router) == 300_000 - FREE_TAIL_BYTES)
    client.leave()
    await router.record()
    assert held(router) == 0


def shut_down(_client: Client, _call: Call, router: Running) -> None:
    """As after the time that requests have to end."""
    for each in list(router.router.handler.network.active):
        each.abort()


EXITS: dict[str, Callable[[Client, Call, Running], object]] = {
    "whole": lambda _client, call, _router: call.send(b"}"),
    "engine dies": lambda _client, call, _router: call.close(),
    "engine resets": lambda _client, call, _router: call.reset(),
    "client leaves": lambda client, _call, _router: client.leave(),
    "router goes": shut_down,
}


@pytest.mark.parametrize("name", EXITS)
async def test_whatever_ends_an_answer_gives_its_bytes_back(harness: Harness, name: str) -> None:
    engine, router = await harness.single()
    client, call = await asked(router, engine)
    EXITS[name](client, call, router)
    await router.record()
    assert held(router) == 0


async def test_an_abandoned_prefill_releases_its_bytes(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    client, _ = await asked(router, prefill)
    client.leave()
    await eventually(lambda: held(router) == 0)


async def test_a_whole_answer_counts_until_its_client_has_read_it(harness: Harness) -> None:
    """Its bytes stay in the router's memory: with many such clients, more than all limits."""
    engine, router = await harness.single()
    whole = json_reply({"x": "a" * (8 << 20)})
    engine.answer_all(lambda call: call.send(whole))
    clients = [await router.client(receive_buffer=4096) for _ in range(4)]
    for client in clients:  # that do not read yet
        await client.send(request(COMPLETIONS, completion()))
    await eventually(lambda: len(router.all(RequestEnded)) == 4)
    await eventually(lambda: held(router) > 4 * (4 << 20))
    limit(router, 16 << 20)  # where one more would fit by itself
    assert (await router.ask(COMPLETIONS, completion())).status == 503
    for client in clients[:2]:
        client.leave()
    await eventually(lambda: held(router) < 2 * (8 << 20))
    for client in clients[2:]:
        assert len((await client.answer()).body) > 8 << 20
    await eventually(lambda: held(router) == 0)


@pytest.mark.parametrize("is_pipelined", [True, False], ids=["at once", "one by one"])
async def test_a_client_that_does_not_read_gets_no_second_answer(
    harness: Harness, is_pipelined: bool
) -> None:
    """Else each request of a client that reads nothing leaves a whole answer in the router."""
    engine, router = await harness.single()
    whole = json_reply({"x": "a" * (8 << 20)})
    engine.answer_all(lambda call: call.send(whole))
    client, number = await router.client(receive_buffer=4096), 3
    one = request(COMPLETIONS, completion())
    await client.send(one * number if is_pipelined else one)
    await eventually(lambda: held(router) > 4 << 20)
    (connection,) = router.connections
    for _ in range(0 if is_pipelined else number - 1):
        before = connection._last
        await client.send(one)
        await eventually(partial(_has_another, connection, before))
    assert (await router.ask(COMPLETIONS, completion())).status == 200  # when those had their turn
    assert engine.seen == 2
    assert connection.transport.get_write_buffer_size() < 9 << 20
    for _ in range(number):
        assert len((await client.answer()).body) > 8 << 20
    await eventually(lambda: held(router) == 0)


def _has_another(connection: ClientConnection, before: ClientRequest | None) -> bool:
    """Whether a request has come since."""
    return connection._last not in (None, before)


async def test_held_blocks_are_reported_without_an_event(harness: Harness) -> None:
    engine, router = await harness.single()
    client, call = await asked(router, engine)
    body = len(orjson.dumps(completion()))

    def told() -> tuple[float, float]:
        """Bytes of bodies and of answers, as another worker process would read them."""
        found = router.router.metrics._sums.of([families.BUFFERED])[families.BUFFERED]
        return found["bodies",][0], found["answers",][0]

    await eventually(lambda: told() == (body, len(LONG)))
    text = (await router.router.counts.exposition()).decode()
    assert f'pd_router_buffered_bytes{{kind="answers"}} {len(LONG)}.0' in text
    call.send(b"}")
    assert (await client.answer()).status == 200
    await eventually(lambda: told() == (0, 0))


async def test_each_worker_has_its_share_and_room_for_a_large_answer(harness: Harness) -> None:
    engine, router = await harness.single(max_buffered_bytes=300 << 20)
    assert router.router.handler.network.answer_budget.limit == 300 << 20
    router = await harness.router(engine, max_buffered_bytes=64 << 20)
    assert router.router.handler.network.answer_budget.limit == 96 << 20
