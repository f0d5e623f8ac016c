"""litellm's SDK, with its providers hosted_vllm, openai and anthropic."""

import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network

import litellm
from cases import LONG_ANSWER, MODEL, SCHEMA, URL, idle, raises, run, valid
from pydantic import BaseModel

CHAT: dict[str, Any] = {
    "model": f"hosted_vllm/{MODEL}",
    "api_base": f"{URL}/v1",
    "api_key": "unused",
    "max_retries": 0,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]


class Weather(BaseModel):
    city: str
    days: int


def user(prompt: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}]


def chat(prompt: str) -> None:
    answer = litellm.completion(messages=user(prompt), max_tokens=8, **CHAT)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 8


def stream(prompt: str) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(litellm.completion(messages=user(prompt), max_tokens=8, **options, **CHAT))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage.completion_tokens == 8


def completions(prompt: str) -> None:
    answer = litellm.text_completion(prompt=prompt, max_tokens=8, **CHAT)
    assert answer.choices[0].text


def tools(prompt: str) -> None:
    """A call, its result and the text after it; and the same call in a stream."""
    turns = user(prompt)
    choice = litellm.completion(messages=turns, tools=TOOLS, **CHAT).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    valid(call.function.arguments)
    chunks = list(litellm.completion(messages=turns, tools=TOOLS, stream=True, **CHAT))
    built = litellm.stream_chunk_builder(chunks, messages=turns)
    (streamed,) = built.choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    turns += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    answer = litellm.completion(messages=turns, tools=TOOLS, max_tokens=8, **CHAT)
    assert answer.choices[0].message.content


def structured_output(prompt: str) -> None:
    answer = litellm.completion(messages=user(prompt), response_format=Weather, **CHAT)
    Weather.model_validate_json(answer.choices[0].message.content)


def responses(prompt: str) -> None:
    asked = CHAT | {"model": f"openai/{MODEL}"}
    answer = litellm.responses(input=prompt, max_output_tokens=8, **asked)
    assert answer.output[0].content[0].text
    events = list(litellm.responses(input=prompt, max_output_tokens=8, stream=True, **asked))
    assert events[-1].type == "response.completed"


def messages(prompt: str) -> None:
    answer = litellm.completion(
        model=f"anthropic/{MODEL}",
        api_base=URL,
        api_key="unused",
        messages=user(prompt),
        max_tokens=8,
    )
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 8


def embeddings(prompt: str) -> None:
    assert len(litellm.embedding(input=[prompt, "other"], **CHAT).data) == 2


def rerank(prompt: str) -> None:
    answer = litellm.rerank(query=prompt, documents=["rain in Paris", "bread"], **CHAT)
    assert len(answer.results) == 2


def wrong_model(prompt: str) -> None:
    asked = CHAT | {"model": "hosted_vllm/no-such-model"}
    raises(litellm.NotFoundError, lambda: litellm.completion(messages=user(prompt), **asked))


def abort(prompt: str) -> None:
    chunks = litellm.completion(messages=user(LONG_ANSWER + prompt), stream=True, **CHAT)
    next(chunks)
    next(chunks)
    idle(chunks.completion_stream.close)


run(
    chat=chat,
    stream=stream,
    completions=completions,
    tools=tools,
    structured_output=structured_output,
    responses=responses,
    messages=messages,
    embeddings=embeddings,
    rerank=rerank,
    wrong_model=wrong_model,
    abort=abort,
)
