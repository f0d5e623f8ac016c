"""The candidates of a request in the order of their scores, and who is taken among equals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.core.auto_threshold import Prompt
from router.core.values import Candidate, Endpoint

__all__ = ["Ranking", "least_recent_of_best"]

NEVER: Final = 1 << 62
"""A number that no choice has."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates, the prompt tokens that each would have to compute, their scores, and the index of
    the chosen one."""

    candidates: tuple[Candidate, ...]
    uncached: tuple[int, ...]
    scores: tuple[float, ...]
    chosen: int

    @property
    def endpoint(self) -> Endpoint:
        """The chosen endpoint."""
        return self.candidates[self.chosen].endpoint

    @property
    def prompt(self) -> Prompt:
        """The prompt on the chosen endpoint."""
        return Prompt(self.candidates[self.chosen], self.uncached[self.chosen])


def least_recent_of_best(candidates: Sequence[Candidate], scores: Sequence[float]) -> int:
    """The index of the lowest score; among equals, of the least recently chosen.

    Not a round-robin pointer: requests for different models have different candidates, and a common
    pointer would send each model's requests to the same few.
    """
    best = min(scores)
    chosen_at = [
        c.chosen_at if score == best else NEVER for c, score in zip(candidates, scores, strict=True)
    ]
    return chosen_at.index(min(chosen_at))
