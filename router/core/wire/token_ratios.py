"""Tokens per byte of text for each model, learned from the usage that engines report.

The estimate of `tokens.py` is multiplied by it where tokens stand for work. Bytes rather than
characters: with current tokenizers a token has about four bytes in English and in Chinese, whereas
characters per token differ by a factor of three.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from router.core.request_facts import Facts
from router.core.wire.contents import has_media

__all__ = ["BYTES_PER_TOKEN", "MIN_BYTES", "TokenRatios", "learnable_bytes"]

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
"""Bounds for tokens per byte of text. Values beyond them have other causes: an image counts as
thousands of tokens, a truncated prompt as few."""

MAX_MODELS: Final = 1024

UNCOUNTED: Final = ("tools", "documents", "previous_response_id", "truncate_prompt_tokens")
"""Members of a body that make the prompt longer or shorter than its text."""


def learnable_bytes(facts: Facts) -> int:
    """The bytes of a prompt that consists only of text, so that usage shows the text's tokens; 0
    for other prompts."""
    body = facts.body
    if any(map(body.get, UNCOUNTED)) or has_media(facts) or _has_thoughts(body.get("messages")):
        return 0
    return facts.text_bytes


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

    def learn(self, model: str | None, text_bytes: int, tokens: int) -> None:
        """Learn from an engine's usage: a text of this model had so many tokens. Implausible
        numbers are ignored. The model must be one that engines serve, because clients can send any
        name."""
        if model is None or text_bytes < MIN_BYTES:
            return
        if not MIN_TOKENS_PER_BYTE * text_bytes <= tokens <= MAX_TOKENS_PER_BYTE * text_bytes:
            return
        counts = self._counts
        known_tokens, known_bytes = counts.get(model, (0.0, 0.0))
        if model not in counts and len(counts) >= MAX_MODELS:
            del counts[next(iter(counts))]
        share = 0.5 if known_bytes > MEMORY_BYTES else 1.0
        counts[model] = share * known_tokens + tokens, share * known_bytes + text_bytes

    def per_byte(self, model: str | None) -> float | None:
        """The tokens per byte of a model; None if unknown."""
        known = None if model is None else self._counts.get(model)
        if known is None or known[1] < WARM_BYTES:
            return None
        return known[0] / known[1]

    def scale(self, facts: Facts) -> float:
        """The ratio between a request's probable and estimated tokens."""
        if not facts.text_bytes or not facts.tokens:
            return 1.0
        per_byte = self.per_byte(facts.model)
        if per_byte is None:
            per_byte = 1.0 / BYTES_PER_TOKEN
            if facts.text_bytes < BYTES_PER_TOKEN * (facts.tokens + 1):  # ASCII
                return 1.0
        return facts.text_bytes * per_byte / facts.tokens

    def of(self, models: Iterable[str]) -> Mapping[str, float]:
        """The tokens per byte of those of the models for which they are known."""
        found = ((model, self.per_byte(model)) for model in sorted(models))
        return {model: ratio for model, ratio in found if ratio is not None}
