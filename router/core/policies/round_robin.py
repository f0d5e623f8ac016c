"""round_robin: all candidates are equal, so the least recently chosen is taken."""

from collections.abc import Sequence
from random import Random

from router.core.candidate import Candidate

__all__ = ["round_robin"]


def round_robin(
    candidates: Sequence[Candidate], _uncached: Sequence[int], _now: float, _rng: Random
) -> Sequence[float]:
    """The same score for every candidate: the scheduler's tie-break rotates through them."""
    return [0.0] * len(candidates)
