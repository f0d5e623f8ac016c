"""Each connector on real engines, against what tests/e2e/test_connector_matrix.py has for simulated
ones: kinds of requests, a restart of either engine, and a client that leaves in any phase.

`vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}` counts what was really moved.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import aiohttp
import orjson
import pytest

from tests.engines import lab, observe
from tests.engines.connectors import CONNECTORS, Pair, empty, pair_of
from tests.engines.layout import layout
from tests.engines.traffic import CHAT, COMPLETIONS, LONG_PROMPTS, RESPONSES, ask, body, events

SOON = 5.0
"""Seconds in which engines abort what a client has left."""

LONG_ANSWER = 6000
"""Tokens, some 10 s of decoding: no answer ends before its client leaves."""

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "tools": (CHAT, {"tools": [WEATHER]}),
    "forced tool": (CHAT, {"tools": [WEATHER], "tool_choice": "required", "ignore_eos": False}),
    "structured": (
        CHAT,
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": SCHEMA},
            },
            "ignore_eos": False,
        },
    ),
    "stop": (COMPLETIONS, {"stop": ["e", "a"]}),
    "log probabilities": (COMPLETIONS, {"logprobs": 2}),
    "three choices": (COMPLETIONS, {"n": 3, "temperature": 1, "seed": 7}),
}


@pytest.fixture
async def _whole_fleet() -> None:
    """These tests have engines of their own."""


@pytest.fixture(scope="module", params=CONNECTORS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with pair_of(request.param) as found:
        yield found


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize(
    "path", [CHAT, COMPLETIONS, RESPONSES], ids=["chat", "completions", "responses"]
)
async def test_answers_equal_one_engines_and_their_prompts_are_moved(
    session: aiohttp.ClientSession, pair: Pair, path: str, stream: bool
) -> None:
    for text in LONG_PROMPTS[::6]:
        await pair.compare(session, path, text, stream=stream)


async def _choices(
    session: aiohttp.ClientSession, url: str, path: str, request: dict[str, Any]
) -> list[dict[str, Any]]:
    """What each choice says, put together from all parts. Ids of calls differ by request."""
    async with session.post(url + path, json=request) as response:
        raw = await response.read()
        assert response.status == 200, raw
    found: dict[int, dict[str, Any]] = {}
    for part in events(raw) if request["stream"] else [orjson.loads(raw)]:
        for choice in part["choices"]:
            said = found.setdefault(choice["index"], {"text": "", "calls": "", "ids": [], "log": 0})
            message = choice.get("message") or choice.get("delta") or choice
            said["text"] += message.get("content") or message.get("text") or ""
            for call in message.get("tool_calls") or ():
                said["calls"] += call["function"].get("name") or ""
                said["calls"] += call["function"].get("arguments") or ""
            said["ids"] += choice.get("token_ids") or ()
            said["log"] += len((choice.get("logprobs") or {}).get("tokens") or ())
            said["finish"] = choice["finish_reason"]
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_other_kinds_of_requests_are_answered_as_by_one_engine(
    session: aiohttp.ClientSession, pair: Pair, kind: str, stream: bool
) -> None:
    path, more = KINDS[kind]
    for text in LONG_PROMPTS[1:20:10]:
        request = body(path, text, stream=stream, **more)
        empty(pair.store)
        alone = await _choices(session, pair.alone.url, path, request)
        empty(pair.store)
        request["cache_salt"] += "x"
        assert await _choices(session, pair.router.url, path, request) == alone
    await observe.settled(session, pair.engines.all, SOON)


async def test_six_at_once(session: aiohttp.ClientSession, pair: Pair) -> None:
    """Each decode request gets the blocks of its own prefill."""
    texts = LONG_PROMPTS[:6]
    empty(pair.store)
    alone = [
        await ask(session, pair.alone.url, COMPLETIONS, body(COMPLETIONS, text)) for text in texts
    ]
    empty(pair.store)
    before = await observe.load(session, pair.alone)
    asked = (ask(session, pair.router.url, COMPLETIONS, body(COMPLETIONS, text)) for text in texts)
    routed = await asyncio.gather(*asked)
    after = await observe.settled(session, pair.engines.all, SOON)
    assert [answer.words for answer in routed] == [answer.words for answer in alone]
    moved = sum(pair.moved_of(answer.prompt_tokens) for answer in routed)
    assert after[1].transferred - before.transferred == moved


@pytest.mark.parametrize("phase", ["prefill", "decode", "stream"])
async def test_of_a_client_that_leaves_nothing_is_left(
    session: aiohttp.ClientSession, pair: Pair, phase: str
) -> None:
    """vllm#46283, #50425, #50754. A frozen engine has the request unread in its socket."""
    empty(pair.store)
    request = body(CHAT, LONG_PROMPTS[0], stream=True, max_tokens=LONG_ANSWER)
    if phase == "stream":
        async with session.post(pair.router.url + CHAT, json=request) as response:
            assert response.status == 200
            await response.content.readuntil(b"\n\n")
    else:
        frozen = pair.engines.prefill if phase == "prefill" else pair.alone
        frozen.freeze()
        task = asyncio.create_task(ask(session, pair.router.url, CHAT, request))
        await observe.eventually(
            lambda: observe.unread([frozen]), lambda seen: len(seen) == 1, SOON
        )
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await observe.eventually(
            lambda: observe.unread([frozen]), lambda seen: all(one.left for one in seen), SOON
        )
        frozen.thaw()
    await observe.settled(session, pair.engines.all, pair.connector.lease_seconds + 10)
    await pair.compare(session, CHAT, LONG_PROMPTS[5])


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_engines_that_have_restarted_are_used_again(
    session: aiohttp.ClientSession, pair: Pair, role: str
) -> None:
    """smg#2491 (an engine's new id), vllm#49238 (a decode engine hangs behind a restart). Until a
    prefill engine is back, the decode engine computes the prompts."""
    await pair.compare(session, CHAT, LONG_PROMPTS[2])
    if role == "decode" and not pair.connector.finds_again:
        pytest.skip("its prefill engines have to be restarted too")
    ended = pair.engines.prefill if role == "prefill" else pair.alone
    ended.stop()
    if role == "prefill":
        answer = await ask(session, pair.router.url, CHAT, body(CHAT, LONG_PROMPTS[1]))
        assert (answer.status, len(answer.token_ids)) == (200, 24)
    lab.start(layout(), pair.engines.all)
    await pair.is_up(session)
    for path in (CHAT, COMPLETIONS):
        await pair.compare(session, path, LONG_PROMPTS[3], stream=True)
