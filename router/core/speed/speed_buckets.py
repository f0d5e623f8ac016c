"""Measurements of an engine in the last ticks, one bucket per tick.

How many buckets an estimate uses: where rates are steady, a second's worth; where they fluctuate
from tick to tick, as many as bring the relative error of their mean below `MEAN_ERROR`.

Two things look like slowness and are not. An engine may pause for a second (the host swaps, a CUDA
graph is captured, the network path fails over) and then continue with all its streams (`Pauses`).
And a step that also computes prompts takes longer, for every stream (`Interference`).
"""

import math
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from router.core.speed.tuning import (
    HIDDEN_TICKS,
    INTERFERENCE_DECAY,
    INTERFERENCE_RIDGE,
    MAX_BUCKETS,
    MAX_PROMPT_SHARE,
    MEAN_ERROR,
    MIN_BUCKETS,
    MISSED_EVENTS,
    PROMPT_SHARE_MARGIN,
    RELIABLE_TOKENS,
    SHORTEST_GAPS,
    STEADY_TICKS,
    STEADY_WINDOW,
    VARIANCE_BUCKETS,
)

__all__ = [
    "Bucket",
    "Interference",
    "Pauses",
    "SpeedBuckets",
    "most_prompt_share",
    "prompt_share_of",
    "window_for",
]


class Bucket(NamedTuple):
    """The measurements of one tick, or the sums over several."""

    tokens: float = 0.0
    stream_seconds: float = 0.0
    prompts_beside: float = 0.0
    """Prompt tokens computed, times the streams that were open meanwhile."""
    prompt_work: int = 0
    prompt_seconds: float = 0.0
    is_pause: bool = False
    """Whether the engine was in a pause; not set in sums."""


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


class Pauses:
    """Distinguishes an engine that paused and continues at its usual speed from a slow one.

    During a pause its requests do not end, so its load alone keeps new ones away. If it were also
    rated slow, it would get no requests just after it has recovered, and the other engines would
    have them when the next one pauses. An engine whose steps are long does not count as pausing:
    before and after a pause, tokens arrive in every tick.
    """

    __slots__ = ("_gaps", "_missed", "_silent", "_steady", "since")

    def __init__(self) -> None:
        self.since: int | None = None
        """Whole ticks since the end of its last pause; None: it has not paused."""
        self._steady = 0
        """Ticks in a row with tokens."""
        self._silent = 0
        """Ticks of the pause that is going on or has just ended; 0 if there is none."""
        self._gaps = self._missed = 0.0
        """Tokens of one stream, and events of all streams, that were missed in the pause."""

    @property
    def is_silent(self) -> bool:
        """Whether the last tick was part of a pause."""
        return self._silent > 0 and self._steady == 0

    @property
    def hides_speed(self) -> bool:
        """Whether it is in a short pause, or has resumed too recently to measure its speed."""
        return self._silent > 0 and (self._steady > 0 or self._silent <= HIDDEN_TICKS)

    def tick(
        self, tokens: float, stream_seconds: float, seconds: float, gap: float, per_event: float
    ) -> None:
        """Count a tick of `seconds` with `tokens` (first tokens included) of streams that were open
        for `stream_seconds` in all. `gap`: seconds between two tokens of one stream before this
        tick, 0 if not known; `per_event`: tokens per SSE event."""
        if self.since is not None:
            self.since += 1
        if tokens:
            self._steady += 1
            self._go_on()
        elif stream_seconds and gap:
            self._stand_still(seconds / gap, stream_seconds / (gap * per_event))

    def _go_on(self) -> None:
        if self._silent:
            if self._gaps < SHORTEST_GAPS or self._missed < MISSED_EVENTS:
                self._silent = 0
            elif self._steady >= STEADY_TICKS:
                self._silent, self.since = 0, 1

    def _stand_still(self, gaps: float, events: float) -> None:
        if self._steady >= STEADY_TICKS:
            self._gaps = self._missed = 0.0
        elif self._steady or not self._silent:  # its steps are long
            self._steady = self._silent = 0
            return
        self._steady = 0
        self._silent += 1
        self._gaps += gaps
        self._missed += events


class Regression(NamedTuple):
    """Sums of the regression. Measurements are weighted by 1 / seconds, so that relative errors
    count."""

    tokens: float = 0.0
    prompts: float = 0.0
    tokens_tokens: float = 0.0
    tokens_prompts: float = 0.0
    prompts_prompts: float = 0.0


class Interference:
    """How much the prompts that one engine computes delay the streams beside them, exponentially
    decayed.

    Otherwise an engine would look slow whenever it computes a long prompt. The streams' seconds are
    split by least squares, `seconds = a * tokens + b * (prompt tokens * streams beside them)`, over
    the measurements of a pool; b / a is how many output tokens a prompt token counts for. Where
    both terms always grow together they cannot be separated, and prompts count for nothing.

    Where all engines become slow at once, streams stay open for longer, so that prompts, times the
    streams beside them, grow with the seconds, and the regression attributes the slowness to
    prompts. So b is bounded by the time that first tokens show for a prompt token.
    """

    __slots__ = ("sums",)

    def __init__(self) -> None:
        self.sums = Regression()

    def add(self, tokens: float, prompts: float, seconds: float) -> None:
        """Count a measurement: streams were open for `seconds` in all and produced `tokens`.
        `prompts`: prompt tokens computed meanwhile, each counted once per open stream."""
        before = self.sums
        self.sums = Regression(
            INTERFERENCE_DECAY * before.tokens + tokens,
            INTERFERENCE_DECAY * before.prompts + prompts,
            INTERFERENCE_DECAY * before.tokens_tokens + tokens * tokens / seconds,
            INTERFERENCE_DECAY * before.tokens_prompts + tokens * prompts / seconds,
            INTERFERENCE_DECAY * before.prompts_prompts + prompts * prompts / seconds,
        )


def most_prompt_share(latest: Iterable[Bucket]) -> float:
    """`PROMPT_SHARE_MARGIN` times b / a, if a prompt token delays the streams beside it for as long
    as it takes to compute: the time to first tokens per prompt token computed until then. For short
    prompts that is much, for it includes the rest of a step. `latest`: the sums of each engine's
    last ticks."""
    tokens = seconds = beside = work = work_seconds = 0.0
    for one in latest:
        tokens += one.tokens
        seconds += one.stream_seconds
        beside += one.prompts_beside
        work += one.prompt_work
        work_seconds += one.prompt_seconds
    of_tokens = seconds * work - work_seconds * beside
    if of_tokens <= 0.0:  # nothing was computed, or prompts may have taken all the time
        return MAX_PROMPT_SHARE
    return min(MAX_PROMPT_SHARE, PROMPT_SHARE_MARGIN * work_seconds * tokens / of_tokens)


def prompt_share_of(fits: Iterable[Interference], most: float = MAX_PROMPT_SHARE) -> float:
    """How many tokens of a stream take as long as one prompt token beside it (b / a), from 0 to
    `most`."""
    sums = Regression(*map(sum, zip(Regression(), *(fit.sums for fit in fits), strict=True)))
    of_prompts = sums.prompts_prompts * (1.0 + INTERFERENCE_RIDGE)
    per_prompt = sums.prompts * sums.tokens_tokens - sums.tokens * sums.tokens_prompts
    per_token = sums.tokens * of_prompts - sums.prompts * sums.tokens_prompts
    if per_prompt <= 0.0:
        return 0.0
    return min(most, per_prompt / per_token) if per_token > 0.0 else most
