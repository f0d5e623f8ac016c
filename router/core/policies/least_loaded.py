"""least_loaded: the fewest requests in flight, this router's and other clients'."""

from collections.abc import Sequence
from random import Random

from router.core.candidate import Candidate

__all__ = ["least_loaded"]


def least_loaded(
    candidates: Sequence[Candidate], _uncached: Sequence[int], _now: float, _rng: Random
) -> Sequence[float]:
    """Requests in flight: this router's (exact) plus other clients' (from the engine's gauges).

    Without gauges only this router's count. During slow start the score is divided by the
    engine's weight (0 to 1), so that it gets fewer requests.
    """
    return [
        (c.load.requests + (c.other_requests or 0) + 1) / c.slow_start_weight - 1.0
        for c in candidates
    ]
