"""The chat template: renders a request's messages as a prompt.

It includes everything that a real template shows to the model (roles, contents, tools, tool calls,
template arguments), so that a router that loses any of these changes the answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from router.simulator.model.tokenizer import ASSISTANT, BOS, EOS, encode


def render(
    messages: Sequence[Mapping[str, Any]],
    tools: object = None,
    arguments: object = None,
    *,
    generate: bool = True,
) -> list[int]:
    """The prompt tokens of a chat. `generate` opens the assistant's turn at the end."""
    tokens: list[int] = []
    if tools:
        tokens += _turn("tools", _plain(tools))
    if arguments:
        tokens += _turn("arguments", _plain(arguments))
    for message in messages:
        tokens += _message(message)
    return [*tokens, ASSISTANT] if generate else tokens


def _message(message: Mapping[str, Any]) -> list[int]:
    role, content = str(message.get("role", "")), _content(message.get("content"))
    rest = {
        key: value
        for key, value in message.items()
        if key not in ("role", "content") and value is not None
    }
    if rest:
        content += _plain(rest)
    if role == "assistant":
        return [ASSISTANT, *encode(content), EOS]
    return _turn(role, content)


def _turn(role: str, content: str) -> list[int]:
    return [BOS, *encode(f"{role}\n"), *encode(content), EOS]


def _content(content: object) -> str:
    """The text of a message: a string, or the concatenated parts of a list."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(part) for part in content)
    return _plain(content)


def _part(part: object) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return _plain(part)


def _plain(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
