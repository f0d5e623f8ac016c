"""shortest_expected_delay: the engine on which this request is expected to finish first.

A batching engine serves its streams side by side, so the streams on it hardly delay anybody until
its slots are full; what delays everybody on it is its gap between tokens. So work is shared in
proportion to the cube of the speed: an engine that is twice as slow gets an eighth, and its
measurements go on. (A faster one gets in proportion only: it would fill up before that is seen.)
One that is slow is spared: it gets only what it would still finish first.
"""

from collections.abc import Sequence
from random import Random

from router.core.values import Candidate, Facts

__all__ = ["shortest_expected_delay"]

QUEUE_WEIGHT = 256.0
"""What a request weighs that waits for a slot: it is served by nobody, so a free slot on an engine
half as fast is worth more than any place in a queue."""


def shortest_expected_delay(
    candidates: Sequence[Candidate], facts: Facts, _now: float, _rng: Random
) -> Sequence[float]:
    """The work ahead (requests, and prompt tokens at what they cost), weighed by the speed."""
    own = facts.tokens
    scores = []
    some_are_slow = False
    for c in candidates:
        load, slowdown = c.load, c.slowdown
        requests = load.requests + (c.other_requests or 0) + 1
        work = requests + (load.pending + own) * c.prompt_cost
        if requests > c.slots:
            work += QUEUE_WEIGHT * (requests - c.slots)
        weight = slowdown * slowdown * slowdown if slowdown > 1.0 else slowdown
        scores.append(weight * work / c.slow_start_weight)
        some_are_slow = some_are_slow or c.is_slow
    return _sparing_the_slow(candidates, scores, own) if some_are_slow else scores


def _sparing_the_slow(
    candidates: Sequence[Candidate], scores: list[float], own: int
) -> Sequence[float]:
    """The slow behind all others, but for those that would finish before the best of these."""
    quick = [place for place, c in enumerate(candidates) if not c.is_slow]
    if not quick:
        return scores
    best = min(quick, key=scores.__getitem__)
    worst = max(scores[place] for place in quick)
    limit = _finish(candidates[best], own)
    for place, c in enumerate(candidates):
        if c.is_slow:
            finish = _finish(c, own)
            is_sooner = finish < limit
            scores[place] = scores[best] * finish / limit if is_sooner else worst + finish
    return scores


def _finish(c: Candidate, own: int) -> float:
    """When the request would be done there, in times that a usual one takes on a usual engine."""
    requests = c.load.requests + (c.other_requests or 0) + 1
    waiting = max(0.0, requests - c.slots) / c.slots
    return c.slowdown * (1.0 + waiting + (c.load.pending + own) * c.prompt_cost)
