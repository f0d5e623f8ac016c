"""shortest_expected_delay: the engine on which this request is expected to finish first.

With continuous batching, streams hardly delay each other until the slots are full. What matters is
the engine's time per output token and how many prompt tokens it must compute, that is, those that
are not in its prefix cache. The score grows with the cube of the slowdown: an engine twice as slow
gets an eighth of the requests, enough to keep measuring it. Engines faster than the median get
requests in proportion to their speed only, because with the cube they would fill up before the
router sees it. Pending prompt tokens, as far as they are not negligible
(`Candidate.negligible_tokens`), delay the first token in proportion to the slowdown and weigh much
more than one stream more or less; of the prompt that is being computed only what is left of it
counts (`Candidate.pending`). Engines excluded as slow get only requests that they would finish
first.

Computing a prefix on an engine while another engine has it in its cache evicts as many tokens of
other prompts. Those that are requested again must be computed again, which evicts others in turn:
all of them are added to the score as pending prompt tokens (`Candidate.eviction_cost`).

If some engines hold more of the prompt than others, their lowest slowdown of the last two seconds
counts, and the highest of the others: measured speeds fluctuate, and moving the request means
computing its prefix again. If none does, the current slowdown counts, because avoiding an engine
for a moment costs nothing.
"""

from collections.abc import Sequence
from random import Random

from router.core.candidate import Candidate

__all__ = ["shortest_expected_delay"]

QUEUE_WEIGHT = 256.0
"""Weight of a request that would wait for a slot, in running requests: a free slot on an engine
half as fast is better than any place in a queue. (Times `Candidate.queue_factor`: the fewer slots,
the longer it waits.)"""

CACHED_TOKENS_PER_REQUEST = 256
"""Cached prompt tokens that outweigh one more request in flight. (In `pd-router simulate`, 64 is
too few where all prompts share a prefix.)"""


def shortest_expected_delay(
    candidates: Sequence[Candidate], uncached: Sequence[int], now: float, _rng: Random
) -> Sequence[float]:
    """Work on the engine (requests and pending prompt tokens), weighted by its slowdown.

    `uncached`: prompt tokens of this request that each candidate would have to compute.
    """
    least, most = min(uncached), max(uncached)
    scores = []
    some_are_slow = False
    for c, own in zip(candidates, uncached, strict=True):
        load = c.load
        if least == most:
            slowdown = c.slowdown
        else:
            slowdown = c.highest_slowdown if own == most else c.lowest_slowdown
        # A float: mixing it with an int in the operations below takes longer.
        requests = load.requests + (c.other_requests or 0) + 1.0
        waiting = load.pending
        pending = (waiting + own) * c.prompt_slowdown
        work = requests + pending * c.prompt_cost
        if requests > c.slots:
            work += QUEUE_WEIGHT * c.queue_factor * (requests - c.slots)
        score = work
        if slowdown != 1.0:
            score *= slowdown * slowdown * slowdown if slowdown > 1.0 else slowdown
        if c.slow_start_weight != 1.0:
            score /= c.slow_start_weight
        if own > least:
            score += slowdown * (own - least) * (1.0 / CACHED_TOKENS_PER_REQUEST + c.eviction_cost)
        if waiting:  # less what is computed of it
            pending = (c.pending(now) + own) * c.prompt_slowdown
        delaying = pending - least - c.negligible_tokens
        if delaying > 0.0:
            score += slowdown * delaying * c.first_token_weight
        scores.append(score)
        if c.is_slow:
            some_are_slow = True
    return _avoiding_slow(candidates, scores, uncached) if some_are_slow else scores


def _avoiding_slow(
    candidates: Sequence[Candidate], scores: list[float], uncached: Sequence[int]
) -> Sequence[float]:
    """Rank slow engines last, unless they would finish before the best of the others."""
    quick = [place for place, c in enumerate(candidates) if not c.is_slow]
    if not quick:
        return scores
    best = min(quick, key=scores.__getitem__)
    worst = max(scores[place] for place in quick)
    limit = _finish(candidates[best], uncached[best])
    for place, c in enumerate(candidates):
        if c.is_slow:
            finish = _finish(c, uncached[place])
            is_sooner = finish < limit
            scores[place] = scores[best] * finish / limit if is_sooner else worst + finish
    return scores


def _finish(c: Candidate, own: int) -> float:
    """Expected finish time, in units of a mean request on a median engine."""
    requests = c.load.requests + (c.other_requests or 0) + 1
    waiting = max(0.0, requests - c.slots) / c.slots
    pending = (c.load.pending + own) * c.prompt_slowdown
    return c.slowdown * (1.0 + waiting + pending * c.prompt_cost)
