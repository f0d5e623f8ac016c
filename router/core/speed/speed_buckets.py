"""Measurements of an engine in the last ticks, one bucket per tick, and how many buckets an
estimate uses.

Where rates are steady, a second's worth. Where they fluctuate from tick to tick, as many as bring
the relative error of their mean below `MEAN_ERROR`.
"""

import math
from collections import deque
from itertools import islice
from typing import NamedTuple

__all__ = ["MAX_BUCKETS", "MIN_BUCKETS", "RELIABLE_TOKENS", "Bucket", "SpeedBuckets", "window_for"]

MAX_BUCKETS = 16
"""Most buckets that an estimate uses."""

MIN_BUCKETS = 4
"""Fewest buckets that an estimate uses: a step that also prefills takes several times as long."""

MEAN_ERROR = 0.25
"""Target for the relative error of an estimate where rates fluctuate."""

STEADY_WINDOW = 8
"""Most buckets that are needed where engines are steady, apart from pauses."""

VARIANCE_BUCKETS = 8
"""Fewest buckets for a variance of the rates."""

RELIABLE_TOKENS = 8
"""Tokens that make an estimate reliable."""


class Bucket(NamedTuple):
    """The measurements of one tick, or the sums over several."""

    tokens: float = 0.0
    stream_seconds: float = 0.0
    prompts_beside: float = 0.0
    """Prompt tokens computed, times the streams that were open meanwhile."""
    prompt_work: int = 0
    prompt_seconds: float = 0.0
    is_pause: bool = False
    """Whether the engine was in a pause (`pauses.py`); not set in sums."""


class SpeedBuckets:
    """The buckets of one engine."""

    __slots__ = ("_buckets", "window")

    def __init__(self) -> None:
        self._buckets: deque[Bucket] = deque(maxlen=MAX_BUCKETS)
        """Newest first."""
        self.window = MIN_BUCKETS
        """Buckets that an estimate uses, if they have enough tokens (`window_for`)."""

    def add(self, bucket: Bucket) -> None:
        """Append the bucket of a tick that has ended."""
        self._buckets.appendleft(bucket)

    def clear(self) -> None:
        """Remove all buckets."""
        self._buckets.clear()

    @property
    def are_steady(self) -> bool:
        """Whether tokens come in every tick, apart from pauses: only then does a tick without any
        mean something."""
        return self.window <= STEADY_WINDOW

    @property
    def timed(self) -> int:
        """How many of the last `MIN_BUCKETS` buckets had open streams."""
        return sum([bucket.stream_seconds > 0 for bucket in islice(self._buckets, MIN_BUCKETS)])

    def sums(self) -> Bucket:
        """The sums over as many buckets as an estimate uses."""
        tokens = 0.0
        for place, bucket in enumerate(self._buckets):
            if place >= self.window and tokens >= RELIABLE_TOKENS:
                return self.latest(place)
            tokens += bucket.tokens
        return self.latest(len(self._buckets))

    def latest(self, count: int) -> Bucket:
        """The sums over the last `count` buckets."""
        tokens, seconds, beside, work, prompt_seconds = 0.0, 0.0, 0.0, 0, 0.0
        for produced, streamed, prompts, computed, computing, _ in islice(self._buckets, count):
            tokens += produced
            seconds += streamed
            beside += prompts
            work += computed
            prompt_seconds += computing
        return Bucket(tokens, seconds, beside, work, prompt_seconds)

    def rate_variance(self, prompt_share: float) -> float | None:
        """Relative variance of the tokens per second from bucket to bucket, without pauses; None if
        there are too few buckets. `prompt_share`: output tokens that take as long as one prompt
        token computed beside them."""
        timed = []
        all_seconds = all_tokens = 0.0
        for produced, seconds, beside, _, _, is_pause in self._buckets:
            if seconds > 0.0 and not is_pause:
                tokens = produced + prompt_share * beside
                timed.append((seconds, tokens))
                all_seconds += seconds
                all_tokens += tokens
        if len(timed) < VARIANCE_BUCKETS or not all_tokens:
            return None
        mean = all_tokens / all_seconds
        squares = [seconds * (tokens / seconds / mean - 1.0) ** 2 for seconds, tokens in timed]
        return sum(squares) / all_seconds


def window_for(variance: float) -> int:
    """How many buckets bring the relative error of a mean rate below `MEAN_ERROR`, given the
    relative variance of the buckets' rates; from `MIN_BUCKETS` to `MAX_BUCKETS`."""
    needed = variance / (MEAN_ERROR * MEAN_ERROR)
    return MAX_BUCKETS if needed > MAX_BUCKETS else max(MIN_BUCKETS, math.ceil(needed))
