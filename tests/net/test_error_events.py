"""Errors that engines report as an event of a stream that they have begun with status 200."""

from collections.abc import Callable

import pytest

from router.core.events import FellBack, LegAnswered, LegDone, LegFailed
from router.core.judge.verdict import Exclusion
from router.core.values import FailureKind, Role
from tests.net.engine import Call, json_reply
from tests.net.harness import Harness
from tests.net.payloads import (
    COMPLETIONS,
    DONE,
    MESSAGES,
    RESPONSES,
    ROLE,
    STREAM,
    answer_remotely,
    error_in,
    event,
    token,
)


def error(code: object) -> bytes:
    """An error event in vLLM's shape."""
    return event({"error": {"message": "EngineCore died", "type": "T", "code": code}})


def sends(*events: bytes) -> Callable[[Call], None]:
    """The script of an engine whose streams are these events."""

    def script(call: Call) -> None:
        call.stream_whole(*events)

    return script


FINE = sends(token("a"), DONE)

FAILED_RESPONSE = event(
    {
        "type": "response.failed",
        "response": {"error": {"code": "server_error", "message": "EngineCore died"}},
    }
)

OVERLOADED = event(
    {"type": "error", "error": {"type": "overloaded_error", "message": "EngineCore died"}}
)

OWN_ERRORS = [
    error(500),
    error(502),
    error("server_error"),
    event({"error": "EngineCore died"}),
    event({"type": "error", "code": "server_error", "message": "EngineCore died"}),
    FAILED_RESPONSE,
]


@pytest.mark.parametrize("failed", OWN_ERRORS)
@pytest.mark.parametrize("before", [(), (ROLE,)], ids=["at once", "after a role"])
async def test_an_error_before_the_first_token_is_answered_by_another_engine(
    harness: Harness, failed: bytes, before: tuple[bytes, ...]
) -> None:
    bad, good = await harness.engine(), await harness.engine()
    router = await harness.router(bad, good)
    bad.answer_all(sends(*before, failed, DONE))
    good.answer_all(FINE)
    answer = await router.ask(COMPLETIONS, STREAM)
    assert (answer.status, answer.body) == (200, token("a") + DONE)
    (leg,) = router.all(LegFailed)
    assert (leg.endpoint, leg.kind) == (router.endpoint(bad), FailureKind.BROKEN)
    assert leg.cause == "it reported an error in a stream: EngineCore died"
    assert router.all(FellBack) == [FellBack(Role.DECODE, "status_5xx")]
    assert (await router.record()).outcome == "ok"


async def test_an_engine_whose_streams_are_errors_is_ejected(harness: Harness) -> None:
    bad, good = await harness.engine(), await harness.engine()
    router = await harness.router(bad, good, outlier_consecutive_failures=3)
    bad.answer_all(sends(ROLE, error(500), DONE))
    good.answer_all(FINE)
    for _ in range(12):
        assert (await router.ask(COMPLETIONS, STREAM)).body == token("a") + DONE
    assert router.router.fleet.member(router.endpoint(bad)).exclusion is Exclusion.EJECTED
    assert bad.seen == 3


@pytest.mark.parametrize(
    ("path", "failed"),
    [
        (COMPLETIONS, error(500)),
        (RESPONSES, FAILED_RESPONSE),
        (RESPONSES, error(500)),
        (MESSAGES, OVERLOADED),
    ],
)
async def test_without_another_answer_the_stream_ends_with_the_engines_error(
    harness: Harness, path: str, failed: bytes
) -> None:
    engine, router = await harness.single()
    engine.answer_all(sends(ROLE, failed, DONE))
    answer = await router.ask(path, {**STREAM, "input": "x", "messages": []})
    assert (answer.status, answer.body.count(b"data: {")) == (200, 1)
    assert answer.body.startswith(b"data: " if path == COMPLETIONS else b"event: error\n")
    assert answer.body.endswith(DONE) is (path == COMPLETIONS)
    record = await router.record()
    assert (record.outcome, record.has_failed) == ("broken", True)
    for text in (answer.body.decode(), record.error or ""):
        assert "EngineCore died" in text


async def test_a_stream_in_which_all_engines_fail_is_seen_by_two(harness: Harness) -> None:
    engines = [await harness.engine() for _ in range(4)]
    router = await harness.router(*engines)
    for engine in engines:
        engine.answer_all(sends(ROLE, error(500), DONE))
    frame = error_in((await router.ask(COMPLETIONS, STREAM)).body)
    assert (frame["code"], frame["message"]) == (500, "EngineCore died")
    assert sum(engine.seen for engine in engines) == 2
    assert len(router.all(LegFailed)) == 1


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
async def test_error_behind_anothers_head_has_api_format(harness: Harness, path: str) -> None:
    engine, other = await harness.engine(), await harness.engine()
    router = await harness.router(engine, other)
    client = await router.send(path, {**STREAM, "input": "x", "messages": []})
    (await engine.call()).stream_whole(FAILED_RESPONSE)
    (await other.call()).send(json_reply({"detail": "no"}, 500))
    answer = await client.answer()
    assert b"event: error\n" in answer.body
    assert b'"message":"no"' in answer.body


@pytest.mark.parametrize(
    "ways",
    [
        [token("a"), error(500), DONE],
        [token("a"), error(500) + DONE],
        [token("a") + error(500), DONE],
        [token("a") + error(500) + DONE],
        [token("a"), error(500)],
        [token("a"), FAILED_RESPONSE],
    ],
)
async def test_an_error_behind_tokens_passes_and_is_a_failure_of_the_engine(
    harness: Harness, ways: list[bytes]
) -> None:
    engine, router, client, call = await harness.stream()
    call.stream()
    answer = await client.begin()
    for events in ways:
        call.events(events)
        await answer.until(events)
    call.end()
    await answer.rest()
    assert (answer.status, answer.body) == (200, b"".join(ways))
    record = await router.record()
    assert (record.status, record.outcome) == (200, "broken")
    assert record.error == "the decode engine answered 500: EngineCore died"
    (leg,) = router.all(LegFailed)
    assert (leg.endpoint, leg.kind) == (router.endpoint(engine), FailureKind.BROKEN)
    assert router.all(LegDone) == []


async def test_an_error_that_a_stream_goes_on_behind_has_not_ended_it(harness: Harness) -> None:
    _, router, client, call = await harness.stream()
    call.stream()
    answer = await client.begin()
    for each in (token("a"), error(500), token("b")):
        call.events(each)
        await answer.until(each)
    call.end(DONE)
    await answer.rest()
    assert (await router.record()).outcome == "ok"
    assert router.all(LegFailed) == []


@pytest.mark.parametrize("before", [(), (ROLE,), (token("a"),)], ids=["at once", "role", "token"])
async def test_a_client_error_passes_and_is_no_failure_of_the_engine(
    harness: Harness, before: tuple[bytes, ...]
) -> None:
    engine, router = await harness.single()
    engine.answer_all(sends(*before, error(400), DONE))
    answer = await router.ask(COMPLETIONS, STREAM)
    assert answer.body == b"".join(before) + error(400) + DONE
    assert (await router.record()).outcome == "ok"
    assert router.all(LegFailed) == []
    assert len(router.all(LegDone)) == 1


async def test_so_does_one_that_has_a_type_and_no_code(harness: Harness) -> None:
    """As those of /v1/messages."""
    wrong = {"type": "invalid_request_error", "message": "max_tokens: must be positive"}
    failed = event({"type": "error", "error": wrong})
    engine, other = await harness.engine(), await harness.engine()
    router = await harness.router(engine, other)
    for each in (engine, other):
        each.answer_all(sends(failed, DONE))
    answer = await router.ask(COMPLETIONS, STREAM)
    assert answer.body == failed + DONE
    assert engine.seen + other.seen == 1
    assert router.all(LegFailed) == []


@pytest.mark.parametrize(
    "last",
    [
        event({"type": "response.completed", "response": {"error": None}}),
        token('say "error": {}'),
        token("error"),
    ],
)
async def test_text_that_resembles_an_error_is_none(harness: Harness, last: bytes) -> None:
    engine, router = await harness.single()
    engine.answer_all(sends(token("a"), last, DONE))
    await router.ask(COMPLETIONS, STREAM)
    assert (await router.record()).outcome == "ok"


@pytest.mark.parametrize("code", [429, 503])
async def test_a_full_engine_is_left_without_a_failure(harness: Harness, code: int) -> None:
    full, good = await harness.engine(), await harness.engine()
    router = await harness.router(full, good, outlier_consecutive_failures=1)
    full.answer_all(sends(ROLE, error(code), DONE))
    good.answer_all(FINE)
    for _ in range(4):
        assert (await router.ask(COMPLETIONS, STREAM)).body == token("a") + DONE
    assert {f.reason for f in router.all(FellBack)} == {"busy"}
    assert router.all(LegFailed) == []
    assert router.router.fleet.member(router.endpoint(full)).exclusion is None


async def test_full_engines_end_a_begun_stream_with_an_error(harness: Harness) -> None:
    _, router, client, call = await harness.stream()
    call.stream(ROLE)
    answer = await client.begin()
    call.events(error(503), DONE)
    await answer.rest()
    frame = error_in(answer.body)
    assert (frame["code"], frame["message"]) == (503, "EngineCore died")
    assert [a.status for a in router.all(LegAnswered)] == [200, 503]


async def test_error_streams_after_a_prefill_count_as_failures(harness: Harness) -> None:
    """A 500 may be a failed KV load, the prefill engine's fault: it counts for neither."""
    prefill, decode = await harness.engine(), await harness.engine()
    prefill.answer_all(answer_remotely)
    router = await harness.router(decode, prefill=(prefill,))
    client = await router.send(COMPLETIONS, STREAM)
    for _ in range(2):
        call = await decode.call()
        call.stream(error(500), DONE)
        await call.left()
    call = await decode.call()
    call.stream_whole(token("a"), DONE)
    assert (await client.answer()).body == token("a") + DONE
    assert [f.reason for f in router.all(FellBack)] == ["kv_load_failed"] * 2
    done = [leg.endpoint for leg in router.all(LegDone)]
    assert done == [router.endpoint(prefill)] * 2 + [router.endpoint(decode)]
