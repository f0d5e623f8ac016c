"""least_loaded: the fewest requests in flight, this router's and everybody else's."""

from collections.abc import Sequence
from random import Random

from router.core.values import Candidate, Facts

__all__ = ["least_loaded"]


def least_loaded(
    candidates: Sequence[Candidate], _facts: Facts, _now: float, _rng: Random
) -> Sequence[float]:
    """Own in-flight requests, which are exact and immediate, plus what the gauges say of others.

    A candidate whose gauges are missing counts its own requests only. With no counts to tell
    engines apart all scores are equal, and the choice is round-robin. One that comes back gets its
    share little by little.
    """
    return [
        (c.load.requests + (c.other_requests or 0) + 1) / c.slow_start_weight - 1
        for c in candidates
    ]
