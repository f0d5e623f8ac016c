"""Requests wait for their turn, with real connections: who goes next, and what is given back."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from router.core.errors import RouterError
from router.core.events import Probed, RequestEnded
from router.core.health import HealthSignal
from router.core.limits.admission import Ticket
from router.core.limits.places import Group
from router.core.plans.steps import Plan
from router.core.values import Candidate, Role
from router.net.limits import admission_gate
from router.net.limits.admission_gate import AdmissionGate, AdmissionLimits
from router.net.limits.start_limiter import StartLimiter
from tests.net.client import Client, request
from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, KV, STREAM, completion, prefilled, token
from tests.net.test_exclusion import stall

NEVER = 3600.0

TENANT = b"authorization"


class Crowd:
    """A router that serves one request at a time, which waits at its engine."""

    def __init__(self, router: Running, engine: ScriptedEngine) -> None:
        self.router = router
        self.engine = engine
        self.first: Call

    @property
    def gate(self) -> AdmissionGate:
        """The router's."""
        gate = self.router.router.admission
        assert gate is not None
        return gate

    async def come(self, name: bytes, body: object = None, *headers: tuple[bytes, bytes]) -> Client:
        """A request of a tenant; it waits, or is refused, when this returns."""
        client = await self.router.client()
        asked = completion(name.decode()) if body is None else body
        before = self.gate.admission.waiting, len(self.router.all(RequestEnded))
        await client.send(request(COMPLETIONS, asked, (TENANT, name), *headers))
        await eventually(
            lambda: (self.gate.admission.waiting, len(self.router.all(RequestEnded))) != before
        )
        return client

    async def next(self, answer: object = None) -> str:
        """Whose request the engine gets when it has answered the one that it has."""
        self.first.send(json_reply(answer or {}))
        self.first = await self.engine.call()
        await self.first.read()
        return str(self.first.json["prompt"])

    async def end(self) -> None:
        """Answer what the engine has."""
        self.first.send(json_reply({}))
        await eventually(lambda: self.gate.admission.in_flight == 0)


async def crowd(harness: Harness, **settings: Any) -> Crowd:
    """One request is being served."""
    engine = await harness.engine()
    usual: dict[str, Any] = {"max_in_flight": 1, "queue_timeout": NEVER}
    router = await harness.router(engine, **{**usual, **settings})
    found = Crowd(router, engine)
    client = await router.client()
    await client.send(request(COMPLETIONS, completion("first")))
    found.first = await engine.call()
    await found.first.read()
    return found


async def test_without_a_limit_nobody_waits(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine)
    assert router.router.admission is None
    for client in [await router.client() for _ in range(5)]:
        await client.send(request(COMPLETIONS, completion()))
    for call in [await engine.call() for _ in range(5)]:
        call.send(json_reply({}))


async def test_who_comes_late_waits_and_is_answered(harness: Harness) -> None:
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


async def test_tenants_are_told_apart_by_the_header_that_the_operator_names(
    harness: Harness,
) -> None:
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


async def test_who_has_waited_too_long_is_503(harness: Harness) -> None:
    found = await crowd(harness, queue_timeout=0.01)
    client = await found.router.client()
    await client.send(request(COMPLETIONS, completion("late")))
    answer = await client.answer()
    assert answer.status == 503
    assert answer.error["message"] == "The request waited 0.01 s for its turn."
    assert answer.values(b"retry-after") == [b"1"]
    assert found.engine.seen == 1
    await found.end()


class Unheard:
    """A request of which nobody hears."""

    def __init__(self) -> None:
        self.refusals: list[RouterError] = []

    def on_turn(self, waited: float) -> None:
        """It is its turn."""

    def on_refused(self, error: RouterError) -> None:
        """It waits no longer."""
        self.refusals.append(error)


class Uncounted:
    """Nothing is counted."""

    def queue_length(self, waiting: int) -> None: ...

    def queue_waited(self, seconds: float) -> None: ...

    def queue_rejected(self, reason: str) -> None: ...


async def test_of_many_that_are_late_together_few_are_answered_in_one_turn() -> None:
    limits = AdmissionLimits(0, None, 1000, 0.0, b"", "none")
    gate = AdmissionGate(limits, lambda *_: (), lambda group: group, StartLimiter(4), Uncounted())
    waiters = [Unheard() for _ in range(20)]
    for waiter in waiters:
        assert not gate.enter(Ticket("t", 0, 1.0, 0.0), waiter)

    def refused() -> int:
        return sum(len(waiter.refusals) for waiter in waiters)

    gate._sweep()
    assert gate.admission.waiting == 0
    before = refused()
    assert before == 4
    while before < len(waiters):
        await asyncio.sleep(0)
        assert before < refused() <= before + 4
        before = refused()
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


def _answers(call: Call) -> None:
    call.send(json_reply({}))


def _refuses(call: Call) -> None:
    call.send(json_reply({"error": "x"}, 500))


def _breaks(call: Call) -> None:
    call.reset()


ENDS: dict[str, Callable[[Call], None]] = {"ok": _answers, "500": _refuses, "reset": _breaks}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_place_is_given_back_however_the_engine_ends(
    harness: Harness, end: Callable[[Call], None]
) -> None:
    found = await crowd(harness)
    client = await found.come(b"next")
    end(found.first)
    call = await found.engine.call()
    call.send(json_reply({}))
    assert (await client.answer()).status == 200
    await eventually(lambda: found.gate.admission.in_flight == 0)


ONE: dict[str, Any] = {"max_in_flight": 1, "max_in_flight_per_engine": 1, "queue_timeout": NEVER}


async def next_in_turn(router: Running) -> Client:
    """A client that waits for the only place."""
    client = await router.client()
    await client.send(request(COMPLETIONS, completion("next")))
    gate = gate_of(router)
    await eventually(lambda: gate.admission.waiting == 1)
    assert gate.admission.in_flight == gate.places.taken == 1
    return client


async def is_answered(client: Client, engine: ScriptedEngine, router: Running) -> None:
    """It gets the place that was given back, and gives it back itself."""
    (await engine.call()).send(json_reply({}))
    assert (await client.answer()).status == 200
    gate = gate_of(router)
    await eventually(lambda: gate.admission.in_flight == gate.places.taken == 0)


async def test_who_leaves_while_its_prompt_is_prefilled_gives_its_place_back(
    harness: Harness,
) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), routing_threshold=50, **ONE)
    client = await router.client()
    await client.send(request(COMPLETIONS, completion("long " * 200)))
    call = await prefill.call()
    waiting = await next_in_turn(router)
    client.leave()
    await call.left()
    await is_answered(waiting, decode, router)


async def test_a_time_out_gives_the_place_back(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, first_byte_timeout=0.05, **ONE)
    clients = [await router.client() for _ in range(3)]
    for client in clients:
        await client.send(request(COMPLETIONS, completion()))
    assert [(await client.answer()).status for client in clients] == [504] * 3
    gate = gate_of(router)
    await eventually(lambda: gate.admission.in_flight == gate.places.taken == 0)


async def test_a_place_goes_along_from_a_stalled_engine_to_another(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, speed_probe_interval=0, **ONE)
    client = await router.client()
    await client.send(request(COMPLETIONS, completion()))
    await one.call()
    waiting = await next_in_turn(router)
    stall(router, one)
    call = await other.call()
    gate, load = gate_of(router), router.router.fleet.ledger.load
    assert gate.places.is_full(load(router.endpoint(other)), 0.0)
    assert not gate.places.is_full(load(router.endpoint(one)), 0.0)
    assert (gate.admission.in_flight, gate.admission.waiting) == (1, 1)
    for engine in (one, other):
        engine.answer_all(_answers)
    call.send(json_reply({}))
    for each in (client, waiting):
        assert (await each.answer()).status == 200
    await eventually(lambda: gate.admission.in_flight == gate.places.taken == 0)


async def test_an_error_inside_the_router_gives_the_place_back(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, complaints: list[str]
) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, **ONE)

    def broken(*_: object) -> Plan:
        raise ZeroDivisionError

    monkeypatch.setattr(router.router.handler.network, "plans", broken)
    for _ in range(2):
        assert (await router.ask(COMPLETIONS, completion())).status == 500
        gate = gate_of(router)
        assert gate.admission.in_flight == gate.places.taken == 0
    assert ["ZeroDivisionError" in line for line in complaints] == [True] * 2
    complaints.clear()


async def test_a_place_is_held_to_the_end_of_the_stream(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, max_in_flight=1)
    clients = [await router.client() for _ in range(2)]
    await clients[0].send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.stream(token("a"))
    await (await clients[0].begin()).until(token("a"))
    await clients[1].send(request(COMPLETIONS, STREAM))
    gate = router.router.admission
    assert gate is not None
    await eventually(lambda: gate.admission.waiting == 1)
    assert engine.seen == 1
    clients[0].leave()
    call = await engine.call()
    call.stream_whole(token("b"), DONE)
    assert (await clients[1].answer()).status == 200


async def test_between_prefill_and_decode_nobody_waits(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), max_in_flight=1, queue_size=5)
    clients = [await router.client() for _ in range(2)]
    for client in clients:
        await client.send(request(COMPLETIONS, completion("x" * 100)))
    for client in clients:
        call = await prefill.call()
        call.send(prefilled())
        call = await decode.call()
        await call.read()
        assert call.json["kv_transfer_params"] == KV
        assert prefill.seen == decode.seen
        call.send(json_reply({}))
        assert (await client.answer()).status == 200


async def test_the_limit_follows_the_engines_that_are_there(harness: Harness) -> None:
    engines = [await harness.engine(), await harness.engine(listening=False)]
    router = await harness.router(
        *engines, ready=False, max_in_flight_per_engine=1, health_check_interval=0.01
    )
    await router.usable(engines[0])
    for client in [await router.client() for _ in range(3)]:
        await client.send(request(COMPLETIONS, completion()))
    gate = router.router.admission
    assert gate is not None
    await eventually(lambda: gate.admission.waiting == 2)
    await engines[1].listen()
    await eventually(lambda: gate.admission.waiting == 1)
    await eventually(lambda: sum(engine.seen for engine in engines) == 2)


async def two_models(harness: Harness, **settings: Any) -> tuple[Running, list[ScriptedEngine]]:
    """A router with an engine for the model `A` and one for `B`, and a place on each."""
    engines = []
    for name in "AB":
        engine = await harness.engine()
        engine.models = json_reply({"object": "list", "data": [{"id": name}]})
        engines.append(engine)
    usual: dict[str, Any] = {"max_in_flight_per_engine": 1, "queue_timeout": NEVER}
    return await harness.router(*engines, **{**usual, **settings}), engines


def gate_of(router: Running) -> AdmissionGate:
    """The router's."""
    gate = router.router.admission
    assert gate is not None
    return gate


async def test_a_model_whose_engines_are_full_does_not_hold_up_another(harness: Harness) -> None:
    router, (a, b) = await two_models(harness)
    for _ in range(2):
        await (await router.client()).send(request(COMPLETIONS, completion(model="A")))
    call = await a.call()
    gate = gate_of(router)
    await eventually(lambda: gate.admission.waiting == 1)
    client = await router.client()
    await client.send(request(COMPLETIONS, completion(model="B")))
    (await b.call()).send(json_reply({}))
    assert (await client.answer()).status == 200
    assert (a.seen, gate.admission.waiting) == (1, 1)
    call.send(json_reply({}))
    (await a.call()).send(json_reply({}))


async def test_a_full_queue_of_one_model_leaves_the_engines_of_another_to_it(
    harness: Harness,
) -> None:
    router, (a, b) = await two_models(harness, queue_size=0)
    await (await router.client()).send(request(COMPLETIONS, completion(model="A")))
    call = await a.call()
    assert (await router.ask(COMPLETIONS, completion(model="A"))).status == 429
    b.answer_all(lambda call: call.send(json_reply({})))
    assert (await router.ask(COMPLETIONS, completion(model="B"))).status == 200
    call.send(json_reply({}))


async def test_models_of_which_nothing_is_known_are_looked_at_together(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients may name any number while no engine tells which it serves: a look at what waits
    takes no longer for that."""
    engines = [await harness.engine() for _ in range(4)]
    for engine in engines:
        engine.models = json_reply({}, 404)
    router = await harness.router(*engines, max_in_flight_per_engine=1, queue_timeout=NEVER)
    for _ in engines:
        await (await router.client()).send(request(COMPLETIONS, completion()))
    calls = [await engine.call() for engine in engines]
    gate = gate_of(router)
    for number in range(20):
        client = await router.client()
        await client.send(request(COMPLETIONS, completion(model=f"m{number}")))
    await eventually(lambda: gate.admission.waiting == 20)
    engines_for, looks = gate._engines_for, []

    def counted(group: Group, now: float) -> Sequence[Candidate]:
        looks.append(group)
        return engines_for(group, now)

    monkeypatch.setattr(gate, "_engines_for", counted)
    gate._let_in()
    assert len(looks) == 1
    for engine in engines:
        engine.answer_all(_answers)
    for call in calls:
        call.send(json_reply({}))
    await eventually(lambda: gate.admission.in_flight == 0)


async def test_no_engine_gets_more_than_its_places_while_another_has_room(
    harness: Harness,
) -> None:
    engines = [await harness.engine() for _ in range(2)]
    router = await harness.router(*engines, max_in_flight_per_engine=2, queue_timeout=NEVER)
    scheduler = router.router.handler.network.scheduler
    scheduler._policies[Role.DECODE] = lambda them, *_: [float(it.ordinal) for it in them]
    for client in [await router.client() for _ in range(5)]:
        await client.send(request(COMPLETIONS, completion()))
    await eventually(lambda: gate_of(router).admission.waiting == 1)
    calls = [await engine.call() for engine in engines for _ in range(2)]
    assert [engine.seen for engine in engines] == [2, 2]
    for call in calls:
        call.send(json_reply({}))
    await eventually(lambda: sum(engine.seen for engine in engines) == 5)
    call = await next(engine for engine in engines if engine.seen == 3).call()
    call.send(json_reply({}))


async def test_what_still_runs_on_an_engine_that_is_drained_takes_no_place_of_another(
    harness: Harness,
) -> None:
    engines = [await harness.engine() for _ in range(2)]
    router = await harness.router(*engines, max_in_flight_per_engine=1, queue_timeout=NEVER)
    await (await router.client()).send(request(COMPLETIONS, completion()))
    await eventually(lambda: sum(engine.seen for engine in engines) == 1)
    busy, free = sorted(engines, key=lambda engine: -engine.seen)
    call = await busy.call()
    router.router.observe(Probed(router.endpoint(busy), HealthSignal.UNAVAILABLE))
    free.answer_all(lambda call: call.send(json_reply({})))
    assert (await router.ask(COMPLETIONS, completion())).status == 200
    call.send(json_reply({}))


async def test_who_waits_for_a_model_goes_on_when_an_engine_comes_to_serve_it(
    harness: Harness,
) -> None:
    router, (a, b) = await two_models(harness)
    for _ in range(2):
        await (await router.client()).send(request(COMPLETIONS, completion(model="A")))
    calls = [await a.call()]
    await eventually(lambda: gate_of(router).admission.waiting == 1)
    cards = ({"id": "A"}, {"id": "B"})
    router.router.observe(Probed(router.endpoint(b), HealthSignal.OK, cards))
    calls.append(await b.call())
    router.router.observe(Probed(router.endpoint(b), HealthSignal.OK, ({"id": "C"},)))
    for call in calls:
        call.send(json_reply({}))
    await router.records(2)


async def test_without_engines_who_comes_is_answered_not_kept(harness: Harness) -> None:
    engine = await harness.engine(listening=False)
    router = await harness.router(engine, ready=False, max_in_flight_per_engine=1)
    for _ in range(3):
        assert (await router.ask(COMPLETIONS, completion())).status == 503


async def test_what_happens_is_counted(harness: Harness) -> None:
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


async def test_a_router_that_goes_tells_those_who_wait(harness: Harness) -> None:
    found = await crowd(harness)
    client = await found.come(b"late")
    found.router.router.handler.abort()
    answer = await client.answer()
    assert answer.status == 503
    assert answer.error["message"] == "The router is shutting down."
    assert found.gate.admission.waiting == found.gate.admission.in_flight == 0
