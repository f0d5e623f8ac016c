"""Requests that name their session in a header."""

from typing import Any

import pytest

from tests.net.client import request
from tests.net.engine import json_reply
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, completion


async def _spread(harness: Harness, *headers: tuple[bytes, bytes], **settings: Any) -> list[int]:
    """How many of ten requests with these headers each of three engines gets."""
    engines = [await harness.engine() for _ in range(3)]
    for engine in engines:
        engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(*engines, **settings)
    client = await router.client()
    for _ in range(10):
        await client.send(request(COMPLETIONS, completion(), *headers))
        assert (await client.answer()).status == 200
    return sorted(engine.seen for engine in engines)


@pytest.mark.parametrize("strategy", ["round_robin", "least_loaded", "shortest_expected_delay"])
async def test_a_session_stays_on_its_engine(harness: Harness, strategy: str) -> None:
    settings = {"session_header": "X-Session-Id", "load_balancing_strategy": strategy}
    assert await _spread(harness, (b"x-session-id", b"a"), **settings) == [0, 0, 10]


@pytest.mark.parametrize(
    ("setting", "header"),
    [
        ("none", (b"x-session-id", b"a")),
        ("x-session-id", (b"x-other", b"a")),
        ("x-session-id", (b"x-session-id", b"")),
    ],
)
async def test_without_a_session_requests_are_spread(
    harness: Harness, setting: str, header: tuple[bytes, bytes]
) -> None:
    assert await _spread(harness, header, session_header=setting) == [3, 3, 4]


TOKEN = b"x-session-token"


async def test_a_client_that_echoes_its_token_stays_on_an_engine(harness: Harness) -> None:
    engines = [await harness.engine() for _ in range(3)]
    for engine in engines:
        engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(
        *engines, session_header="x-session-token", load_balancing_strategy="round_robin"
    )
    client = await router.client()
    await client.send(request(COMPLETIONS, completion()))
    [token] = (await client.answer()).values(TOKEN)
    for _ in range(9):
        await client.send(request(COMPLETIONS, completion(), (TOKEN, token)))
        assert (await client.answer()).values(TOKEN) == [token]
    assert sorted(engine.seen for engine in engines) == [0, 0, 10]
    assert (await client.get("/v1/models")).values(TOKEN) == []


async def test_each_request_without_a_token_begins_a_session(harness: Harness) -> None:
    engine, router = await harness.single(session_header="x-session-token", max_in_flight=1)
    first, second = [await router.send(COMPLETIONS, completion()) for _ in range(2)]
    tokens = []
    for client in (first, second):  # the second one waits in the queue
        (await engine.call()).send(json_reply({}))
        tokens += (await client.answer()).values(TOKEN)
    assert len(tokens) == len(set(tokens)) == 2


async def test_another_session_header_issues_no_tokens(harness: Harness) -> None:
    engine, router = await harness.single(session_header="x-session-id")
    engine.answer_all(lambda call: call.send(json_reply({})))
    assert (await router.ask(COMPLETIONS, completion())).values(TOKEN) == []
