"""Log-probabilities in both OpenAI formats: plausible numbers that depend only on the token."""

from collections.abc import Sequence
from typing import Any

from router.simulator.model.language import WORDS
from router.simulator.model.tokenizer import bytes_of


def _shown(token: int) -> str:
    return bytes_of(token).decode("utf-8", "replace")


def _logprob(token: int) -> float:
    return -(token % 997) / 1000


def _alternatives(token: int, count: int) -> list[tuple[int, float]]:
    """The token itself first, then unlikelier words."""
    others = [WORDS[(token + place) % len(WORDS)] for place in range(1, count)]
    return [(token, _logprob(token)), *((word, -2.0 - word % 7) for word in others)][:count]


def chat_logprobs(tokens: Sequence[int], top: int) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    return {
        "content": [
            {
                **_entry(token, _logprob(token)),
                "top_logprobs": [_entry(*other) for other in _alternatives(token, top)],
            }
            for token in tokens
        ]
    }


def _entry(token: int, logprob: float) -> dict[str, Any]:
    return {"token": _shown(token), "logprob": logprob, "bytes": list(bytes_of(token))}


def completion_logprobs(tokens: Sequence[int], top: int, offset: int) -> dict[str, Any]:
    """The `logprobs` of a completions choice whose text begins at `offset`."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(_shown(token))
    tops = [{_shown(word): value for word, value in _alternatives(token, top)} for token in tokens]
    return {
        "text_offset": offsets,
        "token_logprobs": [_logprob(token) for token in tokens],
        "tokens": [_shown(token) for token in tokens],
        "top_logprobs": tops if top else [None] * len(tokens),
    }
