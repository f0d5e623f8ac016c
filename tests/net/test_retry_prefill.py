"""Prefills that fail are done again or without, and what failures teach the fleet."""

import pytest

from router.core.events import FellBack, LegAnswered, LegFailed
from router.core.values import FailureKind, Role
from tests.net.engine import Call, json_reply
from tests.net.faults import (
    Fault,
    breaks_off_a_unary_answer,
    cuts_a_unary_answer,
    is_busy,
    is_no_http,
    refuses,
    resets_new_connections,
    resets_unanswered,
    sends_an_empty_answer,
)
from tests.net.harness import Harness, eventually
from tests.net.payloads import (
    COMPLETIONS,
    OK,
    answer_remotely,
    completion,
)

# Prefill.

PREFILL_FAULTS: list[Fault] = [
    refuses,
    resets_new_connections,
    resets_unanswered,
    is_no_http,
    breaks_off_a_unary_answer,
    cuts_a_unary_answer,
    sends_an_empty_answer,
    is_busy,
    lambda engine: engine.answer_all(lambda call: call.send(json_reply({}, 500))),
]


@pytest.mark.parametrize("fault", PREFILL_FAULTS)
async def test_failed_prefill_is_tried_twice(harness: Harness, fault: Fault) -> None:
    prefills = [await harness.engine() for _ in range(3)]
    decode = await harness.engine()
    router = await harness.router(decode, prefill=tuple(prefills))
    for prefill in prefills:
        fault(prefill)
    client = await router.send(COMPLETIONS, completion())
    call = await decode.call()
    assert "kv_transfer_params" not in call.json
    call.send(OK)
    assert (await client.answer()).status == 200
    assert [m.leg for m in router.all(FellBack)] == [Role.PREFILL] * 2


async def test_a_failed_prefill_does_not_wait_for_anything(harness: Harness) -> None:
    bad, good, decode = await harness.engine(), await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(bad, good))
    resets_unanswered(bad)
    good.answer_all(answer_remotely)
    decode.answer_all(lambda call: call.send(OK))
    for _ in range(4):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert good.seen == 4


async def test_prefill_reply_without_parameters_is_ignored(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    prefill.answer_all(lambda call: call.send(json_reply({"kv_transfer_params": None})))
    client = await router.send(COMPLETIONS, completion())
    call = await decode.call()
    assert call.json == completion()
    call.send(OK)
    assert (await client.answer()).status == 200


# What the fleet learns.


async def test_three_failures_bring_an_engine_down(harness: Harness) -> None:
    bad, good = await harness.engine(), await harness.engine()
    router = await harness.router(bad, good)
    good.answer_all(lambda call: call.send(OK))
    resets_unanswered(bad)
    fleet = router.router.fleet
    while fleet.member(router.endpoint(bad)).health.is_up:
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert bad.seen == 3
    for _ in range(4):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert bad.seen == 3
    assert [f.kind for f in router.all(LegFailed)] == [FailureKind.RESET] * 3


async def test_an_answer_between_failures_clears_them(harness: Harness) -> None:
    engine, router = await harness.single()
    for _ in range(3):
        for fault in (Call.reset, Call.reset, lambda call: call.send(OK)):
            client = await router.send(COMPLETIONS, completion())
            fault(await engine.call())
            await client.answer()
        # The last answer left a connection that would be replayed.
        router.pool(engine).close()
        await eventually(lambda: router.pool(engine).open == 0)
    assert router.router.fleet.is_ready


async def test_answers_with_errors_do_not_bring_an_engine_down(harness: Harness) -> None:
    engine, router = await harness.single()
    for status in (400, 500, 503, 404) * 3:
        engine.answer_all(lambda call, s=status: call.send(json_reply({}, s)))  # type: ignore[misc]
        assert (await router.ask(COMPLETIONS, completion())).status == status
    assert router.router.fleet.is_ready
    assert [a.status for a in router.all(LegAnswered)] == [400, 500, 503, 404] * 3


async def test_each_leg_is_observed_with_its_engine_and_status(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    prefill.answer_all(answer_remotely)
    decode.answer_all(lambda call: call.send(json_reply({}, 418)))
    await router.ask(COMPLETIONS, completion())
    seen = [(a.endpoint, a.status) for a in router.all(LegAnswered)]
    assert seen == [(router.endpoint(prefill), 200), (router.endpoint(decode), 418)]
    assert all(a.seconds >= 0 for a in router.all(LegAnswered))
