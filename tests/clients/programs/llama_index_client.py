"""llama-index's OpenAILike."""

import gc
from typing import Any

import openai
from cases import LONG_ANSWER, MODEL, URL, idle, raises, run, valid
from llama_index.core.llms import ChatMessage, MessageRole
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Weather(BaseModel):
    city: str
    days: int


def get_weather(city: str, days: int) -> str:
    """The weather."""
    return f"{city}: {days} days of rain"


def model(name: str = MODEL, **more: Any) -> OpenAILike:
    return OpenAILike(
        model=name,
        api_base=f"{URL}/v1",
        api_key="unused",
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
        **more,
    )


def user(prompt: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=prompt)]


def chat(prompt: str) -> None:
    answer = model(max_tokens=8).chat(user(prompt))
    assert answer.message.content
    assert answer.additional_kwargs["completion_tokens"] == 8


def stream(prompt: str) -> None:
    asked = {"stream_options": {"include_usage": True}}
    *_, last = model(max_tokens=8, additional_kwargs=asked).stream_chat(user(prompt))
    assert last.message.content
    assert last.raw.usage.completion_tokens == 8


def completions(prompt: str) -> None:
    llm = OpenAILike(model=MODEL, api_base=f"{URL}/v1", api_key="unused", max_tokens=8)
    assert llm.complete(prompt).text


def tools(prompt: str) -> None:
    """A call, its result and the text after it; and the same call in a stream."""
    llm, tool = model(max_tokens=200), FunctionTool.from_defaults(get_weather)
    answer = llm.chat_with_tools([tool], chat_history=user(prompt))
    (call,) = llm.get_tool_calls_from_response(answer)
    valid(call.tool_kwargs)
    *_, last = llm.stream_chat_with_tools([tool], chat_history=user(prompt))
    (streamed,) = llm.get_tool_calls_from_response(last)
    assert streamed.tool_kwargs == call.tool_kwargs
    result = ChatMessage(
        role=MessageRole.TOOL, content="rain", additional_kwargs={"tool_call_id": call.tool_id}
    )
    history = [*user(prompt), answer.message, result]
    assert llm.chat_with_tools([tool], chat_history=history).message.content


def structured_output(prompt: str) -> None:
    llm = model(should_use_structured_outputs=True).as_structured_llm(Weather)
    assert isinstance(llm.chat(user(prompt)).raw, Weather)


def wrong_model(prompt: str) -> None:
    raises(openai.NotFoundError, lambda: model("no-such-model").chat(user(prompt)))


def abort(prompt: str) -> None:
    """llama-index closes a stream that is dropped only when Python's garbage is collected."""
    chunks = [model().stream_chat(user(LONG_ANSWER + prompt))]
    next(chunks[0])
    next(chunks[0])

    def leave() -> None:
        chunks.clear()
        gc.collect()

    idle(leave)


run(
    chat=chat,
    stream=stream,
    completions=completions,
    tools=tools,
    structured_output=structured_output,
    wrong_model=wrong_model,
    abort=abort,
)
