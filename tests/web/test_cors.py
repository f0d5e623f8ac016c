"""Web pages of other origins: none may read an answer, or those that the operator names."""

from typing import Any

import pytest

from tests.net.client import Answer, request
from tests.net.engine import json_reply
from tests.net.harness import Harness, Running
from tests.net.payloads import CHAT, COMPLETIONS, DONE, STREAM, completion, token

PAGE = b"https://app.example"
ORIGIN = (b"origin", PAGE)
PREFLIGHT = (
    ORIGIN,
    (b"access-control-request-method", b"POST"),
    (b"access-control-request-headers", b"authorization,content-type"),
)
OPEN: dict[str, Any] = {"cors_allow_origin": (PAGE.decode(),)}
OK = json_reply(
    {"choices": []},
    200,
    b"access-control-allow-origin: *",
    b"access-control-allow-credentials: true",
)


def cors(answer: Answer) -> dict[bytes, bytes]:
    """The headers of the CORS protocol; none stands twice."""
    found = [pair for pair in answer.headers if pair[0].startswith(b"access-control-")]
    assert len(dict(found)) == len(found)
    return dict(found)


async def options(router: Running, path: str) -> Answer:
    client = await router.send(path, None, *PREFLIGHT, method="OPTIONS")
    return await client.answer("OPTIONS")


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/models"])
async def test_by_default_no_page_may_even_if_engines_let_all(harness: Harness, path: str) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(OK))
    router = await harness.router(engine)
    assert cors(await options(router, path)) == {}
    assert cors(await router.ask(COMPLETIONS, completion(), ORIGIN)) == {}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/v1/models"])
async def test_a_preflight_needs_no_key(
    harness: Harness, path: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("team 0123456789abcdef\n")
    router = await harness.router(await harness.engine(), api_key_file=keys, **OPEN)
    answer = await options(router, path)
    assert (answer.status, answer.body) == (204, b"")
    assert cors(answer)[b"access-control-allow-origin"] == PAGE
    assert cors(answer)[b"access-control-allow-headers"] == b"authorization,content-type"


async def test_then_it_may_read_answers_and_streams(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(OK))
    router = await harness.router(engine, **OPEN)
    client = await router.client()
    for _ in range(2):  # the second time the head is known
        answer = await client.ask(COMPLETIONS, completion(), ORIGIN)
        assert cors(answer)[b"access-control-allow-origin"] == PAGE
        assert b"access-control-allow-credentials" not in cors(answer)
    engine.answer_all(None)
    await client.send(request(COMPLETIONS, STREAM, ORIGIN))
    call = await engine.call()
    call.stream_whole(token("a"), DONE)
    assert cors(await client.answer())[b"access-control-allow-origin"] == PAGE
    other = await client.ask("/v1/nothing", {})
    assert cors(other) == {}  # it came from no page


async def test_web_pages_may_read_refusals(harness: Harness) -> None:
    router = await harness.router(await harness.engine(listening=False), ready=False, **OPEN)
    client = await router.client()
    for path, body, status in (
        (COMPLETIONS, completion(), 503),
        (COMPLETIONS, b"{", 400),
        ("/v1/models/x", None, 404),
    ):
        await client.send(request(path, body, ORIGIN, method="GET" if body is None else "POST"))
        answer = await client.answer()
        assert answer.status == status
        assert cors(answer)[b"access-control-allow-origin"] == PAGE


async def test_other_pages_may_not(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(OK))
    router = await harness.router(engine, **OPEN)
    answer = await router.ask(COMPLETIONS, completion(), (b"origin", b"https://evil.example"))
    assert answer.status == 200
    assert cors(answer) == {}
    assert answer.values(b"vary") == [b"origin"]


async def test_the_next_request_on_a_connection_has_headers_of_its_own(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(OK))
    router = await harness.router(engine, **OPEN)
    client = await router.client()
    await client.send(
        request(COMPLETIONS, completion(), ORIGIN) + request(COMPLETIONS, completion())
    )
    assert cors(await client.answer()) != {}
    assert cors(await client.answer()) == {}
