"""Anthropic's client for Python."""

from typing import Any

import anthropic
from cases import LONG_ANSWER, MODEL, SCHEMA, URL, idle, raises, run, valid
from pydantic import BaseModel

client = anthropic.Anthropic(base_url=URL, api_key="unused", max_retries=0)

TOOLS: Any = [{"name": "get_weather", "input_schema": SCHEMA}]


class Weather(BaseModel):
    city: str
    days: int


def user(prompt: str) -> Any:
    return [{"role": "user", "content": prompt}]


def messages(prompt: str) -> None:
    answer = client.messages.create(model=MODEL, messages=user(prompt), max_tokens=8)
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert answer.usage.output_tokens == 8
    assert answer._request_id


def stream(prompt: str) -> None:
    with client.messages.stream(model=MODEL, messages=user(prompt), max_tokens=8) as events:
        assert "".join(events.text_stream)
        message = events.get_final_message()
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 8


def tools(prompt: str) -> None:
    """A call, its result and the text after it; and the same call in a stream."""
    given: dict[str, Any] = {"model": MODEL, "tools": TOOLS, "max_tokens": 200}
    turns = user(prompt)
    message = client.messages.create(messages=turns, **given)
    (block,) = message.content
    assert (message.stop_reason, block.type) == ("tool_use", "tool_use")
    valid(block.input)
    with client.messages.stream(messages=turns, **given) as events:
        (streamed,) = events.get_final_message().content
    assert streamed.type == "tool_use"
    assert streamed.input == block.input
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "rain"}
    turns = [
        *turns,
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(messages=turns, **given | {"max_tokens": 8})
    assert answer.content[0].type == "text"


def structured_output(prompt: str) -> None:
    answer = client.messages.parse(
        model=MODEL, messages=user(prompt), max_tokens=200, output_format=Weather
    )
    assert isinstance(answer.parsed_output, Weather)


def count_tokens(prompt: str) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=user(prompt))
    answer = client.messages.create(model=MODEL, messages=user(prompt), max_tokens=1)
    assert counted.input_tokens == answer.usage.input_tokens


def wrong_model(prompt: str) -> None:
    def ask() -> object:
        return client.messages.create(model="no-such-model", messages=user(prompt), max_tokens=8)

    raises(anthropic.NotFoundError, ask)


def abort(prompt: str) -> None:
    events = client.messages.create(
        model=MODEL, messages=user(LONG_ANSWER + prompt), max_tokens=30_000, stream=True
    )
    next(events)
    next(events)
    idle(events.close)


run(
    stream=stream,
    tools=tools,
    structured_output=structured_output,
    messages=messages,
    count_tokens=count_tokens,
    wrong_model=wrong_model,
    abort=abort,
)
