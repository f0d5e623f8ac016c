"""--request-deadlines: x-slo-ttft-ms and x-request-timeout."""

import time
from typing import Any

import pytest

from tests.net.engine import json_reply
from tests.net.harness import Harness, Header, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, OK, completion, error_in, token

ON: dict[str, Any] = {"request_deadlines": "on"}
AT_ONCE = (b"x-slo-ttft-ms", b"1e-9")
SOON = (b"x-request-timeout", b"0.05")
LATE = [(b"x-slo-ttft-ms", b"1e6"), (b"x-request-timeout", b"1e3")]


async def test_a_first_token_that_must_come_too_soon_is_refused_at_once(harness: Harness) -> None:
    engine, router = await harness.single(**ON)
    answer = await router.ask(COMPLETIONS, completion(), AT_ONCE)
    assert answer.status == 503
    assert answer.values(b"retry-after") == [b"1"]
    assert "x-slo-ttft-ms" in answer.error["message"]
    assert engine.seen == 0
    assert (await router.record()).status == 503
    metrics = (await (await router.client()).get("/metrics")).body
    assert b"\npd_router_deadline_refusals_total 1.0\n" in metrics


@pytest.mark.parametrize("headers", [[], LATE])
async def test_what_is_not_known_to_be_late_is_served(
    harness: Harness, headers: list[Header]
) -> None:
    engine, router = await harness.single(**ON)
    engine.answer_all(lambda call: call.send(OK))
    assert (await router.ask(COMPLETIONS, completion(), *headers)).status == 200


async def test_by_default_the_headers_mean_nothing(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(OK))
    answer = await router.ask(COMPLETIONS, completion(), AT_ONCE, (b"x-request-timeout", b"x"))
    assert answer.status == 200


@pytest.mark.parametrize("header", [b"x-slo-ttft-ms", b"x-request-timeout"])
@pytest.mark.parametrize("value", [b"", b"soon", b"0", b"-1", b"nan", b"inf"])
async def test_a_deadline_is_a_number_above_0(
    harness: Harness, header: bytes, value: bytes
) -> None:
    engine, router = await harness.single(**ON)
    answer = await router.ask(COMPLETIONS, completion(), (header, value))
    assert (answer.status, answer.error["param"]) == (400, header.decode())
    assert engine.seen == 0


def expire(router: Running) -> None:
    """Let the deadline of the request in progress be over."""
    (served,) = router.router.handler.active
    served._on_deadline(600.0)  # type: ignore[attr-defined]


async def test_an_answer_that_takes_too_long_ends_and_the_engine_is_left(harness: Harness) -> None:
    engine, router = await harness.single(**ON)
    client = await router.send(COMPLETIONS, completion(), LATE[1])
    call = await engine.call()
    expire(router)
    assert (await client.answer()).status == 504
    await call.left()
    assert (await router.record()).outcome == "error"


async def test_a_stream_that_takes_too_long_ends_in_an_error_event(harness: Harness) -> None:
    engine, router = await harness.single(**ON)
    client = await router.send(COMPLETIONS, completion(stream=True), LATE[1])
    call = await engine.call()
    call.stream(token("Hi"))
    answer = await client.begin()
    assert answer.status == 200
    await answer.until(token("Hi"))
    expire(router)
    await answer.rest()
    assert "x-request-timeout" in error_in(answer.body)["message"]
    await call.left()


async def test_the_wait_in_the_queue_counts(harness: Harness) -> None:
    engine, router = await harness.single(**ON, max_in_flight=1)
    await router.send(COMPLETIONS, completion())
    await engine.call()
    await router.send(COMPLETIONS, completion())
    gate = router.router.handler.network.admission
    assert gate is not None
    await eventually(lambda: gate.admission.longest_wait(time.monotonic()) > 0.2)
    answer = await router.ask(COMPLETIONS, completion(), (b"x-slo-ttft-ms", b"200"))
    assert answer.status == 503
    assert "expected after" in answer.error["message"]


async def test_a_request_that_waits_for_its_turn_ends_too(harness: Harness) -> None:
    engine, router = await harness.single(**ON, max_in_flight=1)
    first = await router.send(COMPLETIONS, completion())
    call = await engine.call()
    answer = await router.ask(COMPLETIONS, completion(), SOON)
    assert answer.status == 504
    assert answer.error["message"] == (
        "The answer took longer than its x-request-timeout of 0.05 s."
    )
    call.send(json_reply({"choices": []}))
    assert (await first.answer()).status == 200
    engine.answer_all(lambda call: call.send(OK))
    assert (await router.ask(COMPLETIONS, completion())).status == 200  # its place is free


async def test_an_answer_in_time_is_not_disturbed_by_its_timer(harness: Harness) -> None:
    engine, router = await harness.single(**ON)
    engine.answer_all(lambda call: call.stream_whole(token("Hi"), DONE))
    answer = await router.ask(COMPLETIONS, completion(stream=True), (b"x-request-timeout", b"60"))
    assert answer.body == token("Hi") + DONE
