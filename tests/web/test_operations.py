"""The router's operations routes."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router import __version__
from router.core.health import State
from router.settings import Settings
from router.telemetry.exposition import TextFormat
from router.web.app import Router
from tests.net.client import SECONDS, request
from tests.net.engine import Call, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM, answer_remotely, completion, token

OFTEN: dict[str, Any] = {"health_check_interval": 0.01, "engine_stats_interval": 0.01}


async def test_health_is_200_while_the_process_works(harness: Harness) -> None:
    router = await harness.router(await harness.engine(listening=False), ready=False)
    answer = await (await router.client()).get("/health")
    assert (answer.status, answer.body) == (200, b"")


def _made(router: Router) -> tuple[bool, ...]:
    """Whether the applications are there: that for clients, and that for operators."""
    return tuple("app" in vars(each) for each in (router.operations, router.operators.operations))


async def test_an_application_is_made_for_the_first_request_that_needs_it(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine, admin_port=0)
    assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert _made(router.router) == (False, False)
    assert (await (await router.client()).get("/health")).status == 200
    assert _made(router.router) == (True, False)


@pytest.mark.parametrize("admin_port", [None, 0])
def test_a_router_that_is_prepared_has_those_that_can_be_reached(admin_port: int | None) -> None:
    router = Router(Settings(decode=["http://127.0.0.1:9"], admin_port=admin_port))
    router.prepare()
    assert _made(router) == (True, admin_port is not None)


async def test_version_is_the_packages(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    assert (await (await router.client()).get("/version")).json == {
        "version": __version__,
        "server": "pd-router",
    }


async def test_ready_follows_the_decode_engines(harness: Harness) -> None:
    prefill = await harness.engine()
    decode = await harness.engine(listening=False)
    router = await harness.router(decode, prefill=(prefill,), ready=False, **OFTEN)
    await router.usable(prefill)
    client = await router.client()
    answer = await client.get("/ready")
    assert answer.status == 503
    assert answer.error["type"] == "ServiceUnavailableError"
    assert answer.values(b"retry-after") == [b"1"]
    await decode.listen()  # an engine that was absent at the start joins
    await router.usable(decode)
    answer = await client.get("/ready")
    assert (answer.status, answer.json) == (200, {"status": "ready"})
    decode.refuse()
    decode.drop()
    member = router.router.fleet.member(router.endpoint(decode))
    await eventually(lambda: member.health.state is State.DOWN)
    assert (await client.get("/ready")).status == 503


async def test_without_prefill_engines_requests_are_answered_directly(harness: Harness) -> None:
    prefill = await harness.engine(listening=False)
    decode = await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), ready=False)
    await router.usable(decode)
    decode.answer_all(lambda call: call.send(json_reply({})))
    assert (await router.ask(COMPLETIONS, completion())).status == 200


async def test_models_are_those_of_usable_decode_engines(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    one.serve_model("a", "shared")
    other.serve_model("shared", "b")
    router = await harness.router(one, other)
    client = await router.client()
    answer = await client.get("/v1/models")
    assert answer.json["object"] == "list"
    assert [card["id"] for card in answer.json["data"]] == ["a", "shared", "b"]
    assert (await client.get("/v1/models/a")).json == {"id": "a", "object": "model"}


async def test_the_models_of_a_down_engine_are_not_listed(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    one.serve_model("a", "shared")
    other.serve_model("shared", "b")
    router = await harness.router(one, other, **OFTEN)
    client = await router.client()
    other.refuse()
    other.drop()
    member = router.router.fleet.member(router.endpoint(other))
    await eventually(lambda: member.health.state is State.DOWN)
    answer = await client.get("/v1/models")
    assert [card["id"] for card in answer.json["data"]] == ["a", "shared"]


async def test_a_model_name_may_hold_a_slash(harness: Harness) -> None:
    engine = await harness.engine()
    engine.serve_model("org/name")
    router = await harness.router(engine)
    client = await router.client()
    for path in ("/v1/models/org/name", "/v1/models/org%2Fname"):
        assert (await client.get(path)).json["id"] == "org/name"


async def test_an_unlisted_model_is_404(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    answer = await (await router.client()).get("/v1/models/none")
    assert answer.status == 404
    assert answer.error["param"] == "model"
    assert answer.error["message"] == "The model `none` does not exist."


async def test_requests_go_only_to_engines_that_serve_their_model(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    one.serve_model("a")
    other.serve_model("b")
    router = await harness.router(one, other)
    for engine in (one, other):
        engine.answer_all(lambda call: call.send(json_reply({})))
    for _ in range(4):
        assert (await router.ask(COMPLETIONS, {"model": "b", "prompt": "x"})).status == 200
    assert (one.seen, other.seen) == (0, 4)


# Refusals.


@pytest.mark.parametrize("path", ["/nothing", "/v1/models/", "/favicon.ico", "/%00", "/a%0d%0ab"])
async def test_an_unknown_path_is_404_in_openais_shape(harness: Harness, path: str) -> None:
    router = await harness.router(await harness.engine())
    answer = await (await router.client()).get(path)
    assert answer.status == 404
    assert answer.error["type"] == "NotFoundError"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "POST /v1/chat/completions"),
        ("/v1/chat/completions/", "POST /v1/chat/completions"),
        ("/v1/v1/chat/completions", "POST /v1/chat/completions"),
        ("/openai/v1/completions", "POST /v1/completions"),
        ("/completions", "POST /v1/completions"),
        ("/v1/v1/score", "POST /v1/score"),
        ("/v1/chat/completion", "POST /v1/chat/completions"),
        ("/models", "GET /v1/models"),
        ("/v1/models/", "GET /v1/models"),
        ("/healthz", "GET /health"),
    ],
)
async def test_a_path_that_is_nearly_one_is_404_with_the_one_that_was_meant(
    harness: Harness, path: str, meant: str
) -> None:
    router = await harness.router(await harness.engine())
    answer = await (await router.client()).get(path)
    assert answer.status == 404
    assert answer.error["type"] == "NotFoundError"
    assert answer.error["message"] == f"GET {path}: no such route. Did you mean {meant}?"


@pytest.mark.parametrize("path", ["/sleep", "/x", "//", "/v1/load_lora_adapter", "/a" * 5000])
async def test_nothing_is_guessed_for_a_path_that_is_like_none(harness: Harness, path: str) -> None:
    router = await harness.router(await harness.engine())
    answer = await (await router.client()).get(path)
    assert answer.status == 404
    assert answer.error["message"] == f"GET {path}: no such route."


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_a_wrong_method_is_405_with_the_allowed_one(harness: Harness, method: str) -> None:
    router = await harness.router(await harness.engine())
    answer = await (await router.client()).get("/health", method)
    assert answer.status == 405
    assert answer.values(b"allow") == [b"GET, HEAD, OPTIONS"]
    assert answer.error["type"] == "MethodNotAllowedError"


@pytest.mark.parametrize("host", [b"", b"[", b"a b", b"a/b", b"]:x", b"\xff", b"h:99999999"])
async def test_an_error_has_its_format_for_any_host(harness: Harness, host: bytes) -> None:
    router = await harness.router(await harness.engine())
    client = await router.client()
    await client.send(b"GET /nothing HTTP/1.1\r\nhost: %b\r\n\r\n" % host)
    answer = await client.answer("GET")
    assert answer.status == 404
    assert answer.error["message"] == "GET /nothing: no such route."


async def test_a_fault_of_our_own_is_500_in_openais_shape(
    harness: Harness, complaints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    router = await harness.router(await harness.engine())

    def broken(_: TextFormat) -> bytes:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(router.router.metrics, "state", broken)
    answer = await (await router.client()).get("/metrics")
    assert answer.status == 500
    assert answer.error["type"] == "InternalServerError"
    assert b"secret" not in answer.body
    assert "ZeroDivisionError: secret" in complaints[0]
    complaints.clear()


# Metrics.


class Metrics:
    """One scrape of the router."""

    def __init__(self, text: str) -> None:
        self._samples = [s for f in text_string_to_metric_families(text) for s in f.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels."""
        found = [
            sample.value
            for sample in self._samples
            if sample.name == f"pd_router_{name}" and labels.items() <= sample.labels.items()
        ]
        assert found, (name, labels)
        return sum(found)


async def _metrics(router: Running) -> Metrics:
    answer = await (await router.client()).get("/metrics")
    assert answer.status == 200
    assert answer.values(b"content-type")[0].startswith(b"text/plain; version=0.0.4")
    return Metrics(answer.body.decode())


async def test_metrics_cover_requests_legs_and_connections(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), routing_threshold=0)
    prefill.answer_all(answer_remotely)

    def script(call: Call) -> None:
        call.stream_whole(token("a"), DONE)

    decode.answer_all(script)
    assert (await router.ask(COMPLETIONS, STREAM)).status == 200
    assert (await router.ask(COMPLETIONS, b"{")).status == 400
    client = await router.client()
    decode.answer_all(lambda call: None)
    await client.send(request(COMPLETIONS, STREAM))
    await eventually(lambda: decode.seen == 2)
    value = await _metrics(router)
    ours = {"route": COMPLETIONS}
    assert value("requests_total", **ours, mode="remote_prefill", status="200", outcome="ok") == 1
    assert value("requests_total", **ours, mode="none", status="400", outcome="error") == 1
    assert value("engine_answers_total", role="prefill", status="200") == 2
    assert value("engine_answers_total", role="decode", status="200") == 1
    assert value("engine_failures_total", role="decode", kind="reset") == 0
    assert value("endpoint_in_flight_requests", role="decode") == 1
    assert value("endpoint_in_flight_requests", role="prefill") == 0
    assert value("engine_connections", role="decode", state="active") == 1
    assert value("engine_connections", role="prefill", state="idle") == 1
    client.leave()
    await router.records(3)
    value = await _metrics(router)
    assert value("requests_total", **ours, outcome="client_left", status="none") == 1
    assert value("endpoint_in_flight_requests", role="decode") == 0
    assert value("endpoint_in_flight_tokens", role="decode") == 0


async def test_the_event_loop_turns_while_counts_are_put_together(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = await harness.router(await harness.engine())
    turns = 0

    def pieces(_: TextFormat) -> Iterator[bytes]:
        for number in range(3):
            assert turns >= number  # the loop continues meanwhile
            asyncio.get_running_loop().call_soon(turn)
            yield b"# %d\n" % number

    def turn() -> None:
        nonlocal turns
        turns += 1

    monkeypatch.setattr("router.telemetry.exposition.TURN_SECONDS", 0.0)
    monkeypatch.setattr(router.router.metrics, "counts", pieces)
    client = await router.client()
    text = (await client.get("/metrics")).body
    assert text.startswith(b"# 0\n# 1\n# 2\n")
    assert b"pd_router_endpoint_state" in text


async def test_a_scrape_lets_the_event_loop_turn_between_its_pieces(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.telemetry.exposition.TURN_SECONDS", 0.0)
    router = await harness.router(await harness.engine())
    metrics, loop = router.router.metrics, asyncio.get_running_loop()
    turned: list[bool] = []

    def observed(pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            turned.append(False)
            loop.call_soon(turned.__setitem__, -1, True)
            yield piece

    count, see = metrics.counts, metrics.state
    monkeypatch.setattr(metrics, "counts", lambda asked: observed(count(asked)))
    monkeypatch.setattr(metrics, "state", lambda asked: observed(see(asked)))
    value = await _metrics(router)
    assert value("endpoint_state", role="decode", state="up") == 1
    assert len(turned) > 20
    assert all(turned)


async def test_client_input_never_becomes_a_label(harness: Harness) -> None:
    _, router = await harness.single()
    for number in range(5):
        await router.ask(f"/v1/path-{number}", completion())
        await router.ask(COMPLETIONS, {"model": f"unknown-{number}", "prompt": "x"})
    answer = await (await router.client()).get("/metrics")
    assert b"path-" not in answer.body
    assert b"unknown-" not in answer.body


async def test_an_operation_over_ipv6_without_a_host_header_is_answered(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), host="::1")
    reader, writer = await asyncio.open_connection("::1", router.port)
    writer.write(b"GET /nothing HTTP/1.0\r\n\r\n")
    async with asyncio.timeout(SECONDS):
        assert (await reader.read()).startswith(b"HTTP/1.1 404 ")
    writer.close()
