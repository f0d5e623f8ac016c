"""The contents of messages in all APIs: text of the prompt, or something else.

Tool calls, tool results and thinking blocks are text of the prompt, as well as what users and
models say, because vLLM passes all of it to the chat template. What the template omits (often the
thinking of earlier turns) is not known here.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

import orjson

from router.core.request_facts import Facts

__all__ = [
    "BILLING_HEADER",
    "TEXT_PARTS",
    "beside_content",
    "has_media",
    "json_text",
    "text_member",
    "text_of",
    "unbilled",
]

TEXT_PARTS: Final = ("text", "input_text", "output_text")
"""The types of text parts: "text" in chats and messages, the other two in responses. A tuple,
because a client may send an unhashable value to look up."""

TEXT_MEMBERS: Final = {
    # Parts of /v1/messages.
    "thinking": "thinking",
    "tool_use": "input",
    "tool_result": "content",
    # Items of /v1/responses, and the parts of its reasoning items.
    "function_call": "arguments",
    "function_call_output": "output",
    "custom_tool_call": "input",
    "custom_tool_call_output": "output",
    "reasoning_text": "text",
}
"""The member that is text of the prompt, by the type of the part or item."""

BILLING_HEADER: Final = "x-anthropic-billing-header"
"""Beginning of a line that Claude Code puts before its system prompt. The rest of the line differs
from request to request, so vLLM removes it (vllm#36829)."""


def text_of(part: object) -> str | None:
    """The text of a content part, which may be a string (vLLM takes it for a text part); None if it
    is something else."""
    if isinstance(part, dict):
        part = part.get("text") if part.get("type") in TEXT_PARTS else None
    return part if isinstance(part, str) else None


def unbilled(part: object) -> object:
    """A system prompt, or a part of one, without Claude Code's billing header."""
    text = text_of(part)
    if text is None or not text.startswith(BILLING_HEADER):
        return part
    rest = text.partition("\n")[2]
    return {**part, "text": rest} if isinstance(part, dict) else rest


def text_member(item: object) -> str | None:
    """The member of a tool call, tool result or thinking block that is text of the prompt: a
    string, a list of parts, or JSON. None for other items."""
    kind = item.get("type") if isinstance(item, dict) else None
    return TEXT_MEMBERS.get(kind) if isinstance(kind, str) else None


def beside_content(message: Mapping[str, Any]) -> list[object]:
    """What a message, or an item of /v1/responses, adds to the prompt besides its content: each a
    string, a list of parts, JSON, or None."""
    found: list[object] = [message.get("reasoning") or message.get("reasoning_content")]
    name = text_member(message)
    if name is not None:
        found.append(message.get(name))
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        functions = [call.get("function") for call in calls if isinstance(call, dict)]
        found += [each.get("arguments") for each in functions if isinstance(each, dict)]
    return found


def json_text(value: Mapping[str, Any]) -> str:
    """JSON as text of a prompt; empty if nested more deeply than orjson can write (254 levels)."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return ""


def has_media(facts: Facts) -> bool:
    """Whether the prompt contains more than text: an image's token ids are the same for all
    images."""
    body = facts.body
    contents = [body.get("system")]
    for name in ("messages", "input"):
        items = body.get(name)
        if isinstance(items, list):
            contents += [item.get("content") for item in items if isinstance(item, dict)]
    parts = chain.from_iterable(each for each in contents if isinstance(each, list))
    is_text = body.get("prompt_embeds") is None and all(map(_is_text, parts))
    return facts.has_media or not is_text


def _is_text(part: object) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and part.get("type") in TEXT_PARTS)
