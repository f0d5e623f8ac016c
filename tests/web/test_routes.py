"""Which paths and methods are served; others are refused and cost no engine anything."""

import pytest

from tests.net.engine import json_reply
from tests.net.harness import Harness
from tests.net.payloads import CHAT, EMBEDDINGS, STREAM, completion

UNKNOWN = [
    "/",
    "/v1",
    "/v1/",
    "/v1/completion",
    "/v1/completions/",
    "/v1/chat/completions/",
    "/V1/completions",
    "/v1/Completions",
    "//v1/completions",
    "/v1//completions",
    "/v1/./completions",
    "/v1/x/../completions",
    "/../v1/completions",
    "/v1/completions;a=b",
    "/v1/completions%00",
    "/v1/completions%20",
    "/v1/completions%2f",
    "/v1%2fcompletions/x",
    "/v1/%2e/completions",
    "/v1/completions%3fa=b",
    "/v1/completions%252f",
    "/v1/completions%ff",
    "/sleep",
    "/sleep?level=1",
    "/%73leep",
    "/wake_up",
    "/is_sleeping",
    "/reset_prefix_cache",
    "/collective_rpc",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/server_info",
    "/pause",
    "/inference/v1/abort_requests",
    "/v1/models/../load_lora_adapter",
    "/v1/completions/../../sleep",
    "http://engine/sleep",
    "http://127.0.0.1/wake_up",
]


@pytest.mark.parametrize("target", UNKNOWN)
async def test_an_unlisted_route_is_404_and_reaches_no_engine(
    harness: Harness, target: str
) -> None:
    engine, router = await harness.single()
    answer = await router.ask(target, STREAM)
    # `/` and a model, which is what a path under /v1/models/ names, are for GET.
    is_for_get = target == "/" or target.startswith("/v1/models/")
    assert answer.status == (405 if is_for_get else 404)
    assert answer.error["type"] in ("NotFoundError", "MethodNotAllowedError")
    assert engine.seen == 0


@pytest.mark.parametrize(
    "target",
    [
        "/v1/completions",
        "/v1/%63ompletions",
        "/v1%2fcompletions",
        "http://any.host/v1/completions",
        "http://any.host:81/v1/completions",
        "/v1/completions?a=b%20c&d=/../sleep",
        "/v1/completions#fragment",
    ],
)
async def test_every_spelling_reaches_the_engine_as_the_listed_path(
    harness: Harness, target: str
) -> None:
    engine, router = await harness.single()
    client = await router.send(target, completion())
    call = await engine.call()
    _, mark, query = target.partition("?")
    assert call.target == f"/v1/completions{mark}{query}".encode()
    assert call.values(b"host") == [f"127.0.0.1:{engine.port}".encode()]
    call.send(json_reply({}))
    await client.answer()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "TRACE"])
@pytest.mark.parametrize("path", [CHAT, EMBEDDINGS])
async def test_a_method_other_than_post_is_405_with_the_allowed_one(
    harness: Harness, method: str, path: str
) -> None:
    engine, router = await harness.single()
    answer = await (await router.client()).get(path, method)
    assert answer.status == 405
    assert answer.values(b"allow") == [b"POST"]
    assert answer.error["type"] == "MethodNotAllowedError"
    assert engine.seen == 0


@pytest.mark.parametrize(
    ("path", "status"),
    [(CHAT, 405), ("/nothing", 404), ("/health", 200), ("/ready", 200), ("/metrics", 200)],
)
async def test_an_answer_to_head_has_no_body(harness: Harness, path: str, status: int) -> None:
    router = await harness.router(await harness.engine())
    client = await router.client()
    for _ in range(2):  # a body would stand where the second answer is looked for
        answer = await client.get(path, "HEAD")
        assert (answer.status, answer.body) == (status, b"")


@pytest.mark.parametrize(
    ("path", "status", "allow"),
    [
        (CHAT, 204, [b"OPTIONS, POST"]),
        (f"{CHAT}?a=b", 204, [b"OPTIONS, POST"]),
        ("/health", 204, [b"GET, HEAD, OPTIONS"]),
        ("/v1/models/org/name", 204, [b"GET, HEAD, OPTIONS"]),
        ("/nothing", 404, []),
    ],
)
async def test_options_lists_the_methods_of_a_path(
    harness: Harness, path: str, status: int, allow: list[bytes]
) -> None:
    engine, router = await harness.single()
    client = await router.client()
    for _ in range(2):
        answer = await client.get(path, "OPTIONS")
        assert answer.status == status
        assert answer.values(b"allow") == allow
    assert engine.seen == 0
