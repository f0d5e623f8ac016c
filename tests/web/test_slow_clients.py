"""Slow or idle clients keep no connection open."""

import asyncio
from collections.abc import Callable

import pytest

from router.net.client.client_connection import NEVER, NEXT_REQUEST
from tests.net.client import request
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, DONE, STREAM


@pytest.fixture
def head_seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the patience with heads from the next one on."""
    return lambda seconds: monkeypatch.setattr(
        "router.net.client.client_connection.HEAD_SECONDS", seconds
    )


async def test_a_head_that_does_not_arrive_in_time_is_408(
    harness: Harness, head_seconds: Callable[[float], None]
) -> None:
    router = await harness.router(await harness.engine())
    client = await router.client()
    assert (await client.get("/health")).status == 200
    head_seconds(0.05)
    await client.send(b"POST /v1/completions HTTP/1.1\r\nhost:")
    answer = await client.answer()
    assert answer.status == 408
    assert answer.error["type"] == "RequestTimeoutError"
    assert await client.ended() == b""


async def test_a_connection_without_a_request_is_closed(
    harness: Harness, head_seconds: Callable[[float], None]
) -> None:
    router = await harness.router(await harness.engine())
    head_seconds(0.05)
    client = await router.client()
    assert await client.ended() == b""


async def test_refused_client_may_stay_as_long_as_any(harness: Harness) -> None:
    """The answer is over in the very read that brought the request."""
    router = await harness.router(await harness.engine())
    client = await router.client()
    assert (await client.get(COMPLETIONS)).status == 405
    (connection,) = router.connections
    assert connection._awaited == NEXT_REQUEST
    left = connection.deadline - asyncio.get_running_loop().time()
    assert left <= router.router.settings.keep_alive_timeout


async def test_empty_lines_do_not_keep_a_connection_open(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), keep_alive_timeout=0.1)
    client = await router.client()
    assert (await client.get("/health")).status == 200
    await client.send(b"\r\n")
    assert await client.ended() == b""


async def test_a_head_may_wait_while_another_answer_is_under_way(
    harness: Harness, head_seconds: Callable[[float], None]
) -> None:
    """After pipelined requests the router stops reading."""
    engine, router = await harness.single()
    client = await router.client()
    assert (await client.get("/health")).status == 200
    (connection,) = router.connections
    head_seconds(0.05)
    await client.send(request(COMPLETIONS, STREAM) + b"GET /health HTTP/1.1\r\n")
    call = await engine.call()
    assert connection.deadline == NEVER  # it is not timed meanwhile
    head_seconds(3600)
    call.stream_whole(DONE)
    assert (await client.answer()).body == DONE
    await client.send(b"\r\n")
    assert (await client.answer("GET")).status == 200


async def test_idle_connection_closes_after_the_keep_alive(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), keep_alive_timeout=0.05)
    client = await router.client()
    assert (await client.get("/health")).status == 200
    assert await client.ended() == b""
