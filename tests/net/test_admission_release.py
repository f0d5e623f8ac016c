"""A request gives its place in the admission limit back, however it ends."""

from collections.abc import Callable
from typing import Any

import pytest

from router.core.plans.steps import Plan
from tests.net.client import Client, request
from tests.net.crowd import NEVER, answers, crowd, gate_of
from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, KV, STREAM, completion, prefilled, token
from tests.net.test_exclusion import stall


def _refuses(call: Call) -> None:
    call.send(json_reply({"error": "x"}, 500))


def _breaks(call: Call) -> None:
    call.reset()


ENDS: dict[str, Callable[[Call], None]] = {"ok": answers, "500": _refuses, "reset": _breaks}


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
    client = await router.send(COMPLETIONS, completion("next"))
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


async def test_a_disconnect_during_prefill_frees_the_place(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), routing_threshold=50, **ONE)
    client = await router.send(COMPLETIONS, completion("long " * 200))
    call = await prefill.call()
    waiting = await next_in_turn(router)
    client.leave()
    await call.left()
    await is_answered(waiting, decode, router)


async def test_a_time_out_gives_the_place_back(harness: Harness) -> None:
    _, router = await harness.single(first_byte_timeout=0.05, **ONE)
    clients = [await router.client() for _ in range(3)]
    for client in clients:
        await client.send(request(COMPLETIONS, completion()))
    assert [(await client.answer()).status for client in clients] == [504] * 3
    gate = gate_of(router)
    await eventually(lambda: gate.admission.in_flight == gate.places.taken == 0)


async def test_a_place_goes_along_from_a_stalled_engine_to_another(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, speed_probe_interval=0, **ONE)
    client = await router.send(COMPLETIONS, completion())
    await one.call()
    waiting = await next_in_turn(router)
    stall(router, one)
    call = await other.call()
    gate, load = gate_of(router), router.router.fleet.ledger.load
    assert gate.places.is_full(load(router.endpoint(other)), 0.0)
    assert not gate.places.is_full(load(router.endpoint(one)), 0.0)
    assert (gate.admission.in_flight, gate.admission.waiting) == (1, 1)
    for engine in (one, other):
        engine.answer_all(answers)
    call.send(json_reply({}))
    for each in (client, waiting):
        assert (await each.answer()).status == 200
    await eventually(lambda: gate.admission.in_flight == gate.places.taken == 0)


async def test_an_error_inside_the_router_gives_the_place_back(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, complaints: list[str]
) -> None:
    _, router = await harness.single(**ONE)

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
    engine, router = await harness.single(max_in_flight=1)
    clients = [await router.client() for _ in range(2)]
    await clients[0].send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.stream(token("a"))
    await (await clients[0].begin()).until(token("a"))
    await clients[1].send(request(COMPLETIONS, STREAM))
    gate = router.router.handler.network.admission
    assert gate is not None
    await eventually(lambda: gate.admission.waiting == 1)
    assert engine.seen == 1
    clients[0].leave()
    call = await engine.call()
    call.stream_whole(token("b"), DONE)
    assert (await clients[1].answer()).status == 200


async def test_no_request_waits_between_prefill_and_decode(harness: Harness) -> None:
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
