"""How much prompts that an engine computes hold up the streams beside them.

A step that also computes prompts takes longer, for every stream: without that an engine would look
slow whenever it computes a long prompt, and fast when it computes none. What streams took is split
by least squares, `seconds = a * tokens + b * prompt tokens, times the streams beside them`, over
the measurements of a pool: b over a is what a prompt token counts for. Where both always grow
together nothing can be split, and prompts count for nothing.
"""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Interference", "prompt_share_of"]

MEMORY = 0.99
"""Weight of what was before at each measurement, four of which come in a second."""

RIDGE = 0.1
"""Relative variance of prompts per token from which measurements tell one from the other. Of two
errors this makes the smaller one: where prompts count for too much, an engine without any looks
slow."""

MOST = 0.25
"""Tokens that a prompt token counts for, at most: hundreds of them fit into one step."""


class Sums(NamedTuple):
    """What a fit needs of its measurements; each counts as much as it has seconds, for its relative
    error."""

    tokens: float = 0.0
    prompts: float = 0.0
    tokens_tokens: float = 0.0
    tokens_prompts: float = 0.0
    prompts_prompts: float = 0.0


class Interference:
    """One engine's measurements, older ones counting less."""

    __slots__ = ("sums",)

    def __init__(self) -> None:
        self.sums = Sums()

    def add(self, tokens: float, prompts: float, seconds: float) -> None:
        """Streams took `seconds` in all for so many tokens, beside so many prompt tokens, each of
        which counts once for each stream."""
        before = self.sums
        self.sums = Sums(
            MEMORY * before.tokens + tokens,
            MEMORY * before.prompts + prompts,
            MEMORY * before.tokens_tokens + tokens * tokens / seconds,
            MEMORY * before.tokens_prompts + tokens * prompts / seconds,
            MEMORY * before.prompts_prompts + prompts * prompts / seconds,
        )


def prompt_share_of(fits: Iterable[Interference]) -> float:
    """How many tokens of a stream take as long as one prompt token beside it."""
    sums = Sums(*map(sum, zip(Sums(), *(fit.sums for fit in fits), strict=True)))
    of_prompts = sums.prompts_prompts * (1.0 + RIDGE)
    per_prompt = sums.prompts * sums.tokens_tokens - sums.tokens * sums.tokens_prompts
    per_token = sums.tokens * of_prompts - sums.prompts * sums.tokens_prompts
    if per_prompt <= 0.0:
        return 0.0
    return min(MOST, per_prompt / per_token) if per_token > 0.0 else MOST
