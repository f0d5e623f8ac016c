"""langchain-openai."""

from typing import Any

import openai
from cases import LONG_ANSWER, MODEL, SCHEMA, URL, idle, raises, run, valid
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, SecretStr

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}


class Weather(BaseModel):
    city: str
    days: int


def model(name: str = MODEL, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=name, base_url=f"{URL}/v1", api_key=SecretStr("unused"), max_retries=0, **more
    )


def chat(prompt: str) -> None:
    answer = model(max_tokens=8).invoke(prompt)
    assert answer.content
    assert answer.usage_metadata
    assert answer.usage_metadata["output_tokens"] == 8


def stream(prompt: str) -> None:
    chunks = list(model(max_tokens=8, stream_usage=True).stream(prompt))
    assert "".join(str(chunk.content) for chunk in chunks)
    total = sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata)
    assert total == 8


def tools(prompt: str) -> None:
    """A call, its result and the text after it; and the same call in a stream."""
    bound = model(max_tokens=200).bind_tools([TOOL])
    message = bound.invoke(prompt)
    (call,) = message.tool_calls
    valid(call["args"])
    first, *rest = bound.stream(prompt)
    for chunk in rest:
        first += chunk
    assert first.tool_calls[0]["args"] == call["args"]
    result = ToolMessage("rain", tool_call_id=call["id"])
    assert bound.invoke([HumanMessage(prompt), message, result]).content


def structured_output(prompt: str) -> None:
    for method in ("json_schema", "function_calling"):
        answer = model().with_structured_output(Weather, method=method).invoke(prompt)
        assert isinstance(answer, Weather)


def responses(prompt: str) -> None:
    over = model(max_tokens=8, use_responses_api=True)
    assert over.invoke(prompt).text
    assert "".join(chunk.text for chunk in over.stream(prompt))


def embeddings(prompt: str) -> None:
    embedder = OpenAIEmbeddings(
        model=MODEL,
        base_url=f"{URL}/v1",
        api_key=SecretStr("unused"),
        check_embedding_ctx_length=False,  # else it counts by OpenAI's tokenizer, from the network
    )
    assert len(embedder.embed_documents([prompt, "other"])) == 2


def wrong_model(prompt: str) -> None:
    raises(openai.NotFoundError, lambda: model("no-such-model").invoke(prompt))


def abort(prompt: str) -> None:
    chunks = model().stream(LONG_ANSWER + prompt)
    next(chunks)
    next(chunks)
    idle(chunks.close)


run(
    chat=chat,
    stream=stream,
    tools=tools,
    structured_output=structured_output,
    responses=responses,
    embeddings=embeddings,
    wrong_model=wrong_model,
    abort=abort,
)
