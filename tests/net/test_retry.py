"""What is tried again on another engine, and what never is."""

import math
import time
from collections.abc import Callable

import orjson
import pytest

from router.core.events import FellBack, LegAnswered, LegFailed
from router.core.policies import POLICIES
from router.core.retry import FULL_SECONDS
from router.core.values import FailureKind, Role
from tests.net.engine import Call, ScriptedEngine, chunk, json_reply, sse_head
from tests.net.faults import (
    BUSY,
    BUSY_FOR_LONG,
    Fault,
    breaks_off_a_unary_answer,
    closes_in_its_own_head,
    closes_new_connections,
    closes_unanswered,
    cuts_a_unary_answer,
    is_busy,
    is_no_http,
    refuses,
    resets_at_the_head,
    resets_new_connections,
    resets_unanswered,
    sends_an_empty_answer,
)
from tests.net.harness import Harness
from tests.net.payloads import (
    CHAT,
    COMPLETIONS,
    DONE,
    OK,
    RESPONSES,
    ROLE,
    STREAM,
    answer_remotely,
    completion,
    error_in,
    event,
    prefilled,
    token,
)

CREATED = event({"type": "response.created"})
DELTA = event({"type": "response.output_text.delta", "delta": "a"})


BEFORE_ANY_BYTE = {
    refuses: FailureKind.REFUSED,
    resets_new_connections: FailureKind.RESET,
    closes_new_connections: FailureKind.RESET,
    resets_unanswered: FailureKind.RESET,
    closes_unanswered: FailureKind.RESET,
    resets_at_the_head: FailureKind.RESET,
    closes_in_its_own_head: FailureKind.RESET,
    is_no_http: FailureKind.BROKEN,
    breaks_off_a_unary_answer: FailureKind.BROKEN,
    cuts_a_unary_answer: FailureKind.BROKEN,
    sends_an_empty_answer: FailureKind.BROKEN,
    is_busy: None,
}


@pytest.mark.parametrize(("fault", "kind"), BEFORE_ANY_BYTE.items())
async def test_a_failure_before_the_first_byte_moves_to_another_engine(
    harness: Harness, fault: Fault, kind: FailureKind | None
) -> None:
    bad, good = await harness.engine(), await harness.engine()
    router = await harness.router(bad, good)
    fault(bad)
    good.answer_all(lambda call: call.send(OK))
    for _ in range(4):
        answer = await router.ask(COMPLETIONS, completion())
        assert (answer.status, answer.json) == (200, {"choices": [{"text": "ok"}]})
    failures = router.all(LegFailed)
    assert {f.kind for f in failures} == ({kind} if kind else set())
    assert {f.endpoint for f in failures} <= {router.endpoint(bad)}
    moved = router.all(FellBack)
    assert moved
    assert {m.leg for m in moved} == {Role.DECODE}
    assert {m.reason for m in moved} == {kind or "busy"}


@pytest.mark.parametrize("fault", BEFORE_ANY_BYTE)
async def test_last_failure_reaches_the_client(harness: Harness, fault: Fault) -> None:
    engines = [await harness.engine() for _ in range(5)]
    router = await harness.router(*engines)
    for engine in engines:
        fault(engine)
    answer = await router.ask(COMPLETIONS, completion())
    assert answer.status == (503 if fault is is_busy else 502)
    assert answer.error["message"]
    assert len(router.all(FellBack)) == 2  # three engines are tried, never all


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_server_error_moves_to_another_engine(harness: Harness, status: int) -> None:
    bad, good = await harness.engine(), await harness.engine()
    router = await harness.router(bad, good)
    bad.answer_all(lambda call: call.send(json_reply({"error": "x"}, status)))
    good.answer_all(lambda call: call.send(OK))
    for _ in range(4):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    fleet = router.router.fleet
    assert bad.seen
    assert fleet.member(router.endpoint(bad)).outlier.streak == bad.seen
    assert fleet.member(router.endpoint(good)).outlier.streak == 0
    assert router.all(FellBack) == [FellBack(Role.DECODE, "status_5xx")] * bad.seen
    assert {record.outcome for record in await router.records(4)} == {"ok"}


@pytest.mark.parametrize(("retries", "asked"), [(0, 1), (1, 2)])
async def test_a_request_that_breaks_all_engines_meets_two_and_gets_the_last_ones_words(
    harness: Harness, retries: int, asked: int
) -> None:
    engines = [await harness.engine() for _ in range(4)]
    router = await harness.router(*engines, retries_on_5xx=retries, engine_header="on")
    for engine in engines:

        def script(call: Call, url: str = engine.url) -> None:
            call.send(json_reply({"error": {"message": f"{url} died"}}, 500))

        engine.answer_all(script)
    answer = await router.ask(COMPLETIONS, completion())
    assert sum(engine.seen for engine in engines) == asked
    (named,) = answer.values(b"x-pd-router-endpoint")
    assert (answer.status, answer.json["error"]["message"]) == (500, f"{named.decode()} died")
    left = b"".join(answer.values(b"x-pd-router-left"))
    assert {*left.split(), named} == {e.url.encode() for e in engines if e.seen}
    record = await router.record()
    assert record.error == f"the decode engine answered 500: {named.decode()} died"


async def test_server_error_is_the_answer_without_a_better_one(harness: Harness) -> None:
    bad, worse = await harness.engine(), await harness.engine()
    router = await harness.router(bad, worse)
    client = await router.send(COMPLETIONS, completion())
    (await bad.call()).send(json_reply({"error": {"message": "it died"}}, 500))
    (await worse.call()).reset()
    answer = await client.answer()
    assert (answer.status, answer.json) == (500, {"error": {"message": "it died"}})
    assert (await router.record()).decode == router.endpoint(bad)


@pytest.mark.parametrize("status", [429, 503])
async def test_full_engine_is_no_failing_engine(harness: Harness, status: int) -> None:
    full, other = await harness.engine(), await harness.engine()
    router = await harness.router(full, other, outlier_consecutive_failures=1)
    full.answer_all(lambda call: call.send(json_reply({"error": {"message": "full"}}, status)))
    other.answer_all(lambda call: call.send(json_reply({})))
    for _ in range(4):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert full.seen
    member = router.router.fleet.member(router.endpoint(full))
    assert member.exclusion is None
    assert not member.outlier.streak
    assert full.seen == len([a for a in router.all(LegAnswered) if a.status == status])


@pytest.mark.parametrize("strategy", POLICIES)
@pytest.mark.parametrize("role", Role)
async def test_a_full_engine_is_tried_at_times_and_no_request_fails(
    harness: Harness, strategy: str, role: Role
) -> None:
    full, other, decode = [await harness.engine() for _ in range(3)]
    is_prefill = role is Role.PREFILL
    router = await harness.router(
        *((decode,) if is_prefill else (full, other)),
        prefill=(full, other) if is_prefill else (),
        load_balancing_strategy=strategy,
        prefill_load_balancing_strategy=strategy,
    )
    budget = router.router.handler.network.scheduler.retry_budget
    assert budget is not None
    budget._balance = -1e6  # spent, and for long
    full.answer_all(lambda call: call.send(BUSY))
    other.answer_all(lambda call: call.send(prefilled()))
    decode.answer_all(lambda call: call.send(OK))
    began = time.monotonic()
    for _ in range(100):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert full.seen
    assert full.seen <= 1 + (time.monotonic() - began) / FULL_SECONDS
    assert other.seen == 100


async def test_the_client_learns_that_all_are_full_and_an_engine_with_room_is_found(
    harness: Harness,
) -> None:
    engines = [await harness.engine() for _ in range(2)]
    router = await harness.router(*engines)
    for engine in engines:
        engine.answer_all(lambda call: call.send(BUSY_FOR_LONG))
    for _ in range(3):
        answer = await router.ask(COMPLETIONS, completion())
        assert (answer.status, answer.values(b"retry-after")) == (503, [b"60"])
        assert answer.error["message"] == "full"
    for member in router.router.fleet:
        assert member.full_until != -math.inf
        member.full_until = math.inf  # however long this test takes
    listed = (await (await router.client()).get("/endpoints")).json
    assert [entry["is_full"] for entry in listed] == [True, True]
    engines[1].answer_all(lambda call: call.send(OK))
    for _ in range(20):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert not router.router.fleet.member(router.endpoint(engines[1])).is_full(time.monotonic())


async def test_a_503_that_no_engine_wrote_is_a_failure(harness: Harness) -> None:
    gone, other = await harness.engine(), await harness.engine()
    router = await harness.router(gone, other)
    gone.answer_all(lambda call: call.send(json_reply("upstream connect error", 503)))
    other.answer_all(lambda call: call.send(json_reply({})))
    while not gone.seen:
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert router.router.fleet.member(router.endpoint(gone)).outlier.streak == 1


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422, 501, 505])
async def test_no_other_status_moves_a_direct_request(harness: Harness, status: int) -> None:
    engines = [await harness.engine(), await harness.engine()]
    router = await harness.router(*engines)
    for engine in engines:
        engine.answer_all(lambda call: call.send(json_reply({"error": "x"}, status)))
    assert (await router.ask(COMPLETIONS, STREAM)).status == status
    assert sum(engine.seen for engine in engines) == 1
    assert router.all(FellBack) == []


async def test_nothing_is_tried_again_after_the_clients_first_byte(harness: Harness) -> None:
    engines = [await harness.engine(), await harness.engine()]
    router = await harness.router(*engines)
    for engine in engines:

        def script(call: Call) -> None:
            call.stream(token("a"))
            call.close()

        engine.answer_all(script)
    answer = await router.ask(COMPLETIONS, STREAM)
    assert error_in(answer.body)["code"] == 502
    assert sum(engine.seen for engine in engines) == 1
    assert router.all(FellBack) == []


@pytest.mark.parametrize("end", [Call.reset, Call.end])
@pytest.mark.parametrize("before", [b"", CREATED, ROLE, b": ping\n\n"], ids=repr)
async def test_stream_broken_before_content_moves(
    harness: Harness, before: bytes, end: Callable[[Call], None]
) -> None:
    bad, good = await harness.engine(), await harness.engine()
    router = await harness.router(bad, good)
    client = await router.send(RESPONSES, {"model": "m", "input": "x", "stream": True})
    call = await bad.call()
    call.stream(*[before] * bool(before))
    answer = await client.begin()
    end(call)
    second = await good.call()
    second.stream_whole(CREATED, DELTA, DONE)
    await answer.rest()
    assert answer.body.removeprefix(b": ping\n\n") == CREATED + DELTA + DONE
    assert [(m.leg, m.reason) for m in router.all(FellBack)] == [(Role.DECODE, "broken")]
    assert (await router.record()).outcome == "ok"


def dropped(**choice: object) -> bytes:
    """vLLM's answer to a request in progress at its shutdown."""
    choices = [{"index": 0, **choice, "finish_reason": "abort"}]
    return orjson.dumps({"choices": choices, "usage": {"completion_tokens": 0}})


@pytest.mark.parametrize("is_stream", [True, False])
async def test_request_dropped_before_token_moves(harness: Harness, is_stream: bool) -> None:
    bad, good = await harness.engine(), await harness.engine()
    router = await harness.router(bad, good)
    client = await router.send(COMPLETIONS, completion(stream=is_stream))
    call, text = await bad.call(), dropped(text="")
    if is_stream:
        call.stream_whole(b"data: %b\n\n" % text, DONE)
    else:
        call.send(json_reply(text))
    second = await good.call()
    if is_stream:
        second.stream_whole(token("a"), DONE)
    else:
        second.send(json_reply({"choices": [{"text": "a"}]}))
    answer = await client.answer()
    assert b"abort" not in answer.body
    assert [(m.leg, m.reason) for m in router.all(FellBack)] == [(Role.DECODE, "broken")]
    assert (await router.record()).outcome == "ok"


async def test_an_answer_that_is_aborted_later_is_the_clients(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, await harness.engine())
    client = await router.send(COMPLETIONS, STREAM)
    call = await engine.call()
    aborted = b"data: %b\n\n" % dropped(text="")
    call.stream_whole(token("a"), aborted, DONE)
    assert (await client.answer()).body == token("a") + aborted + DONE
    assert router.all(FellBack) == []


async def test_a_stream_that_no_engine_begins_ends_with_one_error_event(harness: Harness) -> None:
    engines = [await harness.engine() for _ in range(5)]
    router = await harness.router(*engines)
    for engine in engines:

        def script(call: Call) -> None:
            call.stream(ROLE)
            call.close()

        engine.answer_all(script)
    answer = await router.ask(CHAT, STREAM)
    assert answer.status == 200
    assert answer.body.startswith(b'data: {"error":')
    assert error_in(answer.body)["code"] == 502
    assert sum(engine.seen for engine in engines) == 3
    record = await router.record()
    assert (record.status, record.outcome, record.first_byte) == (200, "broken", None)


async def test_a_stream_that_leaves_traces_is_not_begun_twice(harness: Harness) -> None:
    engines = [await harness.engine(), await harness.engine()]
    router = await harness.router(*engines)
    for engine in engines:

        def script(call: Call) -> None:
            call.stream(CREATED)
            call.close()

        engine.answer_all(script)
    body = {"model": "m", "input": "x", "stream": True, "store": True}
    answer = await router.ask(RESPONSES, body)
    assert error_in(answer.body)["code"] == "502"
    assert sum(engine.seen for engine in engines) == 1


def answers_504(engine: ScriptedEngine) -> None:
    """It fails, or a proxy in front of it has waited too long."""
    engine.answer_all(lambda call: call.send(json_reply({"error": "x"}, 504)))


@pytest.mark.parametrize(("fault", "status"), [(resets_unanswered, 502), (answers_504, 504)])
async def test_a_request_that_leaves_traces_is_not_sent_to_a_second_engine(
    harness: Harness, fault: Fault, status: int
) -> None:
    engines = [await harness.engine(), await harness.engine()]
    router = await harness.router(*engines)
    for engine in engines:
        fault(engine)
    answer = await router.ask("/v1/responses", {"model": "m", "input": "x", "background": True})
    assert answer.status == status
    assert sum(engine.seen for engine in engines) == 1


async def test_a_503_as_the_first_event_moves_like_a_503(harness: Harness) -> None:
    prefill, bad, good = await harness.engine(), await harness.engine(), await harness.engine()
    router = await harness.router(bad, good, prefill=(prefill,))
    prefill.answer_all(answer_remotely)

    def full(call: Call) -> None:
        call.send(sse_head(), chunk(event({"error": {"message": "full", "code": 503}})))

    def fine(call: Call) -> None:
        call.stream_whole(token("a"), DONE)

    bad.answer_all(full)
    good.answer_all(fine)
    for _ in range(2):
        answer = await router.ask(COMPLETIONS, STREAM)
        assert (answer.status, answer.body) == (200, token("a") + DONE)
    assert prefill.seen >= 3  # a reference that an engine saw is not used again
