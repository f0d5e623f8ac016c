"""The candidates of a request with their scores, and the choice among equal ones."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from router.core.candidate import Candidate
from router.core.routing.auto_threshold import Prompt
from router.core.values import Endpoint

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
    def regret(self) -> int:
        """Prompt tokens that the chosen endpoint has to compute although another one holds them."""
        return self.uncached[self.chosen] - min(self.uncached)

    @property
    def prompt(self) -> Prompt:
        """The prompt on the chosen endpoint."""
        return Prompt(self.candidates[self.chosen], self.uncached[self.chosen])


def least_recent_first(candidates: list[Candidate]) -> None:
    """Sort candidates so that of equal scores the first belongs to the least recently chosen one.

    A round-robin pointer would not work: requests for different models have different candidates,
    and a shared pointer would send each model's requests to the same few engines.
    """
    candidates.sort(key=CHOSEN_AT)  # usually at most one is out of place
