"""What an engine did in the last ticks, a bucket each, and how many of them tell its speed.

Where rates are steady that is a second. Where they fluctuate from tick to tick, as many buckets are
used as bring the error of their mean below a quarter.
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
"""Relative error of an estimate that more buckets are to bring it below, where rates fluctuate."""

STEADY_WINDOW = 8
"""Most buckets that are needed where engines are steady but for pauses."""

VARIANCE_BUCKETS = 8
"""Buckets that tell how much rates fluctuate."""

RELIABLE_TOKENS = 8
"""Tokens that make an estimate reliable."""


class Bucket(NamedTuple):
    """One tick, or the sums of some."""

    tokens: float = 0.0
    stream_seconds: float = 0.0
    prompts_beside: float = 0.0
    """Prompt tokens computed, each as often as streams were open beside it."""
    prompt_work: int = 0
    prompt_seconds: float = 0.0
    is_pause: bool = False
    """Whether the engine stood still for a moment (`pauses.py`); not in sums."""


class SpeedBuckets:
    """Those of one engine."""

    __slots__ = ("_buckets", "window")

    def __init__(self) -> None:
        self._buckets: deque[Bucket] = deque(maxlen=MAX_BUCKETS)
        """Newest first."""
        self.window = MIN_BUCKETS
        """Buckets that an estimate uses, if they have enough tokens (`window_for`)."""

    def add(self, bucket: Bucket) -> None:
        """A tick is over."""
        self._buckets.appendleft(bucket)

    def clear(self) -> None:
        """Forget them."""
        self._buckets.clear()

    @property
    def are_steady(self) -> bool:
        """Whether tokens come in all ticks, but for pauses: else one without any tells little."""
        return self.window <= STEADY_WINDOW

    @property
    def timed(self) -> int:
        """In how many of the last `MIN_BUCKETS` streams were open."""
        return sum(bucket.stream_seconds > 0 for bucket in islice(self._buckets, MIN_BUCKETS))

    def sums(self) -> Bucket:
        """Of as many as an estimate uses."""
        tokens = 0.0
        for place, bucket in enumerate(self._buckets):
            if place >= self.window and tokens >= RELIABLE_TOKENS:
                return self.latest(place)
            tokens += bucket.tokens
        return self.latest(len(self._buckets))

    def latest(self, count: int) -> Bucket:
        """The sums of the last `count`."""
        tokens, seconds, beside, work, prompt_seconds = 0.0, 0.0, 0.0, 0, 0.0
        for bucket in islice(self._buckets, count):
            tokens += bucket.tokens
            seconds += bucket.stream_seconds
            beside += bucket.prompts_beside
            work += bucket.prompt_work
            prompt_seconds += bucket.prompt_seconds
        return Bucket(tokens, seconds, beside, work, prompt_seconds)

    def rate_variance(self, prompt_share: float) -> float | None:
        """Relative variance of the tokens per second from bucket to bucket, but for pauses; None if
        not known. `prompt_share`: tokens that take as long as a prompt token beside them."""
        timed = [
            (bucket.stream_seconds, bucket.tokens + prompt_share * bucket.prompts_beside)
            for bucket in self._buckets
            if bucket.stream_seconds > 0.0 and not bucket.is_pause
        ]
        all_seconds = sum(seconds for seconds, _ in timed)
        all_tokens = sum(tokens for _, tokens in timed)
        if len(timed) < VARIANCE_BUCKETS or not all_tokens:
            return None
        mean = all_tokens / all_seconds
        squares = (seconds * (tokens / seconds / mean - 1.0) ** 2 for seconds, tokens in timed)
        return sum(squares) / all_seconds


def window_for(variance: float) -> int:
    """How many buckets bring the relative error of a mean rate below `MEAN_ERROR`, if the rates of
    buckets have this relative variance; at least `MIN_BUCKETS`, at most `MAX_BUCKETS`."""
    needed = variance / (MEAN_ERROR * MEAN_ERROR)
    return MAX_BUCKETS if needed > MAX_BUCKETS else max(MIN_BUCKETS, math.ceil(needed))
