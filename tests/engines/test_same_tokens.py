"""Claim: through the router an answer is, token for token, what one engine alone answers."""

import asyncio
import itertools
from typing import Any

import aiohttp
import pytest

from tests.engines import observe
from tests.engines.conftest import Engines
from tests.engines.service import Service
from tests.engines.traffic import CHAT, COMPLETIONS, LONG_PROMPTS, SHORT_PROMPTS, ask, body, events

KV_PARAMETERS = {"kv_transfer_params", "ec_transfer_params"}


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])
async def test_30_disaggregated_answers_equal_one_engines(
    session: aiohttp.ClientSession, engines: Engines, router: Service, path: str, stream: bool
) -> None:
    """One at a time: in a batch, rounding may differ between runs on the same engine."""
    assert len(set(LONG_PROMPTS)) == 30
    for text in LONG_PROMPTS:
        alone = await ask(session, engines.decodes[1].url, path, body(path, text, stream=stream))
        routed = await ask(session, router.url, path, body(path, text, stream=stream))
        assert routed.status == alone.status == 200
        assert len(routed.token_ids) == 24
        assert routed.words == alone.words, text
        assert routed.prompt_tokens == alone.prompt_tokens


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])
async def test_direct_answers_equal_one_engines(
    session: aiohttp.ClientSession, engines: Engines, router: Service, path: str, stream: bool
) -> None:
    for text in SHORT_PROMPTS:
        alone = await ask(session, engines.decodes[1].url, path, body(path, text, stream=stream))
        routed = await ask(session, router.url, path, body(path, text, stream=stream))
        assert routed.status == alone.status == 200
        assert routed.words == alone.words, text


OWN_RULES: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, {"max_tokens": 1}),
    (CHAT, {"max_tokens": 40, "min_tokens": 30}),
    (CHAT, {"max_tokens": 400, "stop": ["e"]}),
    (CHAT, {"max_tokens": 400, "stop_token_ids": list(range(100, 400))}),
    (CHAT, {"max_tokens": None, "max_completion_tokens": 5}),
    # No limit but the context: the stop token ends it.
    (CHAT, {"max_tokens": None, "min_tokens": 60, "stop_token_ids": list(range(500, 600))}),
    # null means 16 on this path.
    (COMPLETIONS, {"max_tokens": None}),
    (COMPLETIONS, {"max_tokens": 3, "logprobs": 2, "echo": True}),
)


@pytest.mark.parametrize(("path", "rules"), OWN_RULES, ids=lambda value: str(value)[:60])
async def test_the_answer_ends_by_the_clients_own_rules(
    session: aiohttp.ClientSession,
    engines: Engines,
    router: Service,
    path: str,
    rules: dict[str, Any],
) -> None:
    """The prefill leg is cut to one token; the client's limits must hold on the other leg."""
    rules = {"ignore_eos": False} | rules
    alone = await ask(session, engines.decodes[1].url, path, body(path, LONG_PROMPTS[3], **rules))
    routed = await ask(session, router.url, path, body(path, LONG_PROMPTS[3], **rules))
    assert routed.status == 200, routed.raw
    assert routed.words == alone.words


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("pay", "get_weather")
]


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "pay"}}], ids=["any", "named"]
)
async def test_a_forced_tools_prompt_is_prefilled_remotely(
    session: aiohttp.ClientSession,
    engines: Engines,
    router: Service,
    choice: object,
    stream: bool,
) -> None:
    """By the engines' own counters, not by the equal answer alone."""
    asked = body(CHAT, LONG_PROMPTS[2], stream=stream, tools=TOOLS, tool_choice=choice)
    alone = await ask(session, engines.decodes[1].url, CHAT, asked | {"cache_salt": "alone"})
    before = await observe.loads(session, engines.decodes)
    routed = await ask(session, router.url, CHAT, asked)
    after = await observe.loads(session, engines.decodes)
    assert routed.status == alone.status == 200
    assert routed.words == alone.words
    transferred = sum(one.transferred for one in after) - sum(one.transferred for one in before)
    assert transferred == routed.prompt_tokens == alone.prompt_tokens > 64


@pytest.mark.parametrize("text", [SHORT_PROMPTS[0], LONG_PROMPTS[0]], ids=["direct", "moved"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])
async def test_a_streams_events_are_the_engines_own(
    session: aiohttp.ClientSession, engines: Engines, router: Service, path: str, text: str
) -> None:
    """The same kinds of events in the same order, with every field but the KV parameters.

    How many tokens share an event depends on how busy the engine's server is.
    """

    async def kinds(url: str) -> list[Any]:
        answer = await ask(session, url, path, body(path, text, stream=True, logprobs=True))
        return [kind for kind, _ in itertools.groupby(map(_kind, events(answer.raw)))]

    assert await kinds(router.url) == await kinds(engines.decodes[1].url)


def _kind(event: dict[str, Any]) -> tuple[Any, ...]:
    """The names of an event's fields, without what is in them."""
    choices = [
        (sorted(choice), sorted(choice.get("delta", ()))) for choice in event.get("choices", ())
    ]
    return sorted(event.keys() - KV_PARAMETERS), choices


async def test_a_hundred_at_once(
    session: aiohttp.ClientSession, engines: Engines, router: Service
) -> None:
    """More than the engines run at a time (16 each): the others queue there, and none is lost.

    Five may differ from what one engine alone answers: in a batch rounding differs, and a near tie
    between two tokens may then go the other way.
    """
    expected = [
        await ask(session, engines.decodes[1].url, CHAT, body(CHAT, text)) for text in LONG_PROMPTS
    ]
    answers = await asyncio.gather(
        *(
            ask(session, router.url, CHAT, body(CHAT, LONG_PROMPTS[at % 30], stream=at % 2 == 0))
            for at in range(100)
        )
    )
    assert {(answer.status, len(answer.token_ids)) for answer in answers} == {(200, 24)}
    equal = [answer.words == expected[at % 30].words for at, answer in enumerate(answers)]
    print(f"{sum(equal)} of 100 equal")
    assert sum(equal) >= 95
