"""Probes and scrapes for any answers of engines."""

import asyncio
import logging
from typing import Any
from urllib.parse import parse_qs

import aiohttp
import pytest

from router.core.events import Probed, Scraped
from router.core.health import HealthSignal, State
from router.core.values import Endpoint, Gauges, Role
from router.core.wire.exposition import read
from router.web.engines_api import endpoints
from tests.core.fixtures import sample
from tests.net.client import SECONDS
from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, completion, token

PAGE = sample("metrics.txt")

OFTEN: dict[str, Any] = {"health_check_interval": 0.01, "engine_stats_interval": 0.01}


def _state(router: Running, engine: ScriptedEngine) -> State:
    return router.router.fleet.member(router.endpoint(engine)).health.state


async def _becomes(router: Running, engine: ScriptedEngine, state: State) -> None:
    await eventually(lambda: _state(router, engine) is state, lambda: router.router.events[-5:])


async def _tells(router: Running, engine: ScriptedEngine, version: str) -> None:
    member = router.router.fleet.member(router.endpoint(engine))
    await eventually(lambda: member.version == version, lambda: router.router.events[-5:])


async def test_an_engine_comes_up_goes_down_and_comes_back(harness: Harness) -> None:
    engine, router = await harness.single(**OFTEN)
    engine.refuse()
    engine.drop()
    await _becomes(router, engine, State.DOWN)
    assert (await router.ask(COMPLETIONS, completion())).status == 503
    await engine.listen()
    await _becomes(router, engine, State.UP)


async def test_the_version_of_an_engine_is_read_when_it_joins(harness: Harness) -> None:
    engine, router = await harness.single()
    assert router.router.fleet.member(router.endpoint(engine)).version == "0.32.0"
    router.router.events.clear()
    await router.router.engines.prober.probe_all()
    assert [probed.version for probed in router.all(Probed)] == [None]
    assert engine.probes.count(b"/version") == 1


async def test_an_upgrade_between_two_probes_is_detected_by_version(harness: Harness) -> None:
    engine, router = await harness.single(**OFTEN)
    engine.version = json_reply({"version": "0.33.0"})
    await _tells(router, engine, "0.33.0")
    assert _state(router, engine) is State.UP
    assert 2 * engine.probes.count(b"/version") < engine.probes.count(b"/health")


async def test_a_returning_engine_is_queried_until_it_reports_its_version(harness: Harness) -> None:
    engine, router = await harness.single(**OFTEN)
    engine.health = json_reply({}, 503)
    await _becomes(router, engine, State.DRAINING)
    engine.version = json_reply({}, 500)
    engine.health = json_reply({})
    await _becomes(router, engine, State.UP)
    assert router.router.fleet.member(router.endpoint(engine)).version is None
    engine.version = json_reply({"version": "0.33.0"})
    await _tells(router, engine, "0.33.0")


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"version": 1}'])
async def test_an_engine_without_a_version_is_up(harness: Harness, text: bytes) -> None:
    engine = await harness.engine()
    engine.version = json_reply(text)
    router = await harness.router(engine)
    assert router.router.fleet.member(router.endpoint(engine)).version is None


async def test_a_failed_probe_has_a_remedy(harness: Harness) -> None:
    wrong, dead = await harness.engine(), await harness.engine(listening=False)
    wrong.health = wrong.models = json_reply({}, 404)
    router = await harness.router(wrong, dead, ready=False)
    errors = {probed.endpoint.url: probed.error for probed in router.all(Probed)}
    assert errors == {
        wrong.url: "/v1/models answers 404: is this URL a vLLM server's base?",
        dead.url: "nothing listens there: check host and port; vLLM listens once its model is "
        "loaded",
    }


async def test_an_up_engine_that_refuses_is_reported_as_crashed(harness: Harness) -> None:
    engine, router = await harness.single(**OFTEN)
    engine.refuse()
    engine.drop()
    await _becomes(router, engine, State.DOWN)
    assert router.router.fleet.member(router.endpoint(engine)).last_error == (
        "it crashed or was stopped: look at its log"
    )


async def test_a_router_is_not_used_as_an_engine_and_is_named_as_one(harness: Harness) -> None:
    engine, behind = await harness.single()
    url = f"http://127.0.0.1:{behind.port}"
    router = await harness.router(engine, ready=False, unchecked={"decode": [url]})
    [probed] = router.all(Probed)
    assert probed.error == "this is a pd-router, not an engine: name the engines behind it"
    answer = await router.ask(COMPLETIONS, completion())
    assert answer.status == 503
    assert "1 of them no engine but a pd-router" in answer.error["message"]


async def test_an_engine_that_is_unwilling_drains(harness: Harness) -> None:
    engine, router = await harness.single(**OFTEN)
    engine.health = json_reply({}, 503)
    await _becomes(router, engine, State.DRAINING)
    engine.health = json_reply({})
    await _becomes(router, engine, State.UP)


@pytest.mark.parametrize("status", [302, 405, 500])
async def test_invalid_health_answers_are_failures(harness: Harness, status: int) -> None:
    engine, router = await harness.single(**OFTEN)
    lines = [b"location: /elsewhere"] if status == 302 else []
    engine.health = json_reply({}, status, *lines)
    await _becomes(router, engine, State.DOWN)
    paths = {b"/health", b"/v1/models", b"/version", b"/metrics", b"/is_sleeping"}
    assert set(engine.probes) <= paths


async def test_an_engine_that_does_not_answer_in_time_is_down(harness: Harness) -> None:
    settings = OFTEN | {"health_check_timeout": 0.5, "speed_probe_interval": 0}
    engine, router = await harness.single(**settings)
    engine.probed = lambda call: True  # type: ignore[method-assign]
    await _becomes(router, engine, State.DOWN)


class SilentHealth:
    """An engine that does not answer /health, and how many probes have timed out since."""

    def __init__(self, router: Running, engine: ScriptedEngine) -> None:
        self._router, self._endpoint = router, router.endpoint(engine)
        self._answer, self._before = engine.probed, len(router.router.events)
        engine.probed = self._probed  # type: ignore[method-assign]

    def _probed(self, call: Call) -> bool:
        return call.target == b"/health" or self._answer(call)

    @property
    def seen(self) -> int:
        return sum(
            event.endpoint == self._endpoint and event.signal is HealthSignal.TIMED_OUT
            for event in self._router.router.events[self._before :]
            if isinstance(event, Probed)
        )


IMPATIENT = {**OFTEN, "health_check_timeout": 0.3, "speed_probe_interval": 0}


async def test_engine_with_tokens_is_up_despite_silent_health(harness: Harness) -> None:
    """vllm-project/vllm#38157: /health takes 6 to 40 s while the engine is busy."""
    engine, router, _, call = await harness.stream(**IMPATIENT)
    call.stream(token("a"))
    silence, states = SilentHealth(router, engine), set()
    while silence.seen < 8:
        call.events(token("a"))
        states.add(_state(router, engine))
        await asyncio.sleep(0.05)
    assert states == {State.UP}
    assert (await (await router.client()).get("/ready")).status == 200
    engine.answer_all(lambda other: other.send(json_reply({})))
    assert (await router.ask(COMPLETIONS, completion())).status == 200
    call.end(DONE)


async def test_where_all_engines_are_silent_all_are_used_and_operators_see_it(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "router.web.admin")
    engines = [await harness.engine(), await harness.engine()]
    router = await harness.router(*engines, **IMPATIENT)
    answers = [engine.probed for engine in engines]
    for engine in engines:
        SilentHealth(router, engine)
        engine.answer_all(lambda call: call.send(json_reply({})))
    fleet, client = router.router.fleet, await router.client()
    await eventually(lambda: fleet.is_panic(Role.DECODE))
    assert (await client.get("/ready")).status == 200
    assert (await client.get("/v1/models")).json["data"] == [{"id": "m", "object": "model"}]
    listed = (await client.get("/endpoints")).json
    assert [(e["state"], e["is_panic"]) for e in listed] == [("down", True)] * 2
    assert all(e["cause"].endswith("only while no other engine can") for e in listed)
    text = (await client.get("/metrics")).body
    assert b'pd_router_pool_panic{role="decode"} 1.0' in text
    assert b'pd_router_pool_usable_engines{role="decode"} 2.0' in text
    assert (await router.ask(COMPLETIONS, completion())).status == 200
    # The engine that answered is back, and the other one as soon as it answers /health.
    await eventually(lambda: not fleet.is_panic(Role.DECODE))
    for engine, answer in zip(engines, answers, strict=True):
        engine.probed = answer  # type: ignore[method-assign]
    await router.usable(*engines)
    panics = [line for line in caplog.messages if "panic" in line]
    assert panics == [
        "panic: too few decode engines are up and in order, so others get requests too; "
        "0 of 2 up: 2 down",
        "the panic of the decode engines is over; 1 of 2 up: 1 down",
    ]


async def test_a_probe_token_keeps_an_idle_engine_with_silent_health_up(harness: Harness) -> None:
    """So a router that starts in front of busy engines can use them."""
    engine = await harness.engine()
    engine.answer_all(lambda call: call.stream_whole(token("a"), DONE))
    engine.probed = lambda call: call.target == b"/health"  # type: ignore[method-assign]
    settings = {**IMPATIENT, "speed_probe_interval": 0.1}
    router = await harness.router(engine, **settings)  # waits until it is up
    assert (await router.ask(COMPLETIONS, completion())).status == 200


MODELS: list[tuple[Any, list[str]]] = [
    ({"data": [{"id": "a"}, {"id": "b", "parent": "a"}]}, ["a", "b"]),
    ({"data": []}, []),
    ({"data": [1, None, {"id": 5}, {}, {"id": "a"}]}, ["a"]),
]


@pytest.mark.parametrize(("listed", "models"), MODELS)
async def test_the_models_of_an_engine_are_those_it_lists(
    harness: Harness, listed: Any, models: list[str]
) -> None:
    engine = await harness.engine()
    engine.models = json_reply(listed)
    router = await harness.router(engine)
    assert sorted(router.router.fleet.models.cards()) == models
    answer = await (await router.client()).get("/v1/models")
    assert [card["id"] for card in answer.json["data"]] == models


NO_MODELS = [b"", b"[]", b"null", b'{"data":{}}', b'{"data":1}', b"<html>", b"\xff\xfe", b'{"x":1}']


@pytest.mark.parametrize("text", NO_MODELS)
async def test_an_engine_without_listed_models_may_get_any_model(
    harness: Harness, text: bytes
) -> None:
    engine = await harness.engine()
    engine.models = json_reply(text)
    router = await harness.router(engine)
    engine.answer_all(lambda call: call.send(json_reply({})))
    assert (await router.ask(COMPLETIONS, completion())).status == 200


async def test_an_engine_that_guards_its_models_is_up(harness: Harness) -> None:
    engine = await harness.engine()
    engine.models = json_reply({"error": "Unauthorized"}, 401)
    router = await harness.router(engine)
    assert router.all(Probed)[-1].cards is None
    assert _state(router, engine) is State.UP


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\x00\xfe",
        b"vllm:num_requests_running NaN\n",
        b"vllm:num_requests_running 1e400\n",
        b"vllm:num_requests_running -3\n",
        b"<html>",
        b"vllm:num_requests_running{" * 1000,
    ],
)
async def test_no_metrics_text_ends_the_scraping(harness: Harness, text: bytes) -> None:
    engine = await harness.engine()
    engine.metrics = json_reply(text)
    router = await harness.router(engine, **OFTEN)
    await eventually(lambda: len(router.all(Scraped)) > 2)
    assert all(not s.gauges or not s.gauges.running for s in router.all(Scraped))


@pytest.mark.parametrize(
    ("status", "why"),
    [(401, "/metrics wants a key: give it by --engine-api-key"), (400, "/metrics answers 400")],
)
async def test_operators_see_why_gauges_cannot_be_read(
    harness: Harness, status: int, why: str
) -> None:
    engine = await harness.engine()
    engine.metrics = json_reply(b"{}", status)
    router = await harness.router(engine, **OFTEN)
    [member] = router.router.fleet
    await eventually(lambda: member.scrapes.error is not None)
    [entry] = endpoints(router.router.fleet)
    assert entry["gauges_age_seconds"] is None
    assert entry["gauges_error"].startswith(why)
    engine.metrics = json_reply(b"vllm:num_requests_running 1.0\n")
    await eventually(lambda: member.scrapes.error is None)
    assert endpoints(router.router.fleet)[0]["gauges_age_seconds"] >= 0


async def test_gauges_are_read_and_age(harness: Harness) -> None:
    engine = await harness.engine()
    engine.metrics = json_reply(
        b"vllm:num_requests_running 3.0\nvllm:num_requests_waiting 2.0\n"
        b"vllm:kv_cache_usage_perc 0.5\n"
    )
    router = await harness.router(engine, **OFTEN)
    await eventually(lambda: router.all(Scraped))
    gauges = router.all(Scraped)[-1].gauges
    assert gauges is not None
    assert (gauges.running, gauges.waiting, gauges.kv_usage) == (3, 2, 0.5)


async def test_a_scrape_selects_the_series_that_it_reads(harness: Harness) -> None:
    engine = await harness.engine()
    asked = _scrapes(engine, None)
    router = await harness.router(engine, **OFTEN)
    await eventually(lambda: len(router.all(Scraped)) > 1)
    path, query = asked[0].decode().split("?")
    assert path == "/metrics/"
    names = parse_qs(query)["name[]"]
    assert "vllm:generation_tokens_total" in names
    # All that is read of a recorded page, and little else.
    kept = [line for line in PAGE.split(b"\n") if line.decode().partition("{")[0] in names]
    assert read(b"\n".join(kept)) == read(PAGE)
    assert len(kept) < 20
    assert set(asked) == {asked[0]}


@pytest.mark.parametrize("status", [200, 307, 404])
async def test_an_engine_without_series_selection_is_asked_for_the_whole_page(
    harness: Harness, status: int
) -> None:
    """200: another page, of a server that is not vLLM's."""
    engine = await harness.engine()
    asked = _scrapes(engine, json_reply(b"<html>", status, b"location: /metrics"))
    router = await harness.router(engine, **OFTEN)
    await eventually(lambda: len(router.all(Scraped)) > 2)
    assert {scraped.gauges for scraped in router.all(Scraped)} == {Gauges(running=0)}
    assert asked[0].startswith(b"/metrics/?")
    assert set(asked[1:]) == {b"/metrics"}


def _scrapes(engine: ScriptedEngine, selected: bytes | None) -> list[bytes]:
    """The targets of scrapes from now on; `selected` answers those that select."""
    asked: list[bytes] = []
    answer = engine.probed

    def probed(call: Call) -> bool:
        if call.target.startswith(b"/metrics"):
            asked.append(call.target)
            if selected is not None and b"?" in call.target:
                call.send(selected)
                return True
        return answer(call)

    engine.probed = probed  # type: ignore[method-assign]
    return asked


async def test_an_endless_answer_is_not_read_to_its_end(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.net.background.prober.MAX_ANSWER_BYTES", 10_000)
    engine, router = await harness.single(**OFTEN)
    engine.metrics = json_reply(b"x" * 20_000)
    await eventually(lambda: router.all(Scraped) and router.all(Scraped)[-1].gauges is None)
    assert _state(router, engine) is State.UP


async def test_a_page_grows_without_limit_by_series_of_adapters(harness: Harness) -> None:
    """15,000 distinct lists of adapters, each of which vLLM keeps: 5 MB."""
    line = b'vllm:lora_requests_info{max_lora="1",running_lora_adapters="%b"} 17644%05d.5\n'
    series = (line % (b"a" * 250 + b",t%d" % number, number) for number in range(15_000))
    engine = await harness.engine()
    engine.metrics = json_reply(PAGE + b"".join(series) + b"vllm:num_preemptions_total 7.0\n")
    router = await harness.router(engine, **OFTEN)
    await eventually(lambda: router.all(Scraped))
    gauges = router.all(Scraped)[0].gauges
    assert gauges is not None
    assert (gauges.cache_tokens, gauges.preemptions) == (32_768, 7)
    assert (gauges.adapters, gauges.adapters_are_full) == (("a" * 250,), True)


async def test_requests_of_ours_are_not_taken_for_those_of_others(harness: Harness) -> None:
    engine = await harness.engine()
    engine.metrics = json_reply(b"vllm:num_requests_running 1.0\n")
    router = await harness.router(engine, **OFTEN)
    task = asyncio.ensure_future(router.ask(COMPLETIONS, completion()))
    call: Call = await engine.call()
    before = len(router.all(Scraped))
    await eventually(lambda: len(router.all(Scraped)) > before + 2)
    assert router.all(Scraped)[-1].own == 1
    assert router.router.fleet.member(router.endpoint(engine)).other_requests == 0
    call.send(json_reply({}))
    assert (await task).status == 200


async def test_rank_leaving_during_a_scrape_leaves_nothing(harness: Harness) -> None:
    engine = await harness.engine()
    running = [b'vllm:num_requests_running{engine="%d"} 0.0\n' % rank for rank in range(3)]
    engine.metrics = json_reply(b"".join(running))
    router = await harness.router(engine, ready=False, **OFTEN)
    ranks = [Endpoint(f"{engine.url}#{rank}", Role.DECODE) for rank in range(3)]
    fleet, answer = router.router.fleet, engine.probed
    await eventually(lambda: [member.endpoint for member in fleet] == ranks)
    await eventually(lambda: all(member.health.is_up for member in fleet))
    scrapes: list[Call] = []

    def holds_scrapes(call: Call) -> bool:
        if call.target.startswith(b"/metrics"):
            scrapes.append(call)
            return True
        return answer(call)

    engine.probed = holds_scrapes  # type: ignore[method-assign]
    await eventually(lambda: scrapes)
    before = len(router.all(Scraped))
    router.router.sync.on_ranks(engine.url, (0, 1))
    await eventually(lambda: not fleet.knows(ranks[2]))
    scrapes[0].send(json_reply(b"".join(running[:2])))
    await eventually(lambda: len(router.all(Scraped)) > before)
    assert [scraped.endpoint for scraped in router.all(Scraped)[before:]] == ranks[:2]
    assert list(fleet.ledger._loads) == ranks[:2]


async def test_slow_engines_delay_nobodys_probes(harness: Harness) -> None:
    slow, quick = await harness.engine(), await harness.engine()
    router = await harness.router(quick, slow, **OFTEN, health_check_timeout=3600)
    asked: list[Call] = []

    def keeps_silent(call: Call) -> bool:
        asked.append(call)
        return True

    slow.probed = keeps_silent  # type: ignore[method-assign]
    await eventually(lambda: len(asked) == 2)  # a probe and a scrape
    router.router.events.clear()
    await eventually(lambda: len(router.all(Probed)) > 5)
    assert {p.endpoint for p in router.all(Probed)} == {router.endpoint(quick)}
    assert {p.signal for p in router.all(Probed)} == {HealthSignal.OK}


async def test_engines_are_known_before_the_first_client_is_let_in(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "router.web.admin")
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), ready=False)
    for engine in (prefill, decode):  # at once, without waiting for anything
        assert _state(router, engine) is State.UP
    assert caplog.messages == [
        f"prefill {prefill.url} is up; 1 of 1 prefill engines up",
        f"decode {decode.url} is up; 1 of 1 decode engines up",
    ]


async def test_silent_engines_delay_the_start_by_one_probe(harness: Harness) -> None:
    dead, good = await harness.engine(), await harness.engine()
    router = await harness.router(good, dead, health_check_timeout=2)
    prober = router.router.engines.prober
    prober._timeout = aiohttp.ClientTimeout(total=None)  # only the look's own limit is left
    dead.probed = lambda call: True  # type: ignore[method-assign]
    router.router.events.clear()
    async with asyncio.timeout(SECONDS):
        await prober.probe_all()
    assert [p.endpoint for p in router.all(Probed)] == [router.endpoint(good)]
