"""Engines that are not vLLM, and lack some of its routes."""

from typing import Any

import pytest

from router.core.events import Scraped
from router.core.health import State
from router.web.engines_api import endpoints
from tests.core.wire.test_exposition import LLAMACPP, SGLANG, TRTLLM
from tests.net.engine import Call, Reply, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, completion, token

NOT_FOUND = json_reply({"detail": "Not Found"}, 404)
NO_PAGE = "neither /metrics nor /prometheus/metrics has a gauge of running requests"
OFTEN: dict[str, Any] = {"health_check_interval": 0.01, "engine_stats_interval": 0.01}


async def _served(router: Running, engine: ScriptedEngine) -> None:
    engine.answer_all(lambda call: call.stream_whole(token("Hi"), DONE))
    answer = await router.ask(COMPLETIONS, completion(stream=True))
    assert answer.status == 200
    assert b"Hi" in answer.body


def _asked(engine: ScriptedEngine) -> list[bytes]:
    """The targets of scrapes from now on. Only vLLM selects series."""
    asked: list[bytes] = []
    answer = engine.probed

    def probed(call: Call) -> bool:
        if b"metrics" in call.target:
            asked.append(call.target)
        if b"?" in call.target:
            call.send(NOT_FOUND)
            return True
        return answer(call)

    engine.probed = probed  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize(
    ("metrics", "prometheus", "loads", "path"),
    [
        (json_reply(SGLANG), NOT_FOUND, (162, 2826), b"/metrics"),
        (json_reply(LLAMACPP), NOT_FOUND, (4, 46), b"/metrics"),
        (
            json_reply([{"numActiveRequests": 3}]),
            json_reply(TRTLLM),
            (3, 1),
            b"/prometheus/metrics",
        ),
    ],
    ids=["SGLang", "llama.cpp", "TensorRT-LLM"],
)
async def test_gauges_are_found_on_the_page_that_has_them(
    harness: Harness, metrics: Reply, prometheus: Reply, loads: tuple[int, int], path: bytes
) -> None:
    """TensorRT-LLM's /metrics is a queue, which is left to its other readers."""
    engine = await harness.engine()
    engine.version = NOT_FOUND
    engine.metrics, engine.prometheus = metrics, prometheus
    asked = _asked(engine)
    router = await harness.router(engine, **OFTEN)
    await eventually(lambda: len(router.all(Scraped)) > 2)
    gauges = router.all(Scraped)[-1].gauges
    assert gauges is not None
    assert (gauges.running, gauges.waiting) == loads
    assert endpoints(router.router.fleet)[0]["gauges_error"] is None
    assert asked[0].startswith(b"/metrics/?")
    assert asked[-2:] == [path, path]
    assert (b"/metrics" in asked) is (path == b"/metrics")
    await _served(router, engine)


@pytest.mark.parametrize(
    "metrics",
    [NOT_FOUND, json_reply(b"<html>"), json_reply({}, 501)],
    ids=["absent", "a page of another kind", "switched off"],
)
async def test_a_clouds_endpoint_has_models_and_nothing_else(
    harness: Harness, metrics: Reply
) -> None:
    engine = await harness.engine()
    engine.health = engine.version = NOT_FOUND
    engine.metrics = metrics
    router = await harness.router(engine, **OFTEN)
    [member] = router.router.fleet
    await eventually(lambda: member.scrapes.error is not None)
    assert member.health.state is State.UP
    [entry] = endpoints(router.router.fleet)
    assert entry["version"] is None
    assert entry["gauges_error"].startswith(NO_PAGE)
    await _served(router, engine)
    engine.models = json_reply({}, 500)
    await eventually(lambda: member.health.state is State.DOWN)
    assert member.last_error == "/v1/models answers 500: is this URL a vLLM server's base?"


async def test_a_page_without_models_is_no_engine(harness: Harness) -> None:
    engine = await harness.engine()
    engine.health, engine.models = NOT_FOUND, json_reply(b"<html>")
    router = await harness.router(engine, ready=False)
    [member] = router.router.fleet
    assert member.last_error == (
        "/health answers 404 and /v1/models lists no models: is this URL an engine's base?"
    )


async def test_a_route_that_an_engine_does_not_have_is_asked_for_once(harness: Harness) -> None:
    engine = await harness.engine()
    engine.version = NOT_FOUND
    router = await harness.router(engine, **OFTEN)
    [member] = router.router.fleet
    await eventually(lambda: engine.probes.count(b"/health") > 9)
    assert engine.probes.count(b"/version") == engine.probes.count(b"/is_sleeping") == 1
    engine.health, engine.version = json_reply({}, 503), json_reply({"version": "0.33.0"})
    await eventually(lambda: member.health.state is State.DRAINING)
    engine.health = json_reply({})
    await eventually(lambda: member.version == "0.33.0")
