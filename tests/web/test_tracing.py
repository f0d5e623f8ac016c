"""Traces of a real router, as an OTLP receiver gets them."""

import builtins
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from router.net.request.served_request import ServedRequest
from router.settings import Settings, SettingsError, load
from router.telemetry.exposition import OPEN_METRICS, PLAIN
from router.web.app import Router
from router.web.client_side import tracing_of
from tests.net.client import request
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import (
    CHAT,
    COMPLETIONS,
    DONE,
    EMBEDDINGS,
    STREAM,
    answer_remotely,
    completion,
    token,
)
from tests.telemetry.otlp import Collector, Span, collector

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = (b"traceparent", f"00-{TRACE}-{PARENT}-01".encode())
STATE = (b"tracestate", b"vendor=x")
TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-(0[0-3])")


@pytest.fixture
def receiver() -> Iterator[Collector]:
    with collector() as found:
        yield found


async def spans(receiver: Collector, count: int) -> list[Span]:
    """So many spans, and not one more."""
    await eventually(lambda: len(receiver.spans) >= count, lambda: receiver.spans)
    assert len(receiver.spans) == count, receiver.spans
    return receiver.spans


def context_of(call: Any) -> tuple[str, str, bool]:
    """Trace and span of the context that an engine got, and whether they are sampled."""
    [given] = call.values(b"traceparent")
    found = TRACEPARENT.fullmatch(given.decode())
    assert found is not None, given
    return found[1], found[2], bool(int(found[3]) & 1)


async def exemplars(router: Running) -> list[Any]:
    """The samples of /metrics that have one."""
    client = await router.client()
    accept = (b"accept", b"application/openmetrics-text")
    await client.send(request("/metrics", None, accept, method="GET"))
    answer = await client.answer("GET")
    assert answer.values(b"content-type") == [OPEN_METRICS.content_type.encode()]
    families = text_string_to_metric_families(answer.body.decode())  # type: ignore[no-untyped-call]
    return [sample for family in families for sample in family.samples if sample.exemplar]


async def stream(router: Running, engine: Any, *headers: tuple[bytes, bytes]) -> Any:
    """A whole stream of two tokens; the engine's request."""
    client = await router.send(COMPLETIONS, STREAM, *headers)
    call = await engine.call()
    call.stream_whole(token("a"), token("b"), DONE)
    assert (await client.answer()).status == 200
    return call


async def test_stream_has_two_spans(receiver: Collector, harness: Harness) -> None:
    engine, router = await harness.single(otlp_traces_endpoint=receiver.url)
    call = await stream(router, engine, CONTEXT, STATE, (b"x-request-id", b"r1"))
    await spans(receiver, 2)
    asked, leg = receiver.named("text_completion m"), receiver.named("decode")
    assert receiver.paths == ["/v1/traces"]
    assert (asked.kind, leg.kind) == ("SPAN_KIND_SERVER", "SPAN_KIND_CLIENT")
    assert (asked.trace_id, asked.parent_id, asked.state) == (TRACE, PARENT, "vendor=x")
    assert (leg.trace_id, leg.parent_id) == (TRACE, asked.span_id)
    assert context_of(call) == (TRACE, leg.span_id, True)
    assert call.values(b"tracestate") == [STATE[1]]
    assert asked.events == ["first_token"]
    assert not asked.is_error
    assert not leg.is_error
    assert 0 < leg.seconds <= asked.seconds
    assert asked.resource["service.name"] == "pd-router"
    first = asked.attributes.pop("gen_ai.response.time_to_first_chunk")
    assert 0 < first <= asked.seconds
    assert asked.attributes == {
        "http.request.method": "POST",
        "http.route": COMPLETIONS,
        "url.path": COMPLETIONS,
        "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "pd_router.request_id": "r1",
        "pd_router.outcome": "ok",
        "pd_router.mode": "direct",
        "pd_router.reason": "no_prefill_pool",
        "pd_router.estimated_input_tokens": 0,
    }
    assert leg.attributes == {
        "http.request.method": "POST",
        "url.path": COMPLETIONS,
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": engine.port,
        "pd_router.endpoint": engine.url,
    }


async def test_a_remote_prefill_is_a_leg_of_its_own(receiver: Collector, harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(
        decode, prefill=(prefill,), otlp_traces_endpoint=receiver.url, routing_threshold=0
    )
    client = await router.send(COMPLETIONS, STREAM)
    answer_remotely(first := await prefill.call())
    call = await decode.call()
    call.stream_whole(token("a"), DONE)
    await client.answer()
    await spans(receiver, 3)
    asked = receiver.named("text_completion m")
    legs = [receiver.named("prefill"), receiver.named("decode")]
    assert asked.parent_id == ""
    assert [leg.parent_id for leg in legs] == [asked.span_id] * 2
    assert context_of(first)[:2] == (asked.trace_id, legs[0].span_id)
    assert context_of(call)[:2] == (asked.trace_id, legs[1].span_id)
    assert legs[0].attributes["server.port"] == prefill.port
    assert asked.attributes["pd_router.mode"] == "remote_prefill"


async def test_failed_leg_has_its_span(receiver: Collector, harness: Harness) -> None:
    good, bad = await harness.engine(), await harness.engine()
    router = await harness.router(
        *(bad, good), otlp_traces_endpoint=receiver.url, load_balancing_strategy="round_robin"
    )
    bad.refuse()
    bad.drop()
    await stream(router, good)
    await spans(receiver, 3)
    asked = receiver.named("text_completion m")
    failed, done = (span for span in receiver.spans if span.name == "decode")
    assert (failed.is_error, failed.attributes["error.type"]) == (True, "refused")
    assert failed.message
    assert failed.attributes["server.port"] == bad.port
    assert not done.is_error
    assert not asked.is_error
    assert asked.attributes["pd_router.fallbacks"] == ["decode:refused"]


async def test_a_stream_that_breaks_is_an_error(receiver: Collector, harness: Harness) -> None:
    _, _, client, call = await harness.stream(otlp_traces_endpoint=receiver.url)
    call.stream(token("a"))
    await (await client.begin()).until(token("a"))
    call.reset()
    await spans(receiver, 2)
    asked, leg = receiver.named("text_completion m"), receiver.named("decode")
    assert (asked.is_error, asked.attributes["error.type"]) == (True, "broken")
    assert asked.attributes["http.response.status_code"] == 200
    assert asked.events == ["first_token"]
    assert (leg.is_error, leg.attributes["error.type"]) == (True, "broken")


def test_wrong_opentelemetry_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "abc")
    settings = load({"decode": ["http://d0"], "otlp_traces_endpoint": "http://127.0.0.1:9"})
    with pytest.raises(SettingsError, match="OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"):
        tracing_of(settings)


async def test_an_engines_error_marks_both(receiver: Collector, harness: Harness) -> None:
    engine, router = await harness.single(otlp_traces_endpoint=receiver.url)
    engine.answer_all(lambda call: call.send(b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n"))
    assert (await router.ask(COMPLETIONS, completion())).status == 500
    await spans(receiver, 2)
    for name in ("text_completion m", "decode"):
        span = receiver.named(name)
        assert (span.is_error, span.attributes["error.type"]) == (True, "500")
        assert span.events == []


async def test_clients_mistake_is_no_error(receiver: Collector, harness: Harness) -> None:
    router = await harness.router(await harness.engine(), otlp_traces_endpoint=receiver.url)
    assert (await router.ask(CHAT, b"{", (b"content-type", b"application/json"))).status == 400
    [span] = await spans(receiver, 1)
    assert span.name == f"POST {CHAT}"
    assert not span.is_error
    assert span.attributes["http.response.status_code"] == 400


async def test_a_client_that_leaves_ends_both_spans(receiver: Collector, harness: Harness) -> None:
    engine, router = await harness.single(otlp_traces_endpoint=receiver.url)
    client = await router.send(COMPLETIONS, STREAM)
    await engine.call()
    client.leave()
    await spans(receiver, 2)
    for span in receiver.spans:
        assert span.attributes["pd_router.outcome"] == "client_left"
        assert not span.is_error


async def test_requests_without_generation_are_named_by_route(
    receiver: Collector, harness: Harness
) -> None:
    engine, router = await harness.single(otlp_traces_endpoint=receiver.url)
    engine.answer_all(lambda call: call.send(b"HTTP/1.1 200 X\r\ncontent-length: 2\r\n\r\n{}"))
    await router.ask(EMBEDDINGS, {"model": "m", "input": "x"})
    await spans(receiver, 2)
    assert "gen_ai.operation.name" not in receiver.named(f"POST {EMBEDDINGS}").attributes


@pytest.mark.parametrize("flag", ["00", "01"])
async def test_the_clients_sampling_flag_decides_about_export(
    receiver: Collector, harness: Harness, flag: str
) -> None:
    engine = await harness.engine()
    router = await harness.router(
        engine, otlp_traces_endpoint=receiver.url, trace_sample=float(flag == "00")
    )
    given = (b"traceparent", f"00-{TRACE}-{PARENT}-{flag}".encode())
    call = await stream(router, engine, given)
    found = context_of(call)
    assert (found[0], found[2]) == (TRACE, flag == "01")
    await router.stop()
    harness.routers.clear()
    assert len(receiver.spans) == (2 if flag == "01" else 0)


@pytest.mark.parametrize("is_sampled", [True, False])
async def test_the_first_tokens_bucket_names_a_trace_that_was_exported(
    receiver: Collector, harness: Harness, *, is_sampled: bool
) -> None:
    engine, router = await harness.single(otlp_traces_endpoint=receiver.url)
    given = f"00-{TRACE}-{PARENT}-0{int(is_sampled)}".encode()
    await stream(router, engine, (b"traceparent", given))
    found: dict[str, set[str]] = {}
    for sample in await exemplars(router):
        name = sample.name.removesuffix("_bucket")
        found.setdefault(name, set()).add(sample.exemplar.labels["trace_id"])
    named = {
        "pd_router_request_duration_seconds",
        "pd_router_time_to_first_byte_seconds",
        "pd_router_endpoint_time_to_first_token_seconds",
    }
    assert found == ({name: {TRACE} for name in named} if is_sampled else {})


@pytest.mark.parametrize("is_sampled", [True, False])
async def test_the_first_token_of_a_prefill_engine_names_its_trace_too(
    receiver: Collector, harness: Harness, *, is_sampled: bool
) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(
        decode, prefill=(prefill,), otlp_traces_endpoint=receiver.url, routing_threshold=0
    )
    client = await router.client()
    given = f"00-{TRACE}-{PARENT}-0{int(is_sampled)}".encode()
    await client.send(request(COMPLETIONS, STREAM, (b"traceparent", given)))
    answer_remotely(await prefill.call())
    call = await decode.call()
    call.stream_whole(token("a"), DONE)
    await client.answer()
    named = [
        sample.exemplar.labels["trace_id"]
        for sample in await exemplars(router)
        if sample.name == "pd_router_endpoint_time_to_first_token_seconds_bucket"
        and sample.labels["role"] == "prefill"
    ]
    assert named == ([TRACE] if is_sampled else [])


async def test_without_traces_metrics_are_plain_text(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    client = await router.client()
    accept = (b"accept", b"application/openmetrics-text")
    await client.send(request("/metrics", None, accept, method="GET"))
    answer = await client.answer("GET")
    assert answer.values(b"content-type") == [PLAIN.content_type.encode()]


async def test_a_context_that_is_none_begins_a_trace(receiver: Collector, harness: Harness) -> None:
    engine, router = await harness.single(otlp_traces_endpoint=receiver.url)
    given = (b"traceparent", b"00-zz\xff-1-01")
    call = await stream(router, engine, given, (b"tracestate", b"\xff=,,"))
    assert context_of(call)[0] != TRACE
    await spans(receiver, 2)
    assert receiver.named("text_completion m").parent_id == ""


async def test_a_long_name_of_a_model_is_cut(receiver: Collector, harness: Harness) -> None:
    router = await harness.router(await harness.engine(), otlp_traces_endpoint=receiver.url)
    asked = {"model": "x" * 500, "prompt": "hi"}
    assert (await router.ask(COMPLETIONS, asked)).status == 404
    [span] = await spans(receiver, 1)
    assert len(span.name) < 300
    assert len(span.attributes["gen_ai.request.model"]) == 256


async def test_queued_spans_are_exported_at_the_end(receiver: Collector, harness: Harness) -> None:
    engine, router = await harness.single(otlp_traces_endpoint=receiver.url)
    await stream(router, engine)
    await router.stop()
    harness.routers.clear()
    assert len(receiver.spans) == 2


async def test_a_collector_that_is_stuck_costs_spans_and_no_request(
    receiver: Collector, harness: Harness, caplog: pytest.LogCaptureFixture, complaints: list[str]
) -> None:
    engine, router = await harness.single(otlp_traces_endpoint=receiver.url)
    receiver.is_stuck.set()
    with caplog.at_level(logging.CRITICAL):
        for _ in range(3):
            await stream(router, engine)
        await router.stop()
    harness.routers.clear()
    assert receiver.spans == []
    assert all("export" in line.lower() or "spans" in line for line in complaints)
    complaints.clear()


# Off.


async def test_without_a_collector_nothing_is_traced_and_contexts_pass(harness: Harness) -> None:
    engine, router = await harness.single()
    client = await router.send(COMPLETIONS, STREAM, CONTEXT, STATE)
    call = await engine.call()
    [served] = router.router.handler.active
    assert isinstance(served, ServedRequest)
    assert served.trace is None
    assert call.values(CONTEXT[0]) == [CONTEXT[1]]
    assert call.values(STATE[0]) == [STATE[1]]
    call.stream_whole(token("a"), DONE)
    await client.answer()


def test_without_the_extra_the_error_has_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name=name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SettingsError, match=r"pip install 'pd-router\[tracing\]'"):
        Router(Settings(decode=["http://d0"], otlp_traces_endpoint="http://c:4318"))


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("https://c/", "https://c/v1/traces"),
        ("http://c:4318/otlp/v1/traces", "http://c:4318/otlp/v1/traces"),
    ],
)
def test_the_path_for_traces_is_added_where_there_is_none(given: str, taken: str) -> None:
    assert (
        load({"decode": "http://d0", "otlp_traces_endpoint": given}).otlp_traces_endpoint == taken
    )


@pytest.mark.parametrize("given", ["c:4318", "grpc://c:4317", "http://"])
def test_invalid_urls_are_refused(given: str) -> None:
    with pytest.raises(SettingsError, match="--otlp-traces-endpoint"):
        load({"decode": "http://d0", "otlp_traces_endpoint": given})
