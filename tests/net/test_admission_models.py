"""Admission where engines serve different models: the limit follows the engines of each."""

from collections.abc import Sequence
from typing import Any

import pytest

from router.core.candidate import Candidate
from router.core.events import Probed
from router.core.health import HealthSignal
from router.core.limits.places import Group
from router.core.values import Role
from tests.net.client import request
from tests.net.crowd import NEVER, answers, gate_of
from tests.net.engine import ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, completion


async def test_the_limit_follows_the_present_engines(harness: Harness) -> None:
    engines = [await harness.engine(), await harness.engine(listening=False)]
    router = await harness.router(
        *engines, ready=False, max_in_flight_per_engine=1, health_check_interval=0.01
    )
    await router.usable(engines[0])
    for client in [await router.client() for _ in range(3)]:
        await client.send(request(COMPLETIONS, completion()))
    gate = router.router.handler.network.admission
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


async def test_full_engines_of_one_model_do_not_delay_another_model(harness: Harness) -> None:
    router, (a, b) = await two_models(harness)
    for _ in range(2):
        await (await router.client()).send(request(COMPLETIONS, completion(model="A")))
    call = await a.call()
    gate = gate_of(router)
    await eventually(lambda: gate.admission.waiting == 1)
    client = await router.send(COMPLETIONS, completion(model="B"))
    (await b.call()).send(json_reply({}))
    assert (await client.answer()).status == 200
    assert (a.seen, gate.admission.waiting) == (1, 1)
    call.send(json_reply({}))
    (await a.call()).send(json_reply({}))


async def test_full_queue_of_one_model_spares_other_models(harness: Harness) -> None:
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
    """Clients may name any number of models while the engines' models are unknown: a check of the
    queue takes no longer."""
    engines = [await harness.engine() for _ in range(4)]
    for engine in engines:
        engine.models = json_reply({}, 404)
    router = await harness.router(*engines, max_in_flight_per_engine=1, queue_timeout=NEVER)
    for _ in engines:
        await (await router.client()).send(request(COMPLETIONS, completion()))
    calls = [await engine.call() for engine in engines]
    gate = gate_of(router)
    for number in range(20):
        await router.send(COMPLETIONS, completion(model=f"m{number}"))
    await eventually(lambda: gate.admission.waiting == 20)
    usable, looks = gate._decode_engines.usable, []

    def counted(group: Group, now: float) -> Sequence[Candidate]:
        looks.append(group)
        return usable(group, now)

    monkeypatch.setattr(gate._decode_engines, "usable", counted)
    gate._let_in()
    assert len(looks) == 1
    for engine in engines:
        engine.answer_all(answers)
    for call in calls:
        call.send(json_reply({}))
    await eventually(lambda: gate.admission.in_flight == 0)


async def test_engine_limits_hold_while_another_has_room(harness: Harness) -> None:
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


async def test_requests_on_a_drained_engine_take_no_place_of_another(harness: Harness) -> None:
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


async def test_a_request_waiting_for_a_model_starts_when_an_engine_lists_it(
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


async def test_without_engines_requests_are_answered_not_queued(harness: Harness) -> None:
    engine = await harness.engine(listening=False)
    router = await harness.router(engine, ready=False, max_in_flight_per_engine=1)
    for _ in range(3):
        assert (await router.ask(COMPLETIONS, completion())).status == 503
