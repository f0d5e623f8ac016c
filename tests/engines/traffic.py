"""Requests as a client of an OpenAI API sends them, and the answers, to the byte."""

import json
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.engines.fleet import MODEL

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "LONG_PROMPTS",
    "RESPONSES",
    "SHORT_PROMPTS",
    "Answer",
    "ask",
    "body",
    "events",
    "prompt",
]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"

WORDS = (
    *("import", "return", "class", "value", "index", "buffer", "error", "module", "string"),
    *("number", "while", "table", "event", "reader", "socket", "thread", "queue", "signal"),
    *("parser", "record", "field", "token", "cache", "block", "engine"),
)


def prompt(seed: int, words: int) -> str:
    """Text that no other seed gives, the same in every run."""
    chosen = random.Random(seed).choices(WORDS, k=words)
    return f"def case_{seed}(): # {' '.join(chosen)}"


# 100-350 words: 600 to 2300 characters, 250 to 900 tokens of the tiny model. Well above the
# router's threshold in these tests, and several KV blocks of 32 tokens each.
LONG_PROMPTS = tuple(prompt(seed, 100 + 250 * seed // 29) for seed in range(30))
# Some 60 characters: below the threshold.
SHORT_PROMPTS = tuple(prompt(1000 + seed, 6) for seed in range(10))


def body(path: str, text: str, **more: Any) -> dict[str, Any]:
    """A greedy request for 24 tokens.

    The salt keeps prefix caches out of it: what one request left in an engine serves no other, so
    every answer is computed (or transferred) in full.
    """
    if path == CHAT:
        question: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    elif path == RESPONSES:
        question = {"input": text, "max_output_tokens": 24}
    else:
        question = {"prompt": text}
    settings = {
        "model": MODEL,
        "temperature": 0,
        "max_tokens": 24,
        "ignore_eos": True,
        "return_token_ids": True,
        "cache_salt": uuid.uuid4().hex,
    }
    return question | settings | more


@dataclass
class Answer:
    """An answer, read from one JSON object or put together from a stream's chunks."""

    status: int
    raw: bytes
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int = 0
    error: dict[str, Any] | None = None

    @property
    def words(self) -> tuple[str, list[int], str | None]:
        """What must not depend on the way that the request took."""
        return self.text, self.token_ids, self.finish_reason


async def ask(
    session: aiohttp.ClientSession, url: str, path: str, request: dict[str, Any]
) -> Answer:
    """Send one request and read the whole answer, streamed or not."""
    if request.get("stream") and path != RESPONSES:
        request = {"stream_options": {"include_usage": True}} | request
    async with session.post(url + path, json=request) as response:
        answer = Answer(response.status, await response.read())
        streamed = response.content_type == "text/event-stream"
    if streamed and path == RESPONSES:  # its last event has the whole response
        _add(answer, json.loads(answer.raw.rpartition(b"data: ")[2])["response"])
        return answer
    for part in events(answer.raw) if streamed else [json.loads(answer.raw)]:
        _add(answer, part)
    return answer


def events(raw: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of an event stream, without comments. Fails unless the stream ends with
    [DONE]."""
    *data, last = [part.removeprefix(b"data: ") for part in raw.strip().split(b"\n\n")]
    assert last == b"[DONE]", f"the stream ends with {last[-200:]!r}"
    yield from (json.loads(part) for part in data if not part.startswith(b":"))


def _add(answer: Answer, part: dict[str, Any]) -> None:
    answer.error = part.get("error") or answer.error
    usage = part.get("usage") or {}
    answer.prompt_tokens = (
        usage.get("prompt_tokens") or usage.get("input_tokens") or answer.prompt_tokens
    )
    for item in part.get("output", ()):
        answer.text += "".join(piece["text"] for piece in item["content"])
        answer.finish_reason = part["status"]
    for choice in part.get("choices", ()):
        message = choice.get("message") or choice.get("delta") or choice
        answer.text += message.get("content") or message.get("text") or ""
        for call in message.get("tool_calls") or ():
            answer.text += call["function"].get("arguments") or ""
        answer.token_ids += choice.get("token_ids") or ()
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
