"""Encode engines over real sockets: an image is encoded once, and any failure leaves it to the next
engine."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from router.core.events import FellBack, LegFailed, Probed
from router.core.health import HealthSignal, HealthThresholds
from router.core.plans.encode import ENCODE_SECONDS
from router.core.routing.engine_timeouts import EngineTimeouts
from router.core.values import Endpoint, FailureKind, Role
from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import CHAT, KV, MESSAGES, OK, answer_remotely
from tests.net.streams import fall_silent

PARAMS = {"hash": {"item_indices": [0], "metadata": {}}}
ENCODED = json_reply({"choices": [], "ec_transfer_params": PARAMS})
SOON = 0.1
"""Seconds of a time-out that is to be over."""


def image(name: str = "a") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{name}"}}


def chat(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": "What is this?"}, *(parts or [image()])]
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


def encodes(call: Call) -> None:
    """An encode engine's script."""
    call.send(ENCODED)


async def _router(
    harness: Harness,
    script: Callable[[Call], None] | None = encodes,
    *,
    count: int = 1,
    listening: bool = True,
    **settings: Any,
) -> tuple[Running, list[ScriptedEngine], ScriptedEngine]:
    """A router, its encode engines, and its decode engine, which answers."""
    decode = await harness.engine()
    decode.answer_all(lambda call: call.send(OK))
    engines = [await harness.engine(listening=listening) for _ in range(count)]
    router = await harness.router(decode, encode=[each.url for each in engines], **settings)
    for engine in engines:
        engine.answer_all(script)
    if listening:
        await router.usable(*engines)
    return router, engines, decode


async def _ask(router: Running, *parts: dict[str, Any]) -> None:
    assert (await router.ask(CHAT, chat(*parts))).status == 200


async def test_an_image_is_encoded_once_for_two_requests(harness: Harness) -> None:
    router, [encode], decode = await _router(harness)
    decode.answer_all(None)
    for _ in range(2):
        client = await router.send(CHAT, chat())
        call = await decode.call()
        assert call.json == chat() | {"ec_transfer_params": PARAMS}
        call.send(OK)
        assert (await client.answer()).status == 200
    assert encode.seen == 1
    assert router.all(FellBack) == []
    first, second = await router.records(2)
    assert first.encode == Endpoint(encode.url, Role.ENCODE)
    assert second.encode is None


async def test_only_the_new_image_of_a_conversation_is_sent(harness: Harness) -> None:
    router, [encode], _ = await _router(harness)
    await _ask(router, image("a"))
    encode.answer_all(None)
    client = await router.send(CHAT, chat(image("a"), image("b")))
    call = await encode.call()
    assert call.json["messages"] == [{"role": "user", "content": [image("b")]}]
    encodes(call)
    assert (await client.answer()).status == 200


async def test_both_legs_of_a_remote_prefill_follow_it(harness: Harness) -> None:
    prefill = await harness.engine()
    router, [encode], decode = await _router(harness, None, prefill=(prefill,))
    decode.answer_all(None)
    client = await router.send(CHAT, chat())
    call = await encode.call()
    assert (prefill.seen, decode.seen) == (0, 0)
    encodes(call)
    call = await prefill.call()
    assert call.json["ec_transfer_params"] == PARAMS
    answer_remotely(call)
    call = await decode.call()
    assert call.json == chat() | {"ec_transfer_params": PARAMS, "kv_transfer_params": KV}
    call.send(OK)
    assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    ("fails", "reason", "failed"),
    [
        (lambda call: call.reset(), "reset", [FailureKind.RESET]),
        (lambda call: call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"), "timeout", None),
        (lambda call: None, "timeout", None),
        (lambda call: call.send(json_reply({"error": {}}, 500)), "status_5xx", []),
        (lambda call: call.send(json_reply({"error": {}}, 400)), "status_4xx", []),
        (lambda call: call.send(json_reply({"choices": []})), "no_ec_params", []),
    ],
    ids=["dies", "breaks off", "is silent", "500", "400", "no parameters"],
)
async def test_when_an_encode_engine_fails_the_next_engine_encodes(
    harness: Harness,
    fails: Callable[[Call], None],
    reason: str,
    failed: list[FailureKind] | None,
) -> None:
    router, [encode], decode = await _router(harness, fails)
    decode.answer_all(None)
    client = await router.send(CHAT, chat())
    if failed is None:
        await eventually(lambda: encode.seen)
        fall_silent(router)
    call = await decode.call()
    assert call.json == chat()
    call.send(OK)
    assert (await client.answer()).status == 200
    assert router.all(FellBack) == [FellBack(Role.ENCODE, reason)]
    kinds = [FailureKind.TIMEOUT] if failed is None else failed
    assert [each.kind for each in router.all(LegFailed)] == kinds
    assert encode.seen == 1


async def test_an_encode_engine_that_is_down_is_not_waited_for(harness: Harness) -> None:
    router, [encode], _ = await _router(harness, listening=False)
    await _ask(router)
    assert router.all(FellBack) == [FellBack(Role.ENCODE, "no_encode_engine")]
    assert encode.seen == 0


async def test_an_encode_engine_that_hangs_delays_nothing_once_it_is_down(harness: Harness) -> None:
    """Neither what waits for its answer, nor what comes later."""
    router, [encode], _ = await _router(harness, None)
    client = await router.send(CHAT, chat())
    call = await encode.call()
    for _ in range(HealthThresholds().down_after):
        router.router.observe(Probed(router.endpoint(encode), HealthSignal.TIMED_OUT))
    assert (await client.answer()).status == 200
    await call.left()
    await _ask(router)
    assert [each.reason for each in router.all(FellBack)] == ["stalled", "no_encode_engine"]
    assert encode.seen == 1


async def test_an_encode_engine_has_less_time_than_a_prefill_engine(harness: Harness) -> None:
    router, _, _ = await _router(harness, lambda call: None)
    network = router.router.handler.network
    assert (
        network.timeouts.encode.first_byte == ENCODE_SECONDS < network.timeouts.prefill.first_byte
    )
    network.timeouts = replace(network.timeouts, encode=EngineTimeouts(SOON))
    await _ask(router)
    assert router.all(FellBack) == [FellBack(Role.ENCODE, "timeout")]


async def test_a_drained_encode_engine_gets_nothing_and_its_images_are_encoded_elsewhere(
    harness: Harness,
) -> None:
    router, engines, _ = await _router(harness, count=2)
    await _ask(router)
    had, other = sorted(engines, key=lambda engine: -engine.seen)
    router.router.observe(Probed(router.endpoint(had), HealthSignal.UNAVAILABLE))
    await _ask(router)
    await _ask(router)
    assert (had.seen, other.seen) == (1, 1)


async def test_two_racing_requests_with_an_image_go_to_one_encode_engine(harness: Harness) -> None:
    router, engines, _ = await _router(harness, None, count=3)
    clients = [await router.send(CHAT, chat()) for _ in range(2)]
    await eventually(lambda: sum(engine.seen for engine in engines) == 2)
    [engine] = [engine for engine in engines if engine.seen]
    for _ in clients:
        encodes(await engine.call())
    for client in clients:
        assert (await client.answer()).status == 200


async def test_different_images_are_spread_by_load(harness: Harness) -> None:
    router, engines, _ = await _router(harness, None, count=2)
    clients = [await router.send(CHAT, chat(image(str(number)))) for number in range(4)]
    await eventually(lambda: [engine.seen for engine in engines] == [2, 2])
    for engine in engines * 2:
        encodes(await engine.call())
    for client in clients:
        assert (await client.answer()).status == 200


async def test_a_client_that_leaves_while_its_image_is_encoded_stops_that(harness: Harness) -> None:
    router, [encode], decode = await _router(harness, None)
    client = await router.send(CHAT, chat())
    call = await encode.call()
    client.leave()
    await call.left()
    assert (await router.record()).outcome == "client_left"
    assert decode.seen == 0


@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_a_client_that_leaves_later_leaves_the_image_encoded(
    harness: Harness, phase: str
) -> None:
    prefill = await harness.engine()
    router, [encode], decode = await _router(harness, prefill=(prefill,))
    decode.answer_all(None)
    client = await router.send(CHAT, chat())
    call = await prefill.call()
    if phase == "decode":
        answer_remotely(call)
        call = await decode.call()
    client.leave()
    await call.left()
    assert (await router.record()).outcome == "client_left"
    prefill.answer_all(answer_remotely)
    decode.answer_all(lambda call: call.send(OK))
    await _ask(router)
    assert encode.seen == 1


async def test_a_large_image_is_encoded_too(harness: Harness) -> None:
    router, [encode], decode = await _router(harness, None)
    decode.answer_all(None)
    large = image("a" * (1 << 21))
    asked = chat(large, mm_processor_kwargs={"num_crops": 4})
    client = await router.send(CHAT, asked)
    call = await encode.call()
    assert call.json["messages"] == [{"role": "user", "content": [large]}]
    assert call.json["mm_processor_kwargs"] == {"num_crops": 4}
    encodes(call)
    call = await decode.call()
    assert call.json == asked | {"ec_transfer_params": PARAMS}
    call.send(OK)
    assert (await client.answer()).status == 200


async def test_requests_without_images_and_of_other_apis_are_not_encoded(harness: Harness) -> None:
    router, [encode], _ = await _router(harness)
    source = {"type": "base64", "media_type": "image/png", "data": "a"}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    text = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    for path, body in (
        (MESSAGES, {"model": "m", "max_tokens": 9, "messages": messages}),
        (CHAT, {"model": "m", "messages": text}),
    ):
        assert (await router.ask(path, body)).status == 200
    assert encode.seen == 0


async def test_without_an_encode_pool_an_image_is_no_fallback(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(OK))
    await _ask(router)
    assert (router.all(FellBack), (await router.record()).encode) == ([], None)


async def test_metrics_and_endpoints_have_the_engine(harness: Harness) -> None:
    router, [encode], _ = await _router(harness)
    await _ask(router)
    text = (await (await router.client()).get("/metrics")).body
    answers = b'pd_router_engine_answers_total{endpoint="%b",role="encode",status="200"} 1.0'
    assert answers % encode.url.encode() in text
    seconds = b'pd_router_endpoint_time_to_first_token_seconds_count{endpoint="%b",role="encode"} 1'
    assert seconds % encode.url.encode() in text
    listed = (await (await router.client()).get("/endpoints")).json
    [entry] = [each for each in listed if each["role"] == "encode"]
    assert (entry["url"], entry["state"], entry["in_flight"]) == (encode.url, "up", 0)
