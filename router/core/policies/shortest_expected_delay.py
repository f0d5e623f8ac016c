"""shortest_expected_delay: the engine on which this request is expected to finish first.

With continuous batching, streams hardly delay each other until the slots are full; what matters is
the engine's gap between tokens, and how much of the prompt it must compute: what its prefix cache
holds, it need not. So work is shared in proportion to the cube of the speed: an engine twice as
slow gets an eighth, enough to keep measuring it. (Faster ones get in proportion only: they would
fill up before that is seen.) Prompt tokens ahead of the first token delay it in proportion to the
slowdown, and count much more than one stream more or less. Engines excluded as slow get only what
they would finish first.

A copy of what another engine holds evicts as many other tokens. As far as what the pool evicts is
asked for again, they will have to be computed, which evicts others in turn: all these count as
prompt tokens ahead of a first token.

An engine that holds more of the prompt than others is as slow as it has been for two seconds at
least: measured speeds vary, and what it holds would have to be computed again elsewhere. To avoid
the others for a moment costs nothing.
"""

from collections.abc import Sequence
from random import Random

from router.core.values import Candidate

__all__ = ["shortest_expected_delay"]

QUEUE_WEIGHT = 256.0
"""Weight of a request that would wait for a slot: a free slot on an engine half as fast is better
than any place in a queue."""

STEP_TOKENS = 2048
"""Prompt tokens that delay nobody by much: vLLM computes them in one step (max_num_batched_tokens,
2048 at least)."""

HELD_TOKENS_PER_REQUEST = 256
"""An engine may have one more request for each so many tokens of a prompt that it holds and others
do not. (`pd-router simulate` finds 64 too few where all prompts begin alike.)"""


def shortest_expected_delay(
    candidates: Sequence[Candidate], uncached: Sequence[int], _now: float, _rng: Random
) -> Sequence[float]:
    """Work on the engine (requests and pending prompt tokens), weighted by its slowdown."""
    least, most = min(uncached), max(uncached)
    most_in_a_step = least + STEP_TOKENS
    scores = []
    some_are_slow = False
    for c, own in zip(candidates, uncached, strict=True):
        load, slowdown = c.load, c.slowdown if own == most else c.lasting_slowdown
        # A float, because an integer takes longer to be compared with one, or added to one.
        requests = load.requests + (c.other_requests or 0) + 1.0
        pending = (load.pending + own) * c.prompt_slowdown
        work = requests + pending * c.prompt_cost
        if requests > c.slots:
            work += QUEUE_WEIGHT * (requests - c.slots)
        weight = slowdown * slowdown * slowdown if slowdown > 1.0 else slowdown
        score = weight * work / c.slow_start_weight
        if own > least:
            score += slowdown * (own - least) * (1.0 / HELD_TOKENS_PER_REQUEST + c.eviction_cost)
        if pending > most_in_a_step:
            score += slowdown * (pending - most_in_a_step) * c.first_token_weight
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
