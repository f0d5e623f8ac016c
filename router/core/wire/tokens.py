"""Estimates the number of tokens of a prompt without a tokenizer.

Text counts characters // 4, the usual average for English with the BPE tokenizers of current
models. Text includes tool call inputs, tool results and thinking (`contents.py`). A list of token
ids counts its length, media their probable size (`media.py`). Tool definitions and everything else
count 0.

CJK text is underestimated about threefold. `TokenRatios` corrects the estimate where tokens stand
for work, by the usage that engines report for each model.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from router.core.request_facts import DEFAULT_IMAGE_RULE, Facts, ImageRule
from router.core.values import CHAT, COMPLETIONS, GENERATE, MESSAGES, RESPONSES, RouteKind
from router.core.wire.contents import beside_content, has_media, json_text, text_member, text_of
from router.core.wire.media import MAX_MEDIA_TOKENS, media_tokens

__all__ = [
    "BYTES_PER_TOKEN",
    "CHARACTERS_PER_TOKEN",
    "MIN_BYTES",
    "NAMED_MEMBERS",
    "Estimate",
    "TokenRatios",
    "estimate",
    "learnable_bytes",
    "prompts",
    "sole_ids",
]

CHARACTERS_PER_TOKEN = 4

NAMED_MEMBERS: Final = 2
"""Number of members of most messages: role and content, which are looked up first."""

BY_CHARACTERS = "characters / 4"
BY_IDS = "token ids"
BY_BOTH = "characters / 4 + token ids"
BY_MEDIA = "characters / 4 + media"
NONE = "no text"


Estimate = tuple[int, str, int, int]
"""Estimated number of input tokens, the name of the rule used, the UTF-8 bytes of the text (0 if
some of it is token ids), and the tokens that are media. A plain tuple, because creating a
NamedTuple takes ten times as long."""


def estimate(
    kind: RouteKind, body: Mapping[str, Any], rule: ImageRule = DEFAULT_IMAGE_RULE
) -> Estimate:
    """Estimate the input tokens of a parsed body. Malformed parts count 0."""
    if kind is COMPLETIONS:
        prompt = body.get("prompt")
        if isinstance(prompt, str):  # in most requests
            return len(prompt) // CHARACTERS_PER_TOKEN, BY_CHARACTERS, _bytes_of(prompt), 0
        return _of_prompts(prompts(prompt))
    texts: list[str] = []
    media = 0
    if kind is CHAT:
        media = _add_messages(body.get("messages"), texts, rule)
    elif kind is MESSAGES:
        media = _add_content(body.get("system"), texts, rule)
        media += _add_messages(body.get("messages"), texts, rule)
    elif kind is RESPONSES:
        media = _add_content(body.get("instructions"), texts, rule)
        media += _add_messages(body.get("previous_input_messages"), texts, rule)
        media += _add_input(body.get("input"), texts, rule)
    elif kind is GENERATE:
        return _of_prompts([body.get("token_ids")])
    return _of_texts(texts, media)


def prompts(prompt: object) -> list[object]:
    """The prompts in the `prompt` of a completion: each a string or a list of token ids.

    A list of one prompt is that prompt; a list of ids is one prompt.
    """
    if isinstance(prompt, list):
        is_ids = not prompt or any(isinstance(item, int) for item in prompt)
        return [prompt] if is_ids else prompt
    return [] if prompt is None else [prompt]


def sole_ids(body: Mapping[str, Any]) -> object:
    """The prompt of /inference/v1/generate; None if it contains media, whose placeholders are the
    same for all images."""
    has_media = body.get("features") or body.get("content_parts")
    return None if has_media else body.get("token_ids")


def _of_prompts(items: Iterable[object]) -> Estimate:
    by_ids = by_text = 0
    texts: list[str] = []
    has_ids = False
    for item in items:
        if isinstance(item, str):
            by_text += len(item) // CHARACTERS_PER_TOKEN
            texts.append(item)
        elif isinstance(item, list):
            by_ids += len(item)
            has_ids = True
    if has_ids:
        return by_ids + by_text, BY_BOTH if texts else BY_IDS, 0, 0
    return by_text, BY_CHARACTERS if texts else NONE, sum(map(_bytes_of, texts)), 0


def _of_texts(texts: list[str], media: int) -> Estimate:
    media = min(media, MAX_MEDIA_TOKENS)
    characters = sum(map(len, texts))
    if not characters and not media:
        return 0, NONE, 0, 0
    size = characters if all(map(str.isascii, texts)) else sum(map(_bytes_of, texts))
    rule = BY_MEDIA if media else BY_CHARACTERS
    return characters // CHARACTERS_PER_TOKEN + media, rule, size, media


def _bytes_of(text: str) -> int:
    """Length in UTF-8. For ASCII that is the number of characters, and `isascii` takes no time."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _add_messages(messages: object, texts: list[str], rule: ImageRule) -> int:
    """Add the text of messages. Returns the tokens of their media, as all of these functions."""
    media = 0
    if not isinstance(messages, list):
        return media
    for message in messages:
        if isinstance(message, dict):
            content = message.get("content")
            if isinstance(content, str):
                texts.append(content)
            elif content is not None:
                media += _add_content(content, texts, rule)
            if content is None or len(message) > NAMED_MEMBERS:
                for other in beside_content(message):
                    media += _add_tool_content(other, texts, rule)
    return media


def _add_input(given: object, texts: list[str], rule: ImageRule) -> int:
    """Add the `input` of /v1/responses: a string or a list of items, which are messages if they
    have `content`."""
    if isinstance(given, str):
        texts.append(given)
        return 0
    return _add_messages(given, texts, rule)


def _add_content(content: object, texts: list[str], rule: ImageRule) -> int:
    media = 0
    if isinstance(content, str):
        texts.append(content)
    elif isinstance(content, list):
        for part in content:
            text = text_of(part)
            if text is not None:
                texts.append(text)
            elif (name := text_member(part)) is not None:
                media += _add_tool_content(part.get(name), texts, rule)
            elif isinstance(part, dict):
                media += media_tokens(part, rule)
    return media


def _add_tool_content(content: object, texts: list[str], rule: ImageRule) -> int:
    """Add a tool call's input, a tool result or a thinking block."""
    media = 0
    if isinstance(content, str):
        texts.append(content)
    elif isinstance(content, dict):
        texts.append(json_text(content))
    elif isinstance(content, list):
        for part in content:
            text = text_of(part)
            if text is not None:
                texts.append(text)
            elif isinstance(part, dict):
                media += media_tokens(part, rule)
    return media


BYTES_PER_TOKEN: Final = 4.0
"""Default, until usage has been reported."""

MIN_BYTES: Final = 4096
"""Shorter texts are not used: their tokens depend as much on the chat template, and they are little
work (half a step of vLLM, whose max_num_batched_tokens is at least 2048)."""

MEMORY_BYTES: Final = 1 << 20
"""Bytes of text after which older counts are halved."""

WARM_BYTES: Final = 8 * MIN_BYTES
"""Bytes of text from which the ratio is used."""

MIN_TOKENS_PER_BYTE, MAX_TOKENS_PER_BYTE = 1 / 16, 2.0
"""Bounds for tokens per byte of text. Values beyond them have other causes, such as a truncated
prompt."""

MIN_MEDIA_RATIO, MAX_MEDIA_RATIO = 1 / 32, 32.0
"""Bounds for the tokens of prompts with media over the estimated ones. A fixed number of tokens per
image may be a sixteenth of the estimate (Gemma 3, large images), or many times a small one."""

WITH_MEDIA: Final = " with media"
"""Ending of the name under which the ratio of a model's prompts with media is kept."""

MAX_MODELS: Final = 1024

UNCOUNTED: Final = ("tools", "documents", "previous_response_id", "truncate_prompt_tokens")
"""Members of a body that make the prompt longer or shorter than its text."""


def learnable_bytes(facts: Facts) -> int:
    """The bytes of a prompt that consists only of text, so that usage shows the text's tokens; with
    media, the bytes of a text of as many estimated tokens. 0 for other prompts."""
    body = facts.body
    if any(map(body.get, UNCOUNTED)) or _has_thoughts(body.get("messages")):
        return 0
    if facts.media_tokens:
        size = CHARACTERS_PER_TOKEN * facts.tokens
        return size if size >= MIN_BYTES else 0
    return 0 if has_media(facts) else facts.text_bytes


def _has_thoughts(messages: object) -> bool:
    """Whether a chat contains thinking, which templates leave out for earlier turns."""
    if not isinstance(messages, list):
        return False
    spoken = [message for message in messages if isinstance(message, dict)]
    return any(each.get("reasoning") or each.get("reasoning_content") for each in spoken)


class TokenRatios:
    """The ratios of the models that engines serve."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}
        """Tokens and bytes per model, with decay."""

    def learn(
        self, model: str | None, text_bytes: int, tokens: int, *, has_media: bool = False
    ) -> None:
        """Learn from an engine's usage: a text of this model had so many tokens. `has_media`: so
        had a prompt with media, estimated like a text of `text_bytes`. Implausible numbers are
        ignored. The model must be one that engines serve, because clients can send any name."""
        if model is None or text_bytes < MIN_BYTES:
            return
        least, most = MIN_TOKENS_PER_BYTE, MAX_TOKENS_PER_BYTE
        if has_media:
            model += WITH_MEDIA
            least, most = MIN_MEDIA_RATIO / BYTES_PER_TOKEN, MAX_MEDIA_RATIO / BYTES_PER_TOKEN
        if not least * text_bytes <= tokens <= most * text_bytes:
            return
        counts = self._counts
        known_tokens, known_bytes = counts.get(model, (0.0, 0.0))
        if model not in counts and len(counts) >= MAX_MODELS:
            del counts[next(iter(counts))]
        share = 0.5 if known_bytes > MEMORY_BYTES else 1.0
        counts[model] = share * known_tokens + tokens, share * known_bytes + text_bytes

    def forget_media(self) -> None:
        """Forget what prompts with media have shown, because they are estimated in another way."""
        self._counts = {
            name: counts for name, counts in self._counts.items() if not name.endswith(WITH_MEDIA)
        }

    def per_byte(self, model: str | None) -> float | None:
        """The tokens per byte of a model; None if unknown."""
        known = None if model is None else self._counts.get(model)
        if known is None or known[1] < WARM_BYTES:
            return None
        return known[0] / known[1]

    def scale(self, facts: Facts) -> float:
        """The ratio between a request's probable and estimated tokens."""
        media = facts.media_tokens
        if media and facts.model is not None:
            of_all = self.per_byte(facts.model + WITH_MEDIA)
            if of_all is not None:
                return of_all * BYTES_PER_TOKEN
        if not facts.text_bytes or not facts.tokens:
            return 1.0
        per_byte = self.per_byte(facts.model)
        if per_byte is None:
            per_byte = 1.0 / BYTES_PER_TOKEN
            if facts.text_bytes < BYTES_PER_TOKEN * (facts.tokens - media + 1):  # ASCII
                return 1.0
        return (facts.text_bytes * per_byte + media) / facts.tokens

    def of(self, models: Iterable[str]) -> Mapping[str, float]:
        """The tokens per byte of those of the models for which they are known."""
        found = ((model, self.per_byte(model)) for model in sorted(models))
        return {model: ratio for model, ratio in found if ratio is not None}
