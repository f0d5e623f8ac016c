"""least_loaded: the fewest requests in flight, this router's and other clients'."""

from collections.abc import Sequence
from random import Random

from router.core.values import Candidate

__all__ = ["least_loaded"]


def least_loaded(
    candidates: Sequence[Candidate], _uncached: Sequence[int], _now: float, _rng: Random
) -> Sequence[float]:
    """This router's requests in flight, which are exact, plus other clients', by the gauges.

    Without gauges only this router's count. During slow start an engine gets less.
    """
    return [
        (c.load.requests + (c.other_requests or 0) + 1) / c.slow_start_weight - 1.0
        for c in candidates
    ]
