import asyncio
import re
from collections.abc import Mapping

import orjson
import pytest
from aiohttp import web

from benchmarks.gate.endpoint.control_client import Answer, control_client
from benchmarks.gate.endpoint.readiness import (
    NotReady,
    ReadinessLimits,
    check_warm_up,
    count,
    question,
    served,
    wait,
)

SOON = ReadinessLimits(tries=5.0, between=0.01, window=20.0)
SHORT = ReadinessLimits(tries=0.1, between=0.02, window=0.3)


def said(content: object) -> bytes:
    return orjson.dumps({"choices": [{"message": {"content": content}}]})


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, said("a"), None),
        (200, said(""), "no content"),
        (200, said(None), "no content"),
        (200, b'{"choices":[]}', r"no choices\[0\]"),
        (200, b'{"choices":[{}]}', r"no choices\[0\]"),
        (200, b"[]", "not a JSON object"),
        (200, b"<html>", "not a JSON object"),
        (503, b'{"error":{"message":"no engine"}}', "status 503: no engine"),
        (404, b"", "status 404"),
    ],
)
def test_only_a_200_with_content_is_served(status: int, body: bytes, why: str | None) -> None:
    found = served(Answer(status, body))
    assert found is None if why is None else found is not None
    if why is not None:
        with pytest.raises(AssertionError, match=why):
            raise AssertionError(found)


class Endpoint:
    """Gives these answers, the last one forever, and records requests."""

    def __init__(self, *answers: tuple[int, bytes] | None) -> None:
        self.answers = list(answers)
        self.asked: list[object] = []
        self.headers: list[str | None] = []

    async def chat(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        self.headers.append(request.headers.get("authorization"))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await asyncio.Event().wait()
            raise AssertionError
        return web.Response(status=answer[0], body=answer[1])


NOTHING: Mapping[str, tuple[int, bytes]] = {}
MODELS = {"/v1/models": (200, b'{"data":[{"id":"llama"},{"id":"qwen"}]}'), "/ready": (200, b"{}")}
ADMIN = {"/ready": (200, b'{"status":"ready"}')}


async def waited(
    endpoint: Endpoint,
    limits: ReadinessLimits,
    reasons: list[str | None] | None = None,
    others: Mapping[str, tuple[int, bytes]] = NOTHING,
) -> list[str]:
    """The output meanwhile."""
    lines: list[str] = []
    left = [None] if reasons is None else list(reasons)

    async def unusable() -> str | None:
        return left.pop(0) if len(left) > 1 else left[0]

    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.chat)

    async def other(request: web.Request) -> web.Response:
        status, body = others.get(request.path, (404, b""))
        return web.Response(status=status, body=body)

    app.router.add_get("/{path:.*}", other)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with control_client(_url(runner), {"Authorization": "Bearer k"}) as asked:
            await wait(asked, "M", unusable, limits, lines.append)
    finally:
        await runner.cleanup()
    return lines


def _url(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://{host}:{port}"


@pytest.mark.usefixtures("calm")
async def test_it_retries_until_an_answer_has_content() -> None:
    endpoint = Endpoint((503, b""), (200, said("")), (200, said("hello")))
    lines = await waited(endpoint, SOON)
    assert endpoint.asked == [question("M")] * 3
    assert question("M") == {
        "model": "M",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 4,
    }
    assert endpoint.headers == ["Bearer k"] * 3
    assert ["status 503" in lines[0], "no content" in lines[1], len(lines)] == [True, True, 2]


@pytest.mark.usefixtures("calm")
async def test_one_answer_is_enough_while_workers_are_waited_for() -> None:
    endpoint = Endpoint((200, said("a")))
    lines = await waited(endpoint, SOON, ["1 of 2 workers are usable", None])
    assert len(endpoint.asked) == 1
    assert "1 of 2 workers are usable" in lines[0]


@pytest.mark.usefixtures("calm")
async def test_the_window_ends_it_whatever_the_endpoint_does() -> None:
    for answer, why in (((503, b""), "status 503"), (None, "no answer within")):
        with pytest.raises(NotReady, match=f"timed out waiting for inference endpoint.*{why}") as e:
            await waited(Endpoint(answer), SHORT)
        assert not e.value.served


@pytest.mark.parametrize(
    ("status", "others", "advice"),
    [
        (404, MODELS, "the endpoint serves llama, qwen; give one of them by --model"),
        (404, ADMIN, "this is the router's admin port; give the public one by --url"),
        (404, NOTHING, "nothing is served there; give the base URL"),
        (401, NOTHING, "give the key by --api-key-env or --api-key-file"),
        (403, NOTHING, "give the key by --api-key-env or --api-key-file"),
        (400, MODELS, "the endpoint does not take the request"),
    ],
)
async def test_three_identical_refusals_end_the_wait_with_the_remedy(
    status: int, others: Mapping[str, tuple[int, bytes]], advice: str
) -> None:
    endpoint = Endpoint((status, b'{"error":{"message":"no"}}'))
    with pytest.raises(NotReady, match=f"status {status}: no, 3 times: {re.escape(advice)}"):
        await waited(endpoint, SOON, others=others)
    assert len(endpoint.asked) == 3


async def test_temporary_errors_do_not_end_the_wait() -> None:
    no, other, busy = (404, b""), (401, b""), (503, b"")
    endpoint = Endpoint(no, no, busy, no, no, other, other, busy, busy, busy, (200, said("a")))
    await waited(endpoint, SOON)
    assert len(endpoint.asked) == 11


def test_a_warm_up_that_is_refused_as_a_whole_ends_the_run() -> None:
    with pytest.raises(NotReady, match="all 3 warm-up requests failed in the same way: no"):
        check_warm_up([(404, "no")] * 3)
    for fine in ([], [(404, "no")] * 2, [(404, "no"), (200, None)] * 2, [(503, "busy")] * 3):
        check_warm_up(fine)


@pytest.mark.usefixtures("calm")
async def test_missing_workers_are_under_provisioned() -> None:
    with pytest.raises(NotReady, match=r"under-provisioned after 0\.3 s: w1 is down") as e:
        await waited(Endpoint((200, said("a"))), SHORT, ["w1 is down"])
    assert e.value.served


@pytest.mark.usefixtures("calm")
async def test_an_answer_that_is_too_long_is_none() -> None:
    with pytest.raises(NotReady, match="larger than 8192 bytes"):
        await waited(Endpoint((200, said("a" * 9000))), SHORT)


async def test_tokens_are_counted_where_the_server_counts() -> None:
    asked: list[object] = []

    async def tokenize(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"count": 7})

    async def strange(_request: web.Request) -> web.Response:
        return web.json_response({"count": True})

    for handler, found in ((tokenize, 7), (strange, None), (None, None)):
        app = web.Application()
        if handler is not None:
            app.router.add_post("/tokenize", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with control_client(_url(runner), {}) as session:
            assert await count(session, "M", "text") == found
        await runner.cleanup()
    assert asked == [{"model": "M", "prompt": "text", "add_special_tokens": False}]


async def test_an_absent_server_counts_no_answer() -> None:
    async with control_client("http://127.0.0.1:9", {}) as session:
        assert await count(session, "M", "text") is None
