"""The text of a streamed chat completion, and the source of its token count.

Pure, and optional: the load itself reads no text. Tool calls are not text.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from benchmarks.streaming.client import Seen
from benchmarks.streaming.sse import data_of


def said(events: Iterable[bytes]) -> tuple[str, str]:
    """The answer, and the reasoning before it. Unreadable events have no text."""
    answer: list[str] = []
    reasoning: list[str] = []
    for event in events:
        delta = _delta(event)
        answer.append(_text(delta.get("content")))
        reasoning.append(_text(delta.get("reasoning_content") or delta.get("reasoning")))
    return "".join(answer), "".join(reasoning)


def _delta(event: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(data_of(event))
        delta = found["choices"][0]["delta"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return {}
    return delta if isinstance(delta, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class Counted:
    """Numbers of answers with tokens counted by the server's usage, by the bundled tokenizer, and
    by their chunks."""

    usage: int = 0
    bundled: int = 0
    chunks: int = 0

    @property
    def text(self) -> str:
        """For display."""
        parts = (
            (self.usage, "by the server (usage)"),
            (self.bundled, "by the bundled tokenizer"),
            (self.chunks, "as chunks with content"),
        )
        said = ", ".join(f"{number} answers {how}" for number, how in parts if number)
        return said or "nothing was answered"


def count(seen: Iterable[Seen], tokens: Callable[[str], int]) -> Counted:
    """Give every answer whose text was kept, and that the server did not count, a number of tokens
    by `tokens`. In place, after the run."""
    by_usage = bundled = chunks = 0
    for each in seen:
        if each.first is None or each.cancelled:
            continue
        if each.output_tokens is not None:
            by_usage += 1
        elif each.text is not None:
            each.output_tokens = tokens(each.text)
            bundled += 1
        else:
            chunks += 1
    return Counted(by_usage, bundled, chunks)
