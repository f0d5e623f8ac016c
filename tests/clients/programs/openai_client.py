"""OpenAI's client for Python."""

import io
import wave
from typing import Any

import openai
from cases import LONG_ANSWER, MODEL, SCHEMA, URL, idle, raises, run, valid
from pydantic import BaseModel

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)

FUNCTION = {"name": "get_weather", "parameters": SCHEMA}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
RESPONSES_TOOLS: Any = [{"type": "function", "strict": True, **FUNCTION}]


class Weather(BaseModel):
    city: str
    days: int


def user(prompt: str) -> list[Any]:
    return [{"role": "user", "content": prompt}]


def chat(prompt: str) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user(prompt), max_tokens=8)
    assert answer.choices[0].message.content
    assert answer.usage
    assert answer.usage.completion_tokens == 8


def stream(prompt: str) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=user(prompt),
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == 8


def completions(prompt: str) -> None:
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=8)
    assert answer.choices[0].text


def tools(prompt: str) -> None:
    """A call, its result and the text after it; and the same call in a stream."""
    turns = user(prompt)
    message = client.chat.completions.create(model=MODEL, messages=turns, tools=TOOLS).choices[0]
    assert message.finish_reason == "tool_calls"
    (call,) = list(message.message.tool_calls or [])
    assert call.type == "function"
    valid(call.function.arguments)
    with client.chat.completions.stream(model=MODEL, messages=turns, tools=TOOLS) as events:
        (streamed,) = list(events.get_final_completion().choices[0].message.tool_calls or [])
    assert streamed.type == "function"
    assert streamed.function.arguments == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    turns += [message.message, result]
    answer = client.chat.completions.create(model=MODEL, messages=turns, tools=TOOLS, max_tokens=8)
    assert answer.choices[0].message.content


def structured_output(prompt: str) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=user(prompt), response_format=Weather
    )
    assert isinstance(answer.choices[0].message.parsed, Weather)


def responses(prompt: str) -> None:
    """Text, whole and streamed; a function call; an object by a schema."""
    answer = client.responses.create(model=MODEL, input=prompt, max_output_tokens=8)
    assert answer.output_text
    assert answer.usage
    with client.responses.stream(model=MODEL, input=prompt, max_output_tokens=8) as events:
        assert events.get_final_response().output_text == answer.output_text
    called = client.responses.create(model=MODEL, input=prompt, tools=RESPONSES_TOOLS)
    assert called.output[0].type == "function_call"
    valid(called.output[0].arguments)
    with client.responses.stream(model=MODEL, input=prompt, tools=RESPONSES_TOOLS) as events:
        (item,) = events.get_final_response().output
    assert item.type == "function_call"
    valid(item.arguments)
    parsed = client.responses.parse(model=MODEL, input=prompt, text_format=Weather)
    assert isinstance(parsed.output_parsed, Weather)


def embeddings(prompt: str) -> None:
    answer = client.embeddings.create(model=MODEL, input=[prompt, "other"])
    assert all(isinstance(number, float) for number in answer.data[1].embedding)


def audio(_prompt: str) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8_000)
        sound.writeframes(bytes(32_000))
    given = ("a.wav", file.getvalue())
    whole = client.audio.transcriptions.create(model=MODEL, file=given).text
    events = client.audio.transcriptions.create(model=MODEL, file=given, stream=True)
    assert whole
    assert len(list(events)) > 1


def wrong_model(prompt: str) -> None:
    def ask() -> object:
        return client.chat.completions.create(model="no-such-model", messages=user(prompt))

    raises(openai.NotFoundError, ask)


def abort(prompt: str) -> None:
    events = client.chat.completions.create(
        model=MODEL, messages=user(LONG_ANSWER + prompt), stream=True
    )
    next(events)
    next(events)
    idle(events.close)


run(
    chat=chat,
    stream=stream,
    completions=completions,
    tools=tools,
    structured_output=structured_output,
    responses=responses,
    embeddings=embeddings,
    audio=audio,
    wrong_model=wrong_model,
    abort=abort,
)
