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
