"""Claim: the official `openai` client sees no difference to an engine, errors included."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.engines.conftest import Engines
from tests.engines.fleet import MODEL
from tests.engines.service import Service
from tests.engines.traffic import LONG_PROMPTS, SHORT_PROMPTS

TOO_LONG = "a prompt far beyond the context of 8192 tokens " * 1000
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 16}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
both_lengths = pytest.mark.parametrize(
    "text", [SHORT_PROMPTS[0], LONG_PROMPTS[0]], ids=["short", "long"]
)


def _client(service: Service) -> AsyncOpenAI:
    # No retries: the client's own would hide a failure of the router.
    return AsyncOpenAI(base_url=f"{service.url}/v1", api_key="unused", max_retries=0)


@pytest.fixture
async def routed(router: Service) -> AsyncIterator[AsyncOpenAI]:
    async with _client(router) as client:
        yield client


@pytest.fixture
async def alone(engines: Engines) -> AsyncIterator[AsyncOpenAI]:
    async with _client(engines.decodes[0]) as client:
        yield client


def _messages(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def test_models(routed: AsyncOpenAI) -> None:
    assert [model.id async for model in await routed.models.list()] == [MODEL]


@both_lengths
async def test_chat(routed: AsyncOpenAI, alone: AsyncOpenAI, text: str) -> None:
    mine = await routed.chat.completions.create(messages=_messages(text), **GREEDY)
    wanted = await alone.chat.completions.create(messages=_messages(text), **GREEDY)
    assert mine.choices == wanted.choices
    assert mine.usage == wanted.usage


@both_lengths
async def test_chat_stream(routed: AsyncOpenAI, alone: AsyncOpenAI, text: str) -> None:
    async def read(client: AsyncOpenAI) -> tuple[str, Any]:
        stream = await client.chat.completions.create(
            messages=_messages(text),
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
        seen = [chunk async for chunk in stream]
        deltas = [choice.delta.content or "" for chunk in seen for choice in chunk.choices]
        assert len(deltas) > 1
        return "".join(deltas), seen[-1].usage

    assert await read(routed) == await read(alone)


@both_lengths
async def test_completions(routed: AsyncOpenAI, alone: AsyncOpenAI, text: str) -> None:
    mine = await routed.completions.create(prompt=text, **GREEDY)
    wanted = await alone.completions.create(prompt=text, **GREEDY)
    assert mine.choices == wanted.choices
    assert mine.usage == wanted.usage


@both_lengths
async def test_completions_stream(routed: AsyncOpenAI, alone: AsyncOpenAI, text: str) -> None:
    async def read(client: AsyncOpenAI) -> str:
        stream = await client.completions.create(prompt=text, stream=True, **GREEDY)
        texts = [choice.text async for chunk in stream for choice in chunk.choices]
        assert len(texts) > 1
        return "".join(texts)

    assert await read(routed) == await read(alone)


@both_lengths
async def test_responses(routed: AsyncOpenAI, alone: AsyncOpenAI, text: str) -> None:
    options: dict[str, Any] = {"model": MODEL, "input": text, "temperature": 0}
    mine = await routed.responses.create(max_output_tokens=16, **options)
    wanted = await alone.responses.create(max_output_tokens=16, **options)
    assert mine.output_text == wanted.output_text
    assert mine.output_text


@both_lengths
async def test_tools_reach_the_prompt(routed: AsyncOpenAI, alone: AsyncOpenAI, text: str) -> None:
    """The template renders them, so a prompt without them is shorter."""
    messages = _messages(text)
    bare = await alone.chat.completions.create(messages=messages, **GREEDY)
    for choice in ("none", "auto"):
        options: dict[str, Any] = {"messages": messages, "tools": [WEATHER], "tool_choice": choice}
        mine = await routed.chat.completions.create(**options, **GREEDY)
        wanted = await alone.chat.completions.create(**options, **GREEDY)
        assert mine.usage is not None
        assert bare.usage is not None
        assert mine.usage == wanted.usage
        assert mine.usage.prompt_tokens > bare.usage.prompt_tokens + 50
        assert mine.choices == wanted.choices


@both_lengths
async def test_a_named_tool_is_called(routed: AsyncOpenAI, alone: AsyncOpenAI, text: str) -> None:
    """A choice that constrains the answer's grammar, and may change the prompt."""
    options: dict[str, Any] = {
        "messages": _messages(text),
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    }
    mine = await routed.chat.completions.create(**options, **GREEDY | {"max_tokens": 100})
    wanted = await alone.chat.completions.create(**options, **GREEDY | {"max_tokens": 100})
    calls = [
        [call.function for call in answer.choices[0].message.tool_calls or ()]
        for answer in (mine, wanted)
    ]
    assert calls[0] == calls[1]
    assert [function.name for function in calls[0]] == ["get_weather"]


REFUSED: tuple[tuple[dict[str, Any], type[openai.APIStatusError]], ...] = (
    ({"model": "nope"}, openai.NotFoundError),
    ({"max_tokens": 0}, openai.BadRequestError),
    ({"max_tokens": 100_000}, openai.BadRequestError),
    ({"temperature": -1}, openai.BadRequestError),
    ({"messages": _messages(TOO_LONG)}, openai.BadRequestError),
    ({"messages": "not a list"}, openai.BadRequestError),
    ({"tools": []}, openai.BadRequestError),
)


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize(("wrong", "expected"), REFUSED, ids=lambda value: str(value)[:40])
@both_lengths
async def test_errors_are_the_engines_own(
    routed: AsyncOpenAI,
    alone: AsyncOpenAI,
    text: str,
    wrong: dict[str, Any],
    expected: type[openai.APIStatusError],
    stream: bool,
) -> None:
    request = GREEDY | {"messages": _messages(text), "stream": stream} | wrong
    with pytest.raises(expected) as mine:
        await routed.chat.completions.create(**request)
    with pytest.raises(expected) as wanted:
        await alone.chat.completions.create(**request)
    assert mine.value.status_code == wanted.value.status_code
    assert mine.value.type == wanted.value.type
    assert mine.value.param == wanted.value.param


async def test_after_an_error_the_engines_hold_nothing(
    routed: AsyncOpenAI, engines: Engines, session: Any
) -> None:
    """max_tokens beyond the context: the prefill leg, with 1, succeeds; the decode leg refuses."""
    with pytest.raises(openai.BadRequestError):
        await routed.chat.completions.create(
            messages=_messages(LONG_PROMPTS[0]), **GREEDY | {"max_tokens": 100_000}
        )
