"""How many tokens a prompt has, without a tokenizer.

Text counts characters // 4, the usual average of English text under the BPE tokenizers of current
models; CJK text is underestimated about fourfold. A list of token ids counts its length. Images,
audio, tool definitions and anything else count 0.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from router.core.values import RouteKind

__all__ = ["CHARACTERS_PER_TOKEN", "TEXT_PARTS", "Estimate", "estimate", "prompts"]

CHAT: Final = RouteKind.CHAT
COMPLETIONS: Final = RouteKind.COMPLETIONS

CHARACTERS_PER_TOKEN = 4

BY_CHARACTERS = "characters / 4"
BY_IDS = "token ids"
BY_BOTH = "characters / 4 + token ids"
NONE = "no text"


class Estimate(NamedTuple):
    """An estimated number of input tokens and the rule that gave it."""

    tokens: int
    rule: str


def estimate(kind: RouteKind, body: Mapping[str, Any]) -> Estimate:
    """Estimate the input tokens of a request's parsed body. Malformed parts count 0."""
    if kind is COMPLETIONS:
        return _of_prompts(prompts(body.get("prompt")))
    if kind is CHAT:
        return _of_characters(_message_characters(body.get("messages")))
    if kind is RouteKind.MESSAGES:
        system = _content_characters(body.get("system"))
        return _of_characters(system + _message_characters(body.get("messages")))
    if kind is RouteKind.RESPONSES:
        instructions = _content_characters(body.get("instructions"))
        return _of_characters(instructions + _input_characters(body.get("input")))
    return Estimate(0, NONE)


def prompts(prompt: object) -> list[object]:
    """The prompts in a completions `prompt`: each a string or a list of token ids.

    A list holding one prompt is that prompt; a list of ids is one prompt.
    """
    if isinstance(prompt, list):
        is_ids = not prompt or any(isinstance(item, int) for item in prompt)
        return [prompt] if is_ids else prompt
    return [] if prompt is None else [prompt]


def _of_prompts(items: Iterable[object]) -> Estimate:
    by_ids = by_text = 0
    rules = set()
    for item in items:
        if isinstance(item, str):
            by_text += len(item) // CHARACTERS_PER_TOKEN
            rules.add(BY_CHARACTERS)
        elif isinstance(item, list):
            by_ids += len(item)
            rules.add(BY_IDS)
    rule = BY_BOTH if len(rules) == 2 else next(iter(rules), NONE)
    return Estimate(by_ids + by_text, rule)


def _of_characters(characters: int) -> Estimate:
    rule = BY_CHARACTERS if characters else NONE
    return Estimate(characters // CHARACTERS_PER_TOKEN, rule)


def _message_characters(messages: object) -> int:
    if not isinstance(messages, list):
        return 0
    total = 0
    for message in messages:
        if isinstance(message, dict):
            content = message.get("content")
            total += len(content) if isinstance(content, str) else _content_characters(content)
    return total


def _input_characters(given: object) -> int:
    """/v1/responses takes a string or a list of items; items with `content` are messages."""
    return len(given) if isinstance(given, str) else _message_characters(given)


# The part types that carry prompt text: chat and messages say "text", responses the other two.
# A tuple, because a client may put something there that has no hash.
TEXT_PARTS = ("text", "input_text", "output_text")


def _content_characters(content: object) -> int:
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, list):
        return 0
    return sum(
        len(part["text"])
        for part in content
        if isinstance(part, dict)
        and part.get("type") in TEXT_PARTS
        and isinstance(part.get("text"), str)
    )
