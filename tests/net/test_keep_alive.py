"""Comments for the client of a stream that waits for its first content (`--sse-keep-alive`).

Time is stopped: a test lengthens the clients' wait with `wait_long`.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import APIError, AsyncOpenAI

from router.core.events import FellBack, LegFailed, RequestEnded
from router.core.routes import ROUTES
from router.core.values import Role
from router.core.wire.api_errors import engine_error_event
from tests.net.client import Answer, Client, request
from tests.net.engine import Call, ScriptedEngine, json_reply, sse_head
from tests.net.harness import NEVER, Harness, Running, eventually, flow_of
from tests.net.payloads import (
    CHAT,
    COMPLETIONS,
    DONE,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    ROLE,
    STREAM,
    completion,
    error_in,
    event,
    prefilled,
    token,
)
from tests.net.streams import COMMENT, early, over_http, run_example, wait_long

ALIVE = COMMENT
ON: dict[str, Any] = {"sse_keep_alive": NEVER}


async def disaggregated(
    harness: Harness, **settings: Any
) -> tuple[Running, Client, Call, ScriptedEngine]:
    """A router that prefills remotely, a client of a stream, its prefill request, and the decode
    engine."""
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), **{**ON, **settings})
    client = await router.send(COMPLETIONS, STREAM)
    return router, client, await prefill.call(), decode


# The head and the comments.


async def test_head_and_comments_precede_the_answer_in_prefill(harness: Harness) -> None:
    router, client, call, decode = await disaggregated(harness)
    answer = await early(router, client, 3)
    assert (answer.status, answer.values(b"content-type")) == (
        200,
        [b"text/event-stream; charset=utf-8"],
    )
    call.send(prefilled())
    second = await decode.call()
    wait_long(router)
    await answer.until(ALIVE * 4)
    second.stream(token(""), b": ping\n\n")  # the decode engine's own
    await answer.until(ALIVE * 4 + b": ping\n\n")
    second.events(token("a"))
    await answer.until(token("") + token("a"))
    wait_long(router)  # from now on silence is the engine's
    second.end(DONE)
    await answer.rest()
    assert answer.body == ALIVE * 4 + b": ping\n\n" + token("") + token("a") + DONE
    assert (await client.get("/health")).status == 200  # the connection is kept
    record = await router.record()
    assert (record.status, record.outcome, record.error) == (200, "ok", None)
    assert record.first_byte is not None
    assert record.prefilled_at is not None
    assert record.first_byte > record.prefilled_at


async def test_comment_follows_the_configured_silence(harness: Harness) -> None:
    router, client, call, _ = await disaggregated(harness)
    answer = await early(router, client)
    (served,) = router.router.handler.active
    since = served._silent_since  # type: ignore[attr-defined]
    for seconds, body in ((NEVER - 1, ALIVE), (NEVER + 1, 2 * ALIVE), (NEVER + 2, 2 * ALIVE)):
        served.check_idle(since + seconds)  # type: ignore[attr-defined]
        await answer.until(body)
    call.send(json_reply({}, 400))
    await answer.rest()
    assert answer.body.count(ALIVE) == 2


async def test_the_sweep_is_often_enough_for_a_short_setting(harness: Harness) -> None:
    router, client, call, _ = await disaggregated(harness, sse_keep_alive=0.04)
    assert router.router.clients.idle_sweep._interval == 0.01
    await (await client.begin()).until(ALIVE * 3)
    call.send(json_reply({}, 400))


async def test_comments_follow_an_engines_head_too(harness: Harness) -> None:
    _, router, client, call = await harness.stream(**ON)
    call.send(sse_head(b"x-engine: one"))
    answer = await client.begin()
    assert answer.values(b"x-engine") == [b"one"]
    wait_long(router)
    await answer.until(ALIVE)
    call.end(token("a"), DONE)
    await answer.rest()
    assert answer.body == ALIVE + token("a") + DONE


async def test_a_request_in_the_queue_is_kept_alive(harness: Harness) -> None:
    engine, router = await harness.single(max_in_flight=1, queue_timeout=NEVER, **ON)
    first, second = await router.client(), await router.client()
    await first.send(request(COMPLETIONS, completion()))
    call = await engine.call()
    await second.send(request(COMPLETIONS, STREAM))
    gate = router.router.handler.network.admission
    assert gate is not None
    await eventually(lambda: gate.admission.waiting == 1)
    answer = await early(router, second, 2)
    call.send(json_reply({}))
    (await engine.call()).stream_whole(token("a"), DONE)
    await answer.rest()
    assert answer.body == ALIVE * 2 + token("a") + DONE


async def test_queue_timeout_ends_with_an_error_event(harness: Harness) -> None:
    engine, router = await harness.single(max_in_flight=1, queue_timeout=NEVER, **ON)
    first, second = await router.client(), await router.client()
    await first.send(request(COMPLETIONS, completion()))
    call = await engine.call()
    await second.send(request(COMPLETIONS, STREAM))
    gate = router.router.handler.network.admission
    assert gate is not None
    await eventually(lambda: gate.admission.waiting == 1)
    answer = await early(router, second)
    gate.limits = replace(gate.limits, queue_seconds=0.0)
    await answer.rest()
    assert error_in(answer.body)["code"] == 503
    call.send(json_reply({}))
    record, _ = await router.records(2)
    assert (record.status, record.outcome, record.first_byte) == (503, "error", None)


async def test_an_early_head_has_the_routers_own_headers(
    harness: Harness, tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("team 0123456789abcdef requests=7\n")
    engine = await harness.engine()
    router = await harness.router(
        engine, api_key_file=keys, cors_allow_origin=("https://a",), engine_header="on", **ON
    )
    client = await router.client()
    mine = [
        (b"authorization", b"Bearer 0123456789abcdef"),
        (b"origin", b"https://a"),
        (b"x-request-id", b"mine"),
    ]
    await client.send(request(COMPLETIONS, STREAM, *mine))
    call = await engine.call()
    answer = await early(router, client)
    assert answer.values(b"x-request-id") == [b"mine"]
    assert answer.values(b"access-control-allow-origin") == [b"https://a"]
    assert answer.values(b"x-ratelimit-limit-requests") == [b"7"]
    assert answer.values(b"x-pd-router-endpoint") == []  # not known yet
    call.stream_whole(token("a"), DONE)
    await answer.rest()
    named = b": x-pd-router-endpoint %b\n\n" % engine.url.encode()
    assert answer.body == ALIVE + named + token("a") + DONE


async def test_an_old_client_is_sent_them_until_the_connection_closes(harness: Harness) -> None:
    engine, router = await harness.single(**ON)
    client = await router.send(COMPLETIONS, STREAM, version="1.0")
    call = await engine.call()
    wait_long(router)
    call.stream_whole(token("a"), DONE)
    head, _, body = (await client.ended()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == ALIVE + token("a") + DONE


async def test_an_early_head_has_connection_close_if_the_connection_ends(harness: Harness) -> None:
    engine, router = await harness.single(**ON)
    client = await router.send(COMPLETIONS, STREAM, (b"connection", b"close"))
    call = await engine.call()
    answer = await early(router, client)
    assert answer.values(b"connection") == [b"close"]
    call.stream_whole(token("a"), DONE)
    await answer.rest()
    assert await client.ended() == b""


@pytest.mark.parametrize(
    ("path", "body"),
    [(COMPLETIONS, completion()), (EMBEDDINGS, {"input": "x", "stream": True})],
)
async def test_unary_requests_get_no_early_head(
    harness: Harness, path: str, body: dict[str, Any]
) -> None:
    engine, router = await harness.single(**ON)
    client = await router.send(path, body)
    call = await engine.call()
    wait_long(router)
    call.send(json_reply({"error": {"message": "no"}}, 418))
    assert (await client.answer()).status == 418


async def test_where_it_is_off_nothing_goes_ahead(harness: Harness) -> None:
    _, router, client, call = await harness.stream()
    wait_long(router)
    call.send(json_reply({"error": {"message": "no"}}, 418))
    assert (await client.answer()).status == 418


async def test_it_can_be_turned_off_while_clients_wait(harness: Harness) -> None:
    _, router, client, call = await harness.stream(**ON)
    network = router.router.handler.network
    network.timeouts = replace(network.timeouts, sse_keep_alive=0.0)  # as a reload does
    wait_long(router)
    call.send(json_reply({"error": {"message": "no"}}, 418))
    assert (await client.answer()).status == 418


async def test_gateways_choice_waits_for_the_engines_head(harness: Harness) -> None:
    engine, router = await harness.single(direct_mode="on", **ON)
    client = await router.client()
    chosen = engine.url.removeprefix("http://").encode()
    await client.send(request(COMPLETIONS, STREAM, (b"x-gateway-destination-endpoint", chosen)))
    call = await engine.call()
    wait_long(router)
    call.stream_whole(token("a"), DONE)
    answer = await client.answer()
    assert answer.values(b"x-gateway-destination-endpoint-served") == [chosen]
    assert answer.body == token("a") + DONE


async def test_a_client_that_does_not_read_is_sent_no_more(harness: Harness) -> None:
    _, router, client, call = await harness.stream(**ON)
    answer = await early(router, client)
    (connection,) = router.connections
    flow = flow_of(connection)
    flow.pause_writing()
    wait_long(router)
    flow.resume_writing()
    call.stream_whole(token("a"), DONE)
    await answer.rest()
    assert answer.body == ALIVE + token("a") + DONE


@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_a_client_that_leaves_ends_the_work(harness: Harness, phase: str) -> None:
    router, client, call, decode = await disaggregated(harness)
    if phase == "decode":
        call.send(prefilled())
        call = await decode.call()
    await early(router, client)
    client.leave()
    await call.left()
    await router.is_quiet()
    record = await router.record()
    assert (record.outcome, record.status, record.first_byte) == ("client_left", 0, None)
    assert router.all(LegFailed) == []


async def test_no_comment_behind_an_answer_in_the_same_sweep(harness: Harness) -> None:
    _, router, client, call = await harness.stream(**ON)
    (served,) = router.router.handler.active
    call.reset()
    assert (await client.answer()).status == 502
    served._silent_since = -math.inf  # type: ignore[attr-defined]
    served.check_idle(0.0)  # type: ignore[attr-defined]
    assert (await client.get("/health")).status == 200


async def test_the_routers_end_is_an_error_event(harness: Harness) -> None:
    router, client, call, _ = await disaggregated(harness)
    answer = await early(router, client)
    router.router.handler.abort()
    await answer.rest()
    assert error_in(answer.body)["code"] == 503
    await call.left()
    record = await router.record()
    assert (record.status, record.outcome) == (503, "aborted")


# Failures behind an early head.


def refuses(status: int) -> Callable[[Call], None]:
    """An engine's answer with an error status."""
    error = {"message": "no", "type": "T", "param": None, "code": status}
    return lambda call: call.send(json_reply({"error": error}, status))


async def test_early_and_late_heads_hide_the_same_headers(harness: Harness) -> None:
    """Two prefills, three decode engines: reset, full, and at last an answer."""
    prefills = await harness.engine(), await harness.engine()
    decodes = [await harness.engine() for _ in range(3)]
    router = await harness.router(*decodes, prefill=prefills, **ON)
    client = await router.send(COMPLETIONS, STREAM)
    (await prefills[0].call()).send(json_reply({"error": {"message": "no"}}, 500))
    call = await prefills[1].call()
    answer = await early(router, client)
    call.send(prefilled())
    (await decodes[0].call()).reset()
    (await prefills[0].call()).send(prefilled())
    busy = {"error": {"message": "busy", "type": "T", "param": None, "code": 503}}
    (await decodes[1].call()).send(json_reply(busy, 503))
    call = await decodes[2].call()
    wait_long(router)
    await answer.until(ALIVE * 2)  # although a whole answer has just been read
    call.stream_whole(token("a"), DONE)
    await answer.rest()
    assert answer.body == ALIVE * 2 + token("a") + DONE
    record = await router.record()
    assert (record.status, record.outcome) == (200, "ok")
    assert [each.leg for each in router.all(FellBack)] == [Role.PREFILL, *[Role.DECODE] * 2]


@pytest.mark.parametrize("leg", ["prefill", "decode", "event"])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, RESPONSES, MESSAGES])
async def test_an_engines_refusal_is_the_error_event_of_the_api(
    harness: Harness, path: str, leg: str
) -> None:
    """From either engine, or as an event in the place of the first token."""
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), **ON)
    client = await router.client()
    asked = {"model": "m", "prompt": "x", "input": "x", "messages": [], "stream": True}
    await client.send(request(path, asked))
    call = await prefill.call()
    answer = await early(router, client)
    if leg != "prefill":
        call.send(prefilled())
        call = await decode.call()
    refusal = {"message": "too long", "type": "BadRequestError", "param": "prompt", "code": 400}
    if leg == "event":
        call.stream(event({"error": refusal}))
    else:
        call.send(json_reply({"error": refusal}, 400))
    await answer.rest()
    kind = ROUTES[path].kind
    assert answer.body == ALIVE + engine_error_event(400, orjson.dumps({"error": refusal}), kind)
    record = await router.record()
    assert (record.status, record.outcome, record.has_failed) == (400, "error", False)
    role = "prefill" if leg == "prefill" else "decode"
    assert record.error == f"the {role} engine answered 400: too long"
    assert router.all(LegFailed) == []
    assert (await client.get("/health")).status == 200


FAILURES: dict[str, Callable[[Call], None]] = {
    "reset": Call.reset,
    "redirect": lambda call: call.send(json_reply({}, 307, b"location: http://10.0.0.7/")),
    "no stream": lambda call: call.send(json_reply({"choices": [{"text": "a"}]})),
}


@pytest.mark.parametrize("act", FAILURES.values(), ids=FAILURES)
async def test_an_engines_failure_is_an_error_event_if_no_other_engine_is_left(
    harness: Harness, act: Callable[[Call], None]
) -> None:
    _, router, client, call = await harness.stream(**ON)
    answer = await early(router, client)
    act(call)
    await answer.rest()
    error = error_in(answer.body)
    assert error["code"] == 502
    record = await router.record()
    assert (record.status, record.outcome, record.error) == (502, "error", error["message"])
    assert record.first_byte is None


async def test_a_time_out_is_an_error_event(harness: Harness) -> None:
    router, client, call, decode = await disaggregated(harness, first_byte_timeout=NEVER / 2)
    call.send(prefilled())
    call = await decode.call()
    answer = await early(router, client)
    sweep, loop = router.router.clients.idle_sweep, asyncio.get_running_loop()
    for each in list(sweep._watched):  # in any order: the request may end before it is looked at
        each.check_idle(loop.time() + NEVER)
    await answer.rest()
    assert error_in(answer.body.removesuffix(ALIVE))["code"] == 504
    await call.left()
    record = await router.record()
    assert (record.status, record.outcome) == (504, "error")


async def test_openais_client_skips_the_comments_and_raises_the_error(harness: Harness) -> None:
    engine, router = await harness.single(**ON)

    async def chat(client: AsyncOpenAI) -> str:
        messages: Any = [{"role": "user", "content": "x"}]
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def respond(client: AsyncOpenAI) -> list[str]:
        stream = await client.responses.create(model="m", input="x", stream=True)
        return [each.type async for each in stream]

    url = f"http://127.0.0.1:{router.port}/v1"
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        asked = asyncio.ensure_future(chat(client))
        call = await engine.call()
        wait_long(router)
        wait_long(router)
        call.stream_whole(ROLE, event({"choices": [{"index": 0, "delta": {"content": "a"}}]}), DONE)
        assert await asked == "a"
        for ask in (chat, respond):
            failing = asyncio.ensure_future(ask(client))
            call = await engine.call()
            wait_long(router)
            refuses(400)(call)
            with pytest.raises(APIError, match=r"^no$") as raised:
                await failing
            assert (raised.value.code, raised.value.type) in ((400, "T"), ("400", "T"))


# Whatever engines do.


def breaks(*events: bytes) -> Callable[[Call], None]:
    """A stream that is reset after these events."""

    def act(call: Call) -> None:
        call.stream(*events)
        call.close()

    return act


def streams(*events: bytes) -> Callable[[Call], None]:
    """A whole stream."""
    return lambda call: call.stream_whole(*events, DONE)


def failed(code: int) -> bytes:
    """An error event."""
    return event({"error": {"message": "no", "type": "T", "param": None, "code": code}})


def is_silent(call: Call) -> None:
    """Nothing comes until the engine is given up."""


GOOD = prefilled()
ACTS = {
    "answer": streams(token("a"), token("b")),
    "comments": streams(ALIVE, token(""), ALIVE, token("a")),
    "nothing": is_silent,
    **FAILURES,
    "garbage": lambda call: call.send(b"this is not HTTP\r\n\r\n"),
    **{str(status): refuses(status) for status in (400, 404, 429, 500, 503)},
    "prefilled": lambda call: call.send(GOOD),
    "ended early": breaks(),
    "ended after a role": breaks(token("")),
    "ended after a token": breaks(token("a")),
    "ended within an event": breaks(token("a"), b'data: {"choices"'),
    **{f"error {code}": streams(failed(code)) for code in (400, 429, 500)},
    "error after a token": streams(token("a"), failed(500)),
    "aborted": streams(event({"choices": [{"text": "", "finish_reason": "abort"}]})),
}

acts = st.lists(st.tuples(st.sampled_from(sorted(ACTS)), st.booleans(), st.booleans()), max_size=6)
"""What engines do one after the other, and whether the client waits long before and after it."""


def ending(answer: Answer) -> str:
    """How a client reads an answer to a stream: content, an error with its code, or JSON."""
    if answer.values(b"content-type") == [b"application/json"]:
        return f"error {answer.json['error']['code']}" if answer.status >= 400 else "json"
    assert answer.status == 200
    *events, rest = answer.body.split(b"\n\n")
    assert rest == b"", "whole events only"
    told = [each.removeprefix(b"data: ") for each in events if not each.startswith(b":")]
    assert told.pop() == b"[DONE]"
    documents = [orjson.loads(each) for each in told]
    errors = [each["error"] for each in documents if "error" in each]
    assert errors == [each["error"] for each in documents[-1:] if "error" in each], "at the end"
    return f"error {errors[0]['code']}" if errors else "content"


@pytest.mark.parametrize("mode", ["direct", "remote"])
async def test_client_gets_an_answer_or_one_error(harness: Harness, mode: str) -> None:
    engines = [await harness.engine() for _ in range(3)]
    never_out: dict[str, Any] = {"outlier_consecutive_failures": 0, "retry_budget": 0}
    if mode == "direct":
        router = await harness.router(*engines, **ON, **never_out)
    else:
        router = await harness.router(*engines[:2], prefill=(engines[2],), **ON, **never_out)
    client = await router.client()
    script: list[tuple[str, bool, bool]] = []

    def play(call: Call) -> None:
        is_prefill = b"do_remote_decode" in call.body
        otherwise = "prefilled" if is_prefill else "answer"
        name, before, after = script.pop(0) if script else (otherwise, False, False)
        if before:
            wait_long(router)
        ACTS[name](call)
        if name == "nothing":
            for each in list(router.router.clients.idle_sweep._watched):
                each.check_idle(asyncio.get_running_loop().time() + NEVER)
        if after:
            asyncio.get_running_loop().call_soon(wait_long, router)

    for engine in engines:
        engine.answer_all(play)

    @over_http
    @given(acts)
    async def holds(example: list[tuple[str, bool, bool]]) -> None:
        script[:] = example
        before = len(router.all(RequestEnded))
        end = ending(await client.ask(COMPLETIONS, STREAM))
        *_, record = await router.records(before + 1)
        assert (record.outcome == "ok") == (end in ("content", "json")) or end == "error 400"
        assert record.status in (200, int(end.split()[-1]) if end.startswith("error") else 200)

    await run_example(holds)
