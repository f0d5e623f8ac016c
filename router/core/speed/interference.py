"""How much the prompts that an engine computes delay the streams that run beside them.

A step that also computes prompts takes longer, for every stream. If that were ignored, an engine
would look slow whenever it computes a long prompt. The streams' seconds are split by least squares,
`seconds = a * tokens + b * (prompt tokens * streams beside them)`, over the measurements of a pool;
b / a is how many output tokens a prompt token counts for. Where both terms always grow together
they cannot be told apart, and prompts count for nothing.

Where all engines become slow at once, streams stay open for longer, so that prompts, times the
streams beside them, grow with the seconds, and the regression attributes the slowness to prompts.
So b is bounded by the time that it takes to compute a prompt token, as first tokens tell it.
"""

from collections.abc import Iterable
from typing import NamedTuple

from router.core.speed.speed_buckets import Bucket

__all__ = ["MARGIN", "MAX_PROMPT_SHARE", "Interference", "most_prompt_share", "prompt_share_of"]

DECAY = 0.99
"""Factor by which the sums decay per measurement; there are four a second."""

RIDGE = 0.1
"""Ridge of the regression: relative variance of prompt tokens per token below which the two terms
are not told apart. It errs towards 0, because where prompts count for too much an engine without
any looks slow."""

MAX_PROMPT_SHARE = 0.25
"""Upper bound of the result: hundreds of prompt tokens fit into one step."""

MARGIN = 2.0
"""Factor by which the result may exceed what first tokens tell: that is a mean, and prompts that
miss their cached prefix take longer."""


class Sums(NamedTuple):
    """Sums of the regression. Measurements are weighted by 1 / seconds, so that relative errors
    count."""

    tokens: float = 0.0
    prompts: float = 0.0
    tokens_tokens: float = 0.0
    tokens_prompts: float = 0.0
    prompts_prompts: float = 0.0


class Interference:
    """One engine's measurements, exponentially decayed."""

    __slots__ = ("sums",)

    def __init__(self) -> None:
        self.sums = Sums()

    def add(self, tokens: float, prompts: float, seconds: float) -> None:
        """Count a measurement: streams were open for `seconds` in all and produced `tokens`.
        `prompts`: prompt tokens computed meanwhile, each counted once per open stream."""
        before = self.sums
        self.sums = Sums(
            DECAY * before.tokens + tokens,
            DECAY * before.prompts + prompts,
            DECAY * before.tokens_tokens + tokens * tokens / seconds,
            DECAY * before.tokens_prompts + tokens * prompts / seconds,
            DECAY * before.prompts_prompts + prompts * prompts / seconds,
        )


def most_prompt_share(latest: Iterable[Bucket]) -> float:
    """`MARGIN` times b / a, if a prompt token delays the streams beside it for as long as it takes
    to compute: the time to first tokens per prompt token computed until then. For short prompts
    that is much, for it includes the rest of a step. `latest`: the sums of each engine's last
    ticks."""
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
    return min(MAX_PROMPT_SHARE, MARGIN * work_seconds * tokens / of_tokens)


def prompt_share_of(fits: Iterable[Interference], most: float = MAX_PROMPT_SHARE) -> float:
    """How many tokens of a stream take as long as one prompt token beside it (b / a), from 0 to
    `most`."""
    sums = Sums(*map(sum, zip(Sums(), *(fit.sums for fit in fits), strict=True)))
    of_prompts = sums.prompts_prompts * (1.0 + RIDGE)
    per_prompt = sums.prompts * sums.tokens_tokens - sums.tokens * sums.tokens_prompts
    per_token = sums.tokens * of_prompts - sums.prompts * sums.tokens_prompts
    if per_prompt <= 0.0:
        return 0.0
    return min(most, per_prompt / per_token) if per_token > 0.0 else most
