"""Requests wait for admission, with real connections: their order, and the release of places."""

import asyncio

import pytest

from router.core.limits.admission import Ticket
from router.net.limits import admission_gate
from router.net.limits.admission_gate import AdmissionGate, AdmissionLimits
from router.net.limits.start_limiter import LONG_TURN, StartLimiter
from tests.net.client import request
from tests.net.crowd import NEVER, FixedEngines, Uncounted, Unheard, crowd
from tests.net.engine import json_reply
from tests.net.harness import Harness, eventually
from tests.net.payloads import COMPLETIONS, completion


async def test_without_a_limit_no_request_waits(harness: Harness) -> None:
    engine, router = await harness.single()
    assert router.router.handler.network.admission is None
    for client in [await router.client() for _ in range(5)]:
        await client.send(request(COMPLETIONS, completion()))
    for call in [await engine.call() for _ in range(5)]:
        call.send(json_reply({}))


async def test_a_late_request_waits_and_is_answered(harness: Harness) -> None:
    found = await crowd(harness)
    client = await found.come(b"late")
    assert found.engine.seen == 1
    assert await found.next() == "late"
    await found.end()
    assert (await client.answer()).status == 200
    first, late = await found.router.records(2)
    assert first.queue_seconds is None
    assert late.queue_seconds is not None
    assert late.queue_seconds > 0


async def test_a_place_that_is_given_back_is_taken_at_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_gate, "SWEEP_SECONDS", NEVER)
    found = await crowd(harness)
    await found.come(b"one")
    await found.come(b"two")
    assert [await found.next() for _ in range(2)] == ["one", "two"]
    await found.end()


async def test_a_tenant_with_many_requests_does_not_hold_up_another(harness: Harness) -> None:
    found = await crowd(harness)
    for name in (b"greedy",) * 4 + (b"polite",):
        await found.come(name)
    order = [await found.next() for _ in range(5)]
    assert "polite" in order[:2]
    await found.end()


async def test_a_tenant_of_long_answers_pays_for_them(harness: Harness) -> None:
    found = await crowd(harness)
    for name in (b"a", b"a", b"b", b"b", b"b"):
        await found.come(name)
    assert await found.next() == "a"
    usage = {"prompt_tokens": 1, "completion_tokens": 9000}
    assert [await found.next({"usage": usage}), await found.next(), await found.next()] == ["b"] * 3
    assert await found.next() == "a"
    await found.end()


async def test_tenants_are_distinguished_by_the_configured_header(harness: Harness) -> None:
    found = await crowd(harness, tenant_header="X-Team")
    for name in (b"a", b"b", b"c"):
        await found.come(name, None, (b"x-team", b"greedy"))
    await found.come(b"d", None, (b"x-team", b"polite"))
    assert [await found.next() for _ in range(4)] in (["a", "d", "b", "c"], ["d", "a", "b", "c"])
    await found.end()


@pytest.mark.parametrize(
    ("source", "order"), [("none", "abc"), ("body", "cba"), ("x-priority", "bac")]
)
async def test_priorities_come_from_where_the_operator_allows(
    harness: Harness, source: str, order: str
) -> None:
    found = await crowd(harness, queue_priority=source)
    for name, body, header in (("a", 3, b"2"), ("b", 2, b"-5"), ("c", 1, b"many")):
        asked = completion(name, priority=body)
        await found.come(b"x", asked, (b"x-priority", header))
    if source == "x-priority":  # what is no number is 0
        order = "bca"
    assert "".join([await found.next() for _ in range(3)]) == order
    await found.end()


async def test_a_full_queue_is_429(harness: Harness) -> None:
    found = await crowd(harness, queue_size=1)
    await found.come(b"a")
    answer = await (await found.come(b"a")).answer()
    assert answer.status == 429
    assert answer.error["type"] == "RateLimitError"
    assert answer.values(b"retry-after") == [b"1"]
    assert answer.values(b"x-ratelimit-remaining-requests") == [b"0"]
    assert answer.values(b"x-ratelimit-reset-requests") == [b"1s"]
    assert await found.next() == "a"
    await found.end()


async def test_in_a_full_queue_the_greedy_tenant_makes_room(harness: Harness) -> None:
    found = await crowd(harness, queue_size=2)
    await found.come(b"greedy")
    newest = await found.come(b"greedy")
    await found.come(b"polite")
    assert (await newest.answer()).status == 429
    assert sorted([await found.next() for _ in range(2)]) == ["greedy", "polite"]
    await found.end()


async def test_a_request_that_waited_too_long_is_503(harness: Harness) -> None:
    found = await crowd(harness, queue_timeout=0.01)
    client = await found.router.client()
    await client.send(request(COMPLETIONS, completion("late")))
    answer = await client.answer()
    assert answer.status == 503
    assert answer.error["message"] == "The request waited 0.01 s for its turn."
    assert answer.values(b"retry-after") == [b"1"]
    assert found.engine.seen == 1
    await found.end()


async def test_of_many_that_are_late_together_few_are_answered_in_one_turn() -> None:
    limits = AdmissionLimits(0, None, 1000, 0.0, b"", "none")
    gate = AdmissionGate(limits, FixedEngines({}), StartLimiter(4), Uncounted())
    waiters = [Unheard() for _ in range(20)]
    for waiter in waiters:
        assert not gate.enter(Ticket("t", 0, 1.0, 0.0), waiter)

    def refused() -> int:
        return sum(len(waiter.refusals) for waiter in waiters)

    loop = asyncio.get_running_loop()
    began = loop.time()
    gate._sweep()
    assert gate.admission.waiting == 0
    before = refused()
    assert before == 4
    while before < len(waiters):
        now = loop.time()
        await asyncio.sleep(0)
        turns = (loop.time() - began) / LONG_TURN  # a long turn of a busy machine counts as several
        assert before < refused() <= before + 4 * max(1.0, turns)
        before, began = refused(), now
    gate.close()


async def test_a_client_that_leaves_the_queue_is_not_served(harness: Harness) -> None:
    found = await crowd(harness)
    for name in (b"a", b"b"):
        client = await found.come(name)
        if name == b"a":
            client.leave()
            await eventually(lambda: found.gate.admission.waiting == 0)
    assert await found.next() == "b"
    await found.end()
    assert found.engine.seen == 2


async def test_events_are_counted(harness: Harness) -> None:
    found = await crowd(harness, queue_size=1)
    await found.come(b"a")
    text = (await found.router.router.counts.exposition()).decode()
    assert "pd_router_queue_length 1.0" in text
    assert "pd_router_admitted_requests 1.0" in text
    await found.come(b"a")
    assert await found.next() == "a"
    await found.end()
    text = (await found.router.router.counts.exposition()).decode()
    assert "pd_router_queue_length 0.0" in text
    assert "pd_router_admitted_requests 0.0" in text
    assert "pd_router_queue_wait_seconds_count 1.0" in text
    assert 'pd_router_queue_rejections_total{reason="full"} 1.0' in text
    assert 'pd_router_queue_rejections_total{reason="pushed_out"} 0.0' in text


async def test_a_terminating_router_answers_waiting_requests(harness: Harness) -> None:
    found = await crowd(harness)
    client = await found.come(b"late")
    found.router.router.handler.abort()
    answer = await client.answer()
    assert answer.status == 503
    assert answer.error["message"] == "The router is shutting down."
    assert found.gate.admission.waiting == found.gate.admission.in_flight == 0
