"""--path-prefix: all routes of clients below a path."""

from pathlib import Path

import orjson
import pytest

from router.net.client.request_parser import without_prefix
from tests.net.engine import json_reply
from tests.net.harness import Harness
from tests.net.payloads import CHAT, MESSAGES, OK, completion


@pytest.mark.parametrize(
    ("target", "below"),
    [
        (b"/llm/v1/models", b"/v1/models"),
        (b"/llm/v1/models?a=/llm/", b"/v1/models?a=/llm/"),
        (b"/llm/llm/v1/models", b"/llm/v1/models"),
        (b"/llm", b"/"),
        (b"/llm/", b"/"),
        (b"/llm?a=b", b"/?a=b"),
        (b"/llms/v1/models", b"/llms/v1/models"),
        (b"/v1/models", b"/v1/models"),
        (b"/v1/llm/models", b"/v1/llm/models"),
        (b"/ll%6d/v1/models", b"/ll%6d/v1/models"),
        (b"*", b"*"),
    ],
)
def test_the_prefix_is_removed_where_it_is_a_whole_path(target: bytes, below: bytes) -> None:
    assert without_prefix(target, b"/llm") == below


async def test_all_routes_are_served_below_the_prefix(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, path_prefix="/llm")
    engine.answer_all(lambda call: call.send(OK))
    targets: list[bytes] = []
    engine.on_call = lambda call: targets.append(call.target)
    for _ in range(2):  # the second time the head is known
        answer = await router.ask(f"/llm{CHAT}", completion())
        assert answer.status == 200
    assert targets == [CHAT.encode()] * 2
    client = await router.client()
    for path in ("/v1/models", "/health", "/ready", "/metrics", "/endpoints", "/dashboard", "/"):
        assert (await client.get(f"/llm{path}")).status == 200, path
    assert (await client.get("/llm/llm/health")).status == 404
    servers = orjson.loads((await client.get("/llm/openapi.json")).body)["servers"]
    assert servers[0] == {"url": "/llm"}


async def test_probes_and_clients_without_the_prefix_are_served_too(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, path_prefix="/llm")
    engine.answer_all(lambda call: call.send(OK))
    client = await router.client()
    assert (await client.get("/health")).status == 200
    assert (await client.get("/metrics")).status == 200
    assert (await router.ask(CHAT, completion())).status == 200


async def test_errors_have_the_format_of_the_api_below_the_prefix(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, path_prefix="/llm")
    assert orjson.loads((await router.ask(f"/llm{MESSAGES}", b"x")).body)["type"] == "error"
    assert (await router.ask(f"/llm{CHAT}", b"x")).error["code"] == 400
    refusal = {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}}
    engine.answer_all(lambda call: call.send(json_reply(refusal, 400)))
    answer = await router.ask(f"/llm{MESSAGES}", completion())
    assert answer.status == 400
    client = await router.client()
    assert orjson.loads((await client.get(f"/llm{MESSAGES}")).body)["type"] == "error"
    answer = await client.get("/llm/v1/model")
    assert answer.error["message"] == (
        "GET /llm/v1/model: no such route. Did you mean GET /v1/models?"
    )


async def test_pages_may_ask_for_the_methods_below_the_prefix(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), path_prefix="/llm")
    client = await router.send(f"/llm{CHAT}", None, method="OPTIONS")
    answer = await client.answer("OPTIONS")
    assert (answer.status, answer.values(b"allow")) == (204, [b"OPTIONS, POST"])


async def test_a_key_is_needed_below_the_prefix_too(harness: Harness, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a sk-0123456789abcdef\n")
    engine = await harness.engine()
    router = await harness.router(engine, path_prefix="/llm", api_key_file=keys)
    client = await router.client()
    assert (await client.get("/llm/v1/models")).status == 401
    assert (await router.ask(f"/llm{CHAT}", completion())).status == 401
