"""What is sent again when a pooled connection was closed under a request, and what never is."""

import asyncio
from collections.abc import Callable

import pytest

from router.core.events import FellBack, LegFailed
from router.core.values import FailureKind, Role
from tests.net.client import request
from tests.net.engine import Call, Connection, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import (
    COMPLETIONS,
    EMBEDDINGS,
    KV,
    OK,
    answer_remotely,
    completion,
    prefilled,
)


async def _pooled(harness: Harness, router: Running, engine: ScriptedEngine) -> Connection:
    """A connection that the router keeps for reuse."""
    answer = asyncio.ensure_future(router.ask(COMPLETIONS, completion()))
    call = await engine.call()
    call.send(OK)
    assert (await answer).status == 200
    await eventually(lambda: router.pool(engine).idle == 1)
    return call.connection


@pytest.mark.parametrize("end", [Call.close, Call.reset])
async def test_a_stale_connection_is_replayed_once_on_a_fresh_one(
    harness: Harness, end: Callable[[Call], None]
) -> None:
    engine, router = await harness.single()
    stale = await _pooled(harness, router, engine)
    client = await router.send(COMPLETIONS, completion())
    first = await engine.call()
    assert first.connection is stale
    end(first)
    second = await engine.call()
    assert second.connection is not stale
    assert second.body == first.body
    assert second.values(b"x-request-id") != first.values(b"x-request-id")
    second.send(OK)
    assert (await client.answer()).status == 200
    assert router.all(LegFailed) == []  # it is no evidence against the engine
    assert router.all(FellBack) == []


@pytest.mark.parametrize("key", ["store", "background"])
async def test_a_request_that_leaves_traces_is_not_replayed(harness: Harness, key: str) -> None:
    engine, router = await harness.single()
    stale = await _pooled(harness, router, engine)
    client = await router.send("/v1/responses", {"model": "m", "input": "x", key: True})
    first = await engine.call()
    assert first.connection is stale
    first.reset()
    assert (await client.answer()).status == 502
    assert engine.seen == 2


async def test_a_replay_that_is_reset_too_is_a_failure(harness: Harness) -> None:
    engine, router = await harness.single()
    await _pooled(harness, router, engine)
    client = await router.send(COMPLETIONS, completion())
    (await engine.call()).reset()
    (await engine.call()).reset()
    assert (await client.answer()).status == 502
    assert engine.seen == 3
    assert [f.kind for f in router.all(LegFailed)] == [FailureKind.RESET]


async def test_a_stale_connection_that_answered_one_byte_is_not_replayed(harness: Harness) -> None:
    engine, router = await harness.single()
    await _pooled(harness, router, engine)
    client = await router.send(EMBEDDINGS, {"input": "x"})
    call = await engine.call()
    call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx")
    answer = await client.begin()
    await answer.until(b"x")
    call.reset()
    with pytest.raises(Exception, match=r"peer closed|reset"):
        await answer.rest()
    assert engine.seen == 2


@pytest.mark.parametrize("ends", [Call.close, Call.reset])
async def test_a_passed_through_answer_that_breaks_behind_its_head_is_answered_by_another_engine(
    harness: Harness, ends: Callable[[Call], None]
) -> None:
    bad, good = await harness.engine(), await harness.engine()
    router = await harness.router(bad, good)
    client = await router.send(EMBEDDINGS, {"input": "x"})
    call = await bad.call()
    (relay,) = router.router.clients.idle_sweep._watched
    call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
    await eventually(lambda: relay.status)  # type: ignore[attr-defined]
    ends(call)
    (await good.call()).send(OK)
    answer = await client.answer()
    assert (answer.status, answer.json) == (200, {"choices": [{"text": "ok"}]})
    assert router.all(FellBack) == [FellBack(Role.DECODE, "broken")]
    assert [f.endpoint for f in router.all(LegFailed)] == [router.endpoint(bad)]


async def test_pass_through_broken_everywhere_is_502(harness: Harness) -> None:
    engine, router = await harness.single()

    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
        call.close()

    engine.answer_all(script)
    answer = await router.ask(EMBEDDINGS, {"input": "x"})
    assert answer.status == 502
    assert answer.error["type"] == "EngineError"


async def test_a_stale_connection_to_a_prefill_engine_is_replayed(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    decode.answer_all(lambda call: call.send(OK))
    client = await router.send(COMPLETIONS, completion())
    (await prefill.call()).send(prefilled())
    assert (await client.answer()).status == 200
    await client.send(request(COMPLETIONS, completion()))
    (await prefill.call()).close()
    (await prefill.call()).send(prefilled())
    assert (await client.answer()).status == 200
    assert router.all(FellBack) == []


async def test_a_kv_reference_is_never_sent_twice(harness: Harness) -> None:
    """The engine that reset may have read the blocks; they are not there any more."""
    prefill, decode = await harness.engine(), await harness.engine()
    other = await harness.engine()
    router = await harness.router(decode, other, prefill=(prefill,))
    used: list[object] = []
    number = 0

    def hand_over(call: Call) -> None:
        nonlocal number
        number += 1
        call.send(json_reply({"kv_transfer_params": {**KV, "remote_request_id": number}}))

    def die(call: Call) -> None:
        used.append(call.json["kv_transfer_params"]["remote_request_id"])
        call.reset()

    def live(call: Call) -> None:
        used.append(call.json["kv_transfer_params"]["remote_request_id"])
        call.send(OK)

    prefill.answer_all(hand_over)
    decode.answer_all(live)
    other.answer_all(live)
    client = await router.client()
    for _ in range(4):  # so that each has a connection that may be stale
        assert (await client.ask(COMPLETIONS, completion())).status == 200
    decode.answer_all(die)
    for _ in range(4):
        assert (await client.ask(COMPLETIONS, completion())).status == 200
    assert len(set(used)) == len(used)
    assert {f.reason for f in router.all(FellBack)} == {"reset"}


async def test_an_old_connection_is_not_used_for_a_kv_reference(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    prefill.answer_all(answer_remotely)
    client = await router.send(COMPLETIONS, completion())
    first = await decode.call()
    first.send(OK)
    assert (await client.answer()).status == 200
    (kept,) = router.pool(decode)._idle
    kept.idle_since -= 2.0  # older than any connection that was in use a moment ago
    await client.send(request(COMPLETIONS, completion()))
    second = await decode.call()
    assert second.connection is not first.connection
    second.send(OK)
    assert (await client.answer()).status == 200
    assert router.pool(decode).idle == 2


async def test_a_refused_connection_leaves_the_reference_unused(harness: Harness) -> None:
    prefill, bad, good = await harness.engine(), await harness.engine(), await harness.engine()
    router = await harness.router(bad, good, prefill=(prefill,))
    prefill.answer_all(answer_remotely)
    bad.refuse()
    good.answer_all(lambda call: call.send(OK))
    for _ in range(2):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert prefill.seen == 2
    assert good.seen == 2
