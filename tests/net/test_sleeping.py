"""Engines that their operator puts to sleep, over real sockets."""

import logging
from typing import Any

import aiohttp
import pytest

from router.core.health import State
from router.simulator import EngineConfig, serve_engine
from tests.net.engine import ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, completion
from tests.simulator.talk import ask

OFTEN: dict[str, Any] = {"health_check_interval": 0.01, "engine_stats_interval": 0.01}
AWAKE = b'vllm:num_requests_running 0.0\nvllm:engine_sleep_state{sleep_state="awake"} %d\n'


def _sleeps(engine: ScriptedEngine, *, by_route: bool | None, by_gauge: bool) -> None:
    engine.is_sleeping = json_reply({"is_sleeping": by_route}, 404 if by_route is None else 200)
    engine.metrics = json_reply(AWAKE % (not by_gauge))


async def _becomes(router: Running, engine: ScriptedEngine, state: State) -> None:
    member = router.router.fleet.member(router.endpoint(engine))
    await eventually(lambda: member.health.state is state, lambda: router.router.events[-5:])


@pytest.mark.parametrize(("by_route", "by_gauge"), [(True, True), (True, False), (None, True)])
async def test_a_pool_that_sleeps_refuses_requests_and_says_why(
    harness: Harness, by_route: bool | None, by_gauge: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """vllm-project/production-stack#391. A paused engine shows it by the route alone, one without
    vLLM's development mode by the gauge alone."""
    caplog.set_level(logging.INFO, "router.web.admin")
    engine = await harness.engine()
    _sleeps(engine, by_route=by_route and False, by_gauge=False)
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine, **OFTEN)
    client = await router.client()
    _sleeps(engine, by_route=by_route, by_gauge=by_gauge)
    await _becomes(router, engine, State.SLEEPING)
    answer = await router.ask(COMPLETIONS, completion())
    assert (answer.status, answer.values(b"retry-after")) == (503, [b"1"])
    text = "No decode engine can take this request now: 0 of 1 up: 1 sleeping."
    assert answer.error["message"] == text
    [entry] = (await client.get("/endpoints")).json
    assert (entry["state"], entry["exclusion"]) == ("sleeping", None)
    assert entry["cause"] == "it sleeps or is paused, until its operator wakes it up"
    metrics = (await client.get("/metrics")).body
    assert b'state="sleeping"} 1.0' in metrics
    assert b'pd_router_pool_panic{role="decode"} 0.0' in metrics
    assert (await client.get("/ready")).status == 503
    _sleeps(engine, by_route=by_route and False, by_gauge=False)
    await _becomes(router, engine, State.UP)
    assert (await router.ask(COMPLETIONS, completion())).status == 200
    lines = [r for r in caplog.records if r.name == "router.web.admin"]
    assert {r.levelno for r in lines} == {logging.INFO}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"is_sleeping": 1}', b'{"is_sleeping": "true"}'])
async def test_an_odd_answer_about_sleep_is_none(harness: Harness, body: bytes) -> None:
    engine = await harness.engine()
    engine.is_sleeping = json_reply(body)
    router = await harness.router(engine, **OFTEN)
    await eventually(lambda: engine.probes.count(b"/health") > 3)
    assert engine.probes.count(b"/is_sleeping") == 1
    await _becomes(router, engine, State.UP)


async def test_an_engine_without_the_route_is_asked_again_only_after_a_failed_probe(
    harness: Harness,
) -> None:
    engine, router = await harness.single(**OFTEN)
    await eventually(lambda: engine.probes.count(b"/health") > 5)
    assert engine.probes.count(b"/is_sleeping") == 1
    engine.health = json_reply({}, 503)
    await _becomes(router, engine, State.DRAINING)
    engine.health = json_reply({})
    await _becomes(router, engine, State.UP)
    assert engine.probes.count(b"/is_sleeping") == 2


async def test_a_sleeping_engine_is_probed_often_and_back_at_once(harness: Harness) -> None:
    """The intervals of engines that are awake are an hour here."""
    async with serve_engine(EngineConfig()) as engine, aiohttp.ClientSession() as client:
        await ask(client, engine, "/sleep")
        router = await harness.router(ready=False, unchecked={"decode": [engine.url]})
        [member] = router.router.fleet
        await eventually(lambda: member.health.state is State.SLEEPING)
        assert (await router.ask(COMPLETIONS, completion(model="sim"))).status == 503
        await ask(client, engine, "/wake_up")
        await eventually(lambda: member.health.state is State.UP)
        assert (await router.ask(COMPLETIONS, completion(model="sim"))).status == 200
