"""The candidates of a request in the order of their scores, and who is taken among equals."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from router.core.routing.auto_threshold import Prompt
from router.core.values import Candidate, Endpoint

__all__ = ["Ranking", "least_recent_first"]

CHOSEN_AT: Final = attrgetter("chosen_at")


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


def least_recent_first(candidates: list[Candidate]) -> None:
    """Order candidates so that of equal scores the first one's is the least recently chosen.

    Not a round-robin pointer: requests for different models have different candidates, and a common
    pointer would send each model's requests to the same few.
    """
    candidates.sort(key=CHOSEN_AT)  # one of them is out of place at most, as a rule
