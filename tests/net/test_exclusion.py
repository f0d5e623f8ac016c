"""Requests while engines are stalled, ejected or slow."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from router.core.events import FellBack, SpeedProbed
from router.core.fleet.leg_timer import LegTimer
from router.core.judge.member import Member
from router.core.judge.tuning import REPEATED_FAILURES
from router.core.judge.verdict import CLEAR, Exclusion, Stall
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.values import Endpoint, Role
from router.net.background.speed_prober import _Sink
from router.net.engine.answer import AnswerHead
from tests.net.client import Answer
from tests.net.engine import Call, ScriptedEngine, json_reply, sse_head
from tests.net.faults import Fault, cuts_a_unary_answer, sends_an_empty_answer
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import (
    COMPLETIONS,
    DONE,
    STREAM,
    completion,
    error_in,
    event,
    prefilled,
    token,
)

OK = json_reply({"choices": [{"text": "ok"}], "usage": {"completion_tokens": 1}})
NEVER_PROBED: dict[str, Any] = {"speed_probe_interval": 0}


def stall(router: Running, engine: ScriptedEngine) -> None:
    """Let the fleet find that the engine has stopped, and the sweep come round."""
    member = router.router.fleet.member(router.endpoint(engine))
    member.verdict = replace(member.verdict, stall=Stall(time.monotonic()))
    member.speed.counts.is_stalled = True
    router.router.clients.idle_sweep._sweep()


async def test_a_request_without_a_byte_leaves_a_stalled_engine(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, **NEVER_PROBED)
    client = await router.send(COMPLETIONS, completion())
    call = await one.call()
    stall(router, one)
    (await other.call()).send(OK)
    assert (await client.answer()).status == 200
    await call.left()
    assert [f.reason for f in router.all(FellBack)] == ["stalled"]
    assert (await router.record()).outcome == "ok"


@pytest.mark.parametrize("word", ["on", "off"])
async def test_answer_names_engines_if_wanted(harness: Harness, word: str) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, engine_header=word, **NEVER_PROBED)
    client = await router.send(COMPLETIONS, completion())
    await one.call()
    stall(router, one)
    (await other.call()).send(OK)
    answer = await client.answer()
    named = [answer.values(b"x-pd-router-endpoint"), answer.values(b"x-pd-router-left")]
    assert named == ([[other.url.encode()], [one.url.encode()]] if word == "on" else [[], []])


async def test_moved_stream_names_the_engine_in_a_comment(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, engine_header="on", **NEVER_PROBED)
    client = await router.send(COMPLETIONS, STREAM)
    call = await one.call()
    call.send(sse_head())
    answer = await client.begin()
    assert answer.values(b"x-pd-router-endpoint") == [one.url.encode()]
    stall(router, one)
    second = await other.call()
    second.stream_whole(token("b"), DONE)
    await answer.rest()
    comment = f": x-pd-router-endpoint {other.url} left {one.url}\n\n".encode()
    assert answer.body == comment + token("b") + DONE


async def test_an_engine_that_refuses_connections_is_not_waited_for(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, engine_header="on", **NEVER_PROBED)
    one.refuse()
    one.drop()
    client = await router.send(COMPLETIONS, completion())
    (await other.call()).send(OK)
    answer = await client.answer()
    assert answer.values(b"x-pd-router-endpoint") == [other.url.encode()]
    assert answer.values(b"x-pd-router-left") == []


async def test_stream_with_only_a_head_moves_to_another_engine(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, **NEVER_PROBED)
    client = await router.send(COMPLETIONS, STREAM)
    call = await one.call()
    call.send(sse_head())
    answer = await client.begin()
    stall(router, one)
    second = await other.call()
    second.stream_whole(token("b"), DONE)
    await answer.rest()
    assert (answer.status, answer.body) == (200, token("b") + DONE)
    await call.left()


async def test_second_failure_ends_the_stream_with_an_error(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, **NEVER_PROBED)
    client = await router.send(COMPLETIONS, STREAM)
    (await one.call()).send(sse_head())
    answer = await client.begin()
    stall(router, one)
    (await other.call()).send(json_reply({"error": {"message": "no"}}, 500))
    await answer.rest()
    assert answer.status == 200
    error = error_in(answer.body)
    assert (error["code"], error["message"]) == (500, "no")
    record = await router.record()
    assert (record.status, record.outcome, record.first_byte) == (200, "broken", None)


async def test_a_stream_that_has_begun_stays(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, **NEVER_PROBED)
    client = await router.send(COMPLETIONS, STREAM)
    call = await one.call()
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    stall(router, one)
    call.end(token("b"), DONE)
    await answer.rest()
    assert answer.body == token("a") + token("b") + DONE
    assert other.seen == 0


async def test_a_request_with_nowhere_to_go_waits(harness: Harness) -> None:
    engine, router = await harness.single(**NEVER_PROBED)
    client = await router.send(COMPLETIONS, completion())
    call = await engine.call()
    stall(router, engine)
    call.send(OK)
    assert (await client.answer()).status == 200
    assert engine.seen == 1


async def test_a_stalled_engine_gets_nothing_new_until_it_has_tokens(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, **NEVER_PROBED)
    client = await router.send(COMPLETIONS, STREAM)
    call = await one.call()
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    stall(router, one)
    other.answer_all(lambda second: second.send(OK))
    for _ in range(3):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert (one.seen, other.seen) == (1, 3)
    member = router.router.fleet.member(router.endpoint(one))
    call.events(token("b"))
    await answer.until(token("b"))
    await eventually(lambda: member.exclusion is not Exclusion.STALLED)
    call.end(DONE)
    await answer.rest()


async def test_engine_hung_before_start_stalls_at_first_request(harness: Harness) -> None:
    """vllm-project/vllm#36451: its core is dead, and /health answers 200."""
    hung, other = await harness.engine(), await harness.engine()
    hung.metrics = json_reply(
        b"vllm:num_requests_running 0.0\nvllm:generation_tokens_total 500000.0\n"
    )
    settings = {**NEVER_PROBED, "engine_stats_interval": 0.01, "stall_timeout": 0.3}
    router = await harness.router(hung, other, **settings)
    member = router.router.fleet.member(router.endpoint(hung))
    await eventually(lambda: member.speed.counts.is_warm)
    hung.answer_all(lambda call: call.send(sse_head()))
    other.answer_all(lambda call: call.stream_whole(token("b"), DONE))
    answers = [await router.ask(COMPLETIONS, STREAM) for _ in range(2)]
    assert [answer.body for answer in answers] == [token("b") + DONE] * 2
    assert [f.reason for f in router.all(FellBack)] == ["stalled"]
    assert member.exclusion is Exclusion.STALLED


async def test_an_engine_that_answers_with_errors_is_ejected(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, outlier_consecutive_failures=3, **NEVER_PROBED)
    one.answer_all(lambda call: call.send(json_reply({"error": {"message": "no"}}, 500)))
    other.answer_all(lambda call: call.send(OK))
    for _ in range(12):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert one.seen == 3
    listed = (await (await router.client()).get("/endpoints")).json
    assert [entry["exclusion"] for entry in listed] == ["ejected", None]
    assert 25 < listed[0]["returns_in_seconds"] <= 30
    assert listed[0]["exclusion_seconds"] >= 0


@pytest.mark.parametrize("fault", [cuts_a_unary_answer, sends_an_empty_answer, None])
async def test_an_engine_that_answers_with_next_to_nothing_is_ejected(
    harness: Harness, fault: Fault | None
) -> None:
    """It is the fastest one, and would get nearly all requests."""
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, outlier_consecutive_failures=3, **NEVER_PROBED)
    if fault is None:
        one.answer_all(Call.stream_whole)
        other.answer_all(lambda call: call.stream_whole(token("ok"), DONE))
    else:
        fault(one)
        other.answer_all(lambda call: call.send(OK))
    for _ in range(12):
        answer = await router.ask(COMPLETIONS, completion(stream=fault is None))
        assert b'"text":"ok"' in answer.body
    assert one.seen == 3
    listed = (await (await router.client()).get("/endpoints")).json
    assert [entry["exclusion"] for entry in listed] == ["ejected", None]
    assert listed[0]["last_error"] == "it sent an answer that is empty or ends early"


async def test_two_engines_failing_in_turn_are_both_ejected(harness: Harness) -> None:
    bad, good = [[await harness.engine(), await harness.engine()] for _ in range(2)]
    router = await harness.router(*bad, *good, outlier_consecutive_failures=3, **NEVER_PROBED)
    for engine in bad:
        engine.answer_all(lambda call: call.send(json_reply({"error": {"message": "no"}}, 500)))
    for engine in good:
        engine.answer_all(lambda call: call.send(OK))
    fleet = router.router.fleet
    members = [fleet.member(router.endpoint(engine)) for engine in bad]
    while any(member.exclusion is not Exclusion.EJECTED for member in members):
        await router.ask(COMPLETIONS, completion())
    assert sum(engine.seen for engine in bad) <= 12
    assert (await router.ask(COMPLETIONS, completion())).status == 200


@pytest.mark.parametrize("has_retries", [False, True])
@pytest.mark.parametrize("is_event", [False, True])
@pytest.mark.parametrize("status", [500, 502])
async def test_a_decode_engine_that_fails_behind_prefills_is_ejected(
    harness: Harness, status: int, is_event: bool, has_retries: bool
) -> None:
    error = {"error": {"message": "EngineCore died", "code": status}}
    prefill, bad, good = await harness.engine(), await harness.engine(), await harness.engine()
    router = await harness.router(
        *(bad, good), prefill=(prefill,), outlier_consecutive_failures=3, **NEVER_PROBED
    )
    budget = router.router.handler.network.scheduler.retry_budget
    assert budget is not None
    if not has_retries:
        budget._balance = -1e6  # spent, and for long
    prefill.answer_all(lambda call: call.send(prefilled()))

    def fail(call: Call) -> None:
        if is_event:
            call.stream_whole(event(error), DONE)
        else:
            call.send(json_reply(error, status))

    def answer(call: Call) -> None:
        call.stream_whole(token("a"), DONE)

    bad.answer_all(fail)
    good.answer_all(answer)
    for _ in range(12):
        await router.ask(COMPLETIONS, STREAM)
    assert router.router.fleet.member(router.endpoint(bad)).exclusion is Exclusion.EJECTED
    assert bad.seen == 3


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_kv_failures_everywhere_eject_no_engine(harness: Harness, number: int) -> None:
    prefill, *decodes = [await harness.engine() for _ in range(1 + number)]
    router = await harness.router(
        *decodes, prefill=(prefill,), outlier_consecutive_failures=3, **NEVER_PROBED
    )
    prefill.answer_all(lambda call: call.send(prefilled()))

    def answer(call: Call) -> None:
        if call.json.get("kv_transfer_params"):
            call.send(json_reply({"error": {"message": "load failed", "code": 500}}, 500))
        else:
            call.stream_whole(token("a"), DONE)

    for each in decodes:
        each.answer_all(answer)
    for _ in range(30):
        assert (await router.ask(COMPLETIONS, STREAM)).body == token("a") + DONE
    assert all(member.exclusion is None for member in router.router.fleet)


async def test_a_clients_errors_eject_no_engine(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, outlier_consecutive_failures=1)
    one.answer_all(lambda call: call.send(json_reply({"error": {"message": "bad"}}, 400)))
    other.answer_all(lambda call: call.send(OK))
    statuses = [(await router.ask(COMPLETIONS, completion())).status for _ in range(6)]
    assert statuses == [400, 200] * 3


async def test_a_slow_engine_gets_probes_instead_of_user_requests(harness: Harness) -> None:
    slow, quick = await harness.engine(), await harness.engine()
    router = await harness.router(
        slow,
        quick,
        load_balancing_strategy="shortest_expected_delay",
        speed_probe_interval=0.01,
        engine_api_key="key",
    )
    fleet = router.router.fleet
    for engine, seconds in ((slow, 0.16), (quick, 0.02)):
        speed = fleet.member(router.endpoint(engine)).speed
        speed.per_token, speed.was_reliable = seconds, True
    member = fleet.member(router.endpoint(slow))
    await eventually(lambda: member.exclusion is Exclusion.SLOW)
    probe = await slow.call()
    assert probe.values(b"authorization") == [b"Bearer key"]
    assert probe.json["max_tokens"] == 8
    assert probe.json["stream_options"]["include_usage"] is True
    assert (probe.json["model"], probe.json["stream"]) == ("m", True)
    quick.answer_all(lambda call: call.send(OK))
    for _ in range(3):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert quick.seen == 3
    await _tokens(probe)
    await eventually(lambda: member.exclusion is None or slow.waiting)
    while slow.waiting:
        await _tokens(await slow.call())
        await eventually(lambda: member.exclusion is None or slow.waiting)
    text = (await (await router.client()).get("/metrics")).body
    assert b'pd_router_speed_probes_total{endpoint="%b",outcome="ok",' % slow.url.encode() in text


async def test_a_probe_measures_speed_but_not_tokens_per_event(harness: Harness) -> None:
    """Its few tokens come in other events than those of users' streams."""
    engine = await harness.engine()
    router = await harness.router(
        engine, load_balancing_strategy="shortest_expected_delay", speed_probe_interval=0.01
    )
    member = router.router.fleet.member(router.endpoint(engine))
    member.speed.counts.calibration.learn(2000, 100, by_usage=False)
    member.verdict = replace(member.verdict, stall=Stall(time.monotonic()))  # so that it is probed
    call = await engine.call()
    usage = b'data: {"choices":[],"usage":{"completion_tokens":8}}\n\n'
    call.stream_whole(token("a"), token("bcdefgh"), usage)
    await eventually(lambda: member.speed.counts.counted.whole_tokens >= 7)
    assert member.speed.counts.counted.whole_tokens % 7 == 0
    assert member.speed.counts.counted.events == 0
    assert member.speed.counts.calibration.tokens_per_event == 20.0


async def test_a_probes_tokens_count_as_they_come(harness: Harness) -> None:
    """Else an engine of 0.1 s per token looks silent for most of a probe, hence slow."""
    engine, router = await harness.single(speed_probe_interval=0.01)
    member = router.router.fleet.member(router.endpoint(engine))
    member.verdict = replace(member.verdict, stall=Stall(time.monotonic()))  # so that it is probed
    call = await engine.call()
    call.stream(token("a"))
    await eventually(lambda: member.speed.counts.streams == 1)
    call.events(token("b"))
    await eventually(lambda: member.speed.counts.counted.whole_tokens == 1)
    call.end(b'data: {"choices":[],"usage":{"completion_tokens":8}}\n\n', DONE)
    await eventually(lambda: member.speed.counts.counted.whole_tokens == 7)


@pytest.mark.parametrize(
    "usage", [b"", b'data: {"choices":[],"usage":{"completion_tokens":8}}\n\n']
)
async def test_tokens_of_a_probe_that_waited_to_be_read_took_their_time(usage: bytes) -> None:
    """A router that is blocked reads all at once; that engine is not fast."""
    speed = SpeedEstimator()
    speed.tick(time.monotonic())
    leg = LegTimer(speed.counts, None, 0, time.monotonic() - 8.0, tracks_first_token=True)
    sink = _Sink(Endpoint("http://e", Role.DECODE), leg)
    sink.on_head(AnswerHead(200, []), None, has_body=True)
    sink.on_data(token("a") * 8 + usage + DONE, is_last=True)
    sink.on_end()
    leg.end(time.monotonic())
    speed.tick(time.monotonic())
    assert speed.per_token == pytest.approx(1.0, rel=0.2)


async def _probed_for_prompts(harness: Harness) -> tuple[Running, ScriptedEngine, Member]:
    """A prefill engine that has stalled, so that it gets long prompts as speed probes."""
    decode, prefill = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), speed_probe_interval=0.01)
    member = router.router.fleet.member(router.endpoint(prefill))
    member.verdict = replace(member.verdict, stall=Stall(time.monotonic()))
    return router, prefill, member


async def test_the_tokens_of_a_probes_prompt_come_from_usage(harness: Harness) -> None:
    _, engine, member = await _probed_for_prompts(harness)
    call = await engine.call()
    assert len(call.json["prompt"].split()) == 2048
    assert call.json["stream_options"]["continuous_usage_stats"] is True
    member.speed.counts.prompt_overhead = 0
    usage = {"prompt_tokens": 1024, "completion_tokens": 1, "total_tokens": 1025}
    call.stream_whole(token("a", usage=usage), DONE)
    await eventually(lambda: member.speed.counts._prompt_work == 1024)


async def test_speed_probes_that_are_refused_are_shown_with_the_engines_message(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    router, engine, member = await _probed_for_prompts(harness)
    said = {"error": {"message": "Token id 7 is out of vocabulary: input_value='ours'"}}
    engine.answer_all(lambda call: call.send(json_reply(said, 400)))
    await eventually(lambda: member.speed_probes_fail)
    client = await router.client()
    endpoints = (await client.get("/endpoints")).json
    entry = next(each for each in endpoints if each["url"] == engine.url)
    why = "it answered a speed probe with 400: Token id 7 is out of vocabulary: ..."
    assert (entry["last_error"], entry["speed_probes_fail"]) == (why, True)
    await eventually(lambda: f"the speed probes of prefill {engine.url} fail" in caplog.text)
    assert [e.outcome for e in router.all(SpeedProbed)][:REPEATED_FAILURES] == ["failed"] * 5
    text = (await client.get("/metrics")).body
    assert (
        b'pd_router_speed_probes_total{endpoint="%b",outcome="failed",' % engine.url.encode()
        in text
    )
    member.verdict = replace(member.verdict, stall=CLEAR)
    await eventually(lambda: not member.failed_speed_probes)  # none is needed any more


async def _tokens(call: Call) -> None:
    """An answer of 8 tokens, a millisecond apart."""
    call.stream(token("a"))
    for _ in range(7):
        await asyncio.sleep(0.001)
        call.events(token("a"))
    call.end(DONE)


async def test_a_prefill_leaves_a_stalled_engine_for_another(harness: Harness) -> None:
    one, other, decode = await harness.engine(), await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(one, other), **NEVER_PROBED)
    client = await router.send(COMPLETIONS, completion())
    call = await one.call()
    stall(router, one)
    await call.left()
    (await other.call()).send(prefilled())
    (await decode.call()).send(OK)
    assert (await client.answer()).status == 200
    assert [(f.leg, f.reason) for f in router.all(FellBack)] == [(Role.PREFILL, "stalled")]


@pytest.mark.parametrize("is_one_read", [True, False])
async def test_an_engine_reveals_its_tokens_per_event(harness: Harness, is_one_read: bool) -> None:
    """--stream-interval 4: a token, then four at a time; usage comes with the end or before."""
    engine, router, client, call = await harness.stream(**NEVER_PROBED)
    call.send(sse_head())
    answer = await client.begin()
    await _four_tokens_per_event(call, answer)
    if is_one_read:
        call.events(USAGE + DONE)
    else:
        call.events(USAGE)
        await answer.until(USAGE)
        call.events(DONE)
    call.end()
    await answer.rest()
    assert _tokens_per_event(router, engine) == 4


async def test_bytes_of_a_replaced_engine_count_for_no_engine(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, **NEVER_PROBED)
    client = await router.send(COMPLETIONS, STREAM)
    call = await one.call()
    call.send(sse_head())
    answer = await client.begin()
    for number in range(5):
        call.events(b": ping %d\n\n" % number)
        await answer.until(b": ping %d\n\n" % number)
    stall(router, one)
    second = await other.call()
    second.send(sse_head())
    await _four_tokens_per_event(second, answer)
    second.end(USAGE + DONE)
    await answer.rest()
    assert [_tokens_per_event(router, engine) for engine in (one, other)] == [1, 4]


USAGE = b'data: {"choices":[],"usage":{"completion_tokens":41}}\n\n'


async def _four_tokens_per_event(call: Call, answer: Answer) -> None:
    """41 tokens of an answer, each event in a read of its own: one, then four at a time."""
    for text in ("a", *(f"bcd{number}" for number in range(10))):
        call.events(token(text))
        await answer.until(token(text))


def _tokens_per_event(router: Running, engine: ScriptedEngine) -> float:
    """What the router has learned of an engine."""
    member = router.router.fleet.member(router.endpoint(engine))
    return member.speed.counts.calibration.tokens_per_event
