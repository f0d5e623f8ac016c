"""Clients see neither engine addresses nor system errors."""

from collections.abc import Callable

import pytest

from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness
from tests.net.payloads import CHAT, COMPLETIONS, completion, token

FAULTS: dict[str, Callable[[Call], None]] = {
    "closes": lambda call: call.close(),
    "resets": lambda call: call.reset(),
    "speaks no HTTP": lambda call: call.send(b"SSH-2.0-OpenSSH\r\n"),
}


def assert_is_discreet(text: bytes, engine: ScriptedEngine) -> None:
    """Neither the address nor the system's words."""
    assert b"127.0.0.1" not in text
    assert str(engine.port).encode() not in text
    assert b"Errno" not in text


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_engine_that_fails_is_not_named(harness: Harness, fault: str) -> None:
    engine, router = await harness.single()
    engine.answer_all(FAULTS[fault])
    answer = await router.ask(COMPLETIONS, completion())
    assert answer.status == 502
    assert answer.error["message"].startswith("The engine ")
    assert_is_discreet(answer.body, engine)


async def test_a_refusing_sibling_is_not_named_but_its_cause_is_known(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.refuse()
    engine.drop()
    answer = await router.ask(COMPLETIONS, completion())
    assert answer.error["message"] == "The engine cannot be reached."
    member = router.router.fleet.member(router.endpoint(engine))
    assert str(member.last_error).startswith("it crashed or was stopped")


async def test_a_stream_that_breaks_does_not_name_it(harness: Harness) -> None:
    engine, router, client, call = await harness.stream()
    call.stream(token("a"))
    answer = await client.begin()
    call.close()
    await answer.rest()
    assert b"EngineError" in answer.body
    assert_is_discreet(answer.body, engine)
    assert (await router.record()).outcome == "broken"


async def test_a_pool_without_up_engines_is_reported_with_numbers(harness: Harness) -> None:
    dead, other = await harness.engine(listening=False), await harness.engine(listening=False)
    router = await harness.router(dead, other, ready=False)
    answer = await router.ask(COMPLETIONS, completion())
    assert answer.error["message"] == (
        "No decode engine can take this request now: 0 of 2 up: 2 starting."
    )


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/embeddings"])
async def test_the_log_has_the_message_of_an_engines_refusal(harness: Harness, path: str) -> None:
    engine, router = await harness.single()
    body = {"error": {"message": "too long"}}
    engine.answer_all(lambda call: call.send(json_reply(body, 400)))
    answer = await router.ask(path, {**completion(), "messages": [], "input": "x"})
    assert (answer.status, answer.json) == (400, body)
    assert (await router.record()).error == "the decode engine answered 400: too long"


async def test_a_prefill_engines_refusal_is_counted_under_its_name(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    prefill.answer_all(lambda call: call.send(json_reply({"error": {"message": "no"}}, 400)))
    assert (await router.ask(COMPLETIONS, completion())).status == 400
    record = await router.record()
    assert record.error == "the prefill engine answered 400: no"
    assert (record.prefill, record.decode) == (router.endpoint(prefill), None)
