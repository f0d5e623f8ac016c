"""Tokens per byte of text, by model, learned from the usage that engines state.

What the estimate of `tokens.py` is multiplied by where tokens stand for work. Bytes, not
characters: under the tokenizers of today a token of English is about four bytes, and so is one of
Chinese, where characters per token differ by three.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from router.core.values import Facts
from router.core.wire.contents import has_media

__all__ = ["BYTES_PER_TOKEN", "MIN_BYTES", "TokenRatios", "learnable_bytes"]

BYTES_PER_TOKEN: Final = 4.0
"""Until usage tells."""

MIN_BYTES: Final = 4096
"""Shorter texts tell as much of the chat template as of the text, and are no work to speak of: half
a step of vLLM's (max_num_batched_tokens, 2048 at least)."""

MEMORY_BYTES: Final = 1 << 20
"""Text after which older counts are halved."""

WARM_BYTES: Final = 8 * MIN_BYTES
"""Text from which counts are believed."""

LEAST, MOST = 1 / 16, 2.0
"""Tokens per byte that a text can have: more or less is not a text's doing (an image counts
thousands, a truncated prompt few)."""

MAX_MODELS: Final = 1024

UNCOUNTED: Final = ("tools", "documents", "previous_response_id", "truncate_prompt_tokens")
"""Members of a body by which its prompt has more tokens than its text has, or fewer."""


def learnable_bytes(facts: Facts) -> int:
    """The bytes of a prompt's text if the prompt is nothing but that, so that usage tells its
    tokens; else 0."""
    body = facts.body
    if any(map(body.get, UNCOUNTED)) or has_media(facts) or _has_thoughts(body.get("messages")):
        return 0
    return facts.text_bytes


def _has_thoughts(messages: object) -> bool:
    """Of a chat: templates leave out those of earlier turns."""
    if not isinstance(messages, list):
        return False
    spoken = [message for message in messages if isinstance(message, dict)]
    return any(each.get("reasoning") or each.get("reasoning_content") for each in spoken)


class TokenRatios:
    """Of the models that engines serve."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}
        """Tokens and bytes of late."""

    def learn(self, model: str | None, text_bytes: int, tokens: int) -> None:
        """An engine said how many tokens a text of this model's has. Impossible numbers are
        ignored. The model must be one that engines serve: clients may name any."""
        if model is None or text_bytes < MIN_BYTES:
            return
        if not LEAST * text_bytes <= tokens <= MOST * text_bytes:
            return
        counts = self._counts
        known_tokens, known_bytes = counts.get(model, (0.0, 0.0))
        if model not in counts and len(counts) >= MAX_MODELS:
            del counts[next(iter(counts))]
        share = 0.5 if known_bytes > MEMORY_BYTES else 1.0
        counts[model] = share * known_tokens + tokens, share * known_bytes + text_bytes

    def per_byte(self, model: str | None) -> float | None:
        """The tokens per byte of a model; None if not known."""
        known = None if model is None else self._counts.get(model)
        if known is None or known[1] < WARM_BYTES:
            return None
        return known[0] / known[1]

    def scale(self, facts: Facts) -> float:
        """The factor between a request's estimated tokens and those that it probably has."""
        if not facts.text_bytes or not facts.tokens:
            return 1.0
        per_byte = self.per_byte(facts.model)
        if per_byte is None:
            per_byte = 1.0 / BYTES_PER_TOKEN
            if facts.text_bytes < BYTES_PER_TOKEN * (facts.tokens + 1):  # ASCII: so it is estimated
                return 1.0
        return facts.text_bytes * per_byte / facts.tokens

    def of(self, models: Iterable[str]) -> Mapping[str, float]:
        """The tokens per byte of those of the models for which they are known."""
        found = ((model, self.per_byte(model)) for model in sorted(models))
        return {model: ratio for model, ratio in found if ratio is not None}
