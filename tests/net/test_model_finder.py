"""Models that engines have begun to serve since their last probe: the first request finds them."""

import asyncio
from typing import Any

import pytest

from router.core.events import Probed
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.health import HealthSignal, HealthThresholds
from router.core.judge.member import Member
from router.net.background.model_finder import SECONDS_BETWEEN, ModelFinder
from tests.core.fixtures import D0, D1, P0
from tests.net.engine import Call, json_reply
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, completion

NEVER: dict[str, Any] = {"health_check_interval": 3600.0}


def answer(call: Call) -> None:
    """A whole answer."""
    call.send(json_reply({"model": call.json["model"], "choices": [{"text": "ok"}]}))


async def test_an_adapter_that_was_just_loaded_is_found(harness: Harness) -> None:
    engines = [await harness.engine() for _ in range(2)]
    for engine in engines:
        engine.answer_all(answer)
    router = await harness.router(*engines, **NEVER)
    await router.usable(*engines)
    engines[1].serve_model("m", "sql")
    answered = await router.ask(COMPLETIONS, completion("hi", model="sql"))
    assert (answered.status, answered.json["model"]) == (200, "sql")
    record = await router.record()
    assert record.decode == router.endpoint(engines[1])


async def test_a_model_that_no_engine_has_is_refused(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, **NEVER)
    await router.usable(engine)
    known = len(router.all(Probed))
    wrong = completion("hi", model="none")
    answers = await asyncio.gather(*(router.ask(COMPLETIONS, wrong) for _ in range(5)))
    assert {each.status for each in answers} == {404}
    assert answers[0].error["message"] == "The model `none` does not exist."
    assert 1 <= len(router.all(Probed)) - known <= 2


async def test_a_client_that_leaves_stops_waiting(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, **NEVER)
    await router.usable(engine)
    wrong = completion("hi", model="none")
    assert (await router.ask(COMPLETIONS, wrong)).status == 404
    client = await router.send(COMPLETIONS, wrong)  # it waits for the next round
    client.leave()
    records = await router.records(2)
    assert [each.outcome for each in records] == ["error", "client_left"]


class Engines:
    """A fleet, and which of its engines were asked, round by round."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.fleet = Fleet([P0, D0, D1], Ledger(), HealthThresholds(), stale_after=5.0)
        for endpoint in (P0, D0):
            self.fleet.observe(Probed(endpoint, HealthSignal.OK, ({"id": "m"},)), 0.0)
        self.asked: list[Member] = []
        self.hangs = hangs
        self.finder = ModelFinder(self.fleet, self._list_models)

    async def _list_models(self, member: Member) -> None:
        self.asked.append(member)
        if self.hangs:
            await asyncio.Event().wait()


async def test_requests_share_a_round_of_the_usable_engines() -> None:
    engines = Engines()
    await asyncio.gather(*(engines.finder.find() for _ in range(10)))
    assert {member.endpoint for member in engines.asked} == {P0, D0}
    assert len(engines.asked) == 2


async def test_rounds_are_a_second_apart() -> None:
    engines, clock = Engines(), asyncio.get_running_loop().time
    began = clock()
    for _ in range(2):
        await engines.finder.find()
    assert len(engines.asked) == 4
    assert clock() - began >= SECONDS_BETWEEN


async def test_an_engine_that_hangs_holds_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.net.background.model_finder.WAIT_SECONDS", 0.01)
    engines = Engines(hangs=True)
    while not engines.asked:  # on a busy machine the wait may be over before the round begins
        await asyncio.gather(*(engines.finder.find() for _ in range(3)))
    assert {member.endpoint for member in engines.asked} == {P0, D0}
