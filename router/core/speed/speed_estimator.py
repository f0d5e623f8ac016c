"""Estimates an engine's speed, in seconds per token, from the counts of each tick.

An outage shows at once, because seconds without tokens count too. Values of the engine's pool
(`PoolValues`) make engines comparable that get different requests.
"""

import math
from typing import NamedTuple

from router.core.speed.leg_counts import LegCounts
from router.core.speed.speed_buckets import Bucket, Interference, Pauses, SpeedBuckets
from router.core.speed.speed_totals import SharedTotals
from router.core.speed.token_counts import TickCounts
from router.core.speed.tuning import (
    BEST_PREFILL_DRIFT,
    FORGET_SECONDS,
    MIN_BUCKETS,
    RELIABLE_TOKENS,
    SILENT_SECONDS,
    USUAL_PREFILL_SECONDS,
)

__all__ = ["PoolValues", "SpeedEstimator"]


class PoolValues(NamedTuple):
    """What is measured of the engines of a pool together; None: as before."""

    prompt_overhead: int | None = None
    """Fixed cost of a prefill, in prompt tokens."""
    prompt_share: float | None = None
    """Tokens of a stream that take as long as one prompt token beside it."""
    prompt_seconds: float | None = None
    """Seconds to compute one prompt token; 0 if not known."""
    window: int | None = None
    """Ticks by which engines are judged."""


class SpeedEstimator:
    """One engine's speed, estimated at each tick."""

    __slots__ = (
        "_measured_at",
        "best_per_prompt_token",
        "buckets",
        "counts",
        "gap_when_active",
        "interference",
        "is_reliable",
        "last_per_prompt_token",
        "pauses",
        "per_prompt_token",
        "per_prompt_token_age",
        "per_token",
        "prompt_share",
        "was_reliable",
    )

    def __init__(self, shared: SharedTotals | None = None) -> None:
        self.counts = LegCounts(shared)
        self.is_reliable = self.was_reliable = False
        """Whether the estimate is reliable now, or has been since the engine joined."""
        self.per_token: float | None = None
        """Seconds between two tokens of one stream, less the time for prompts that were computed
        meanwhile; None if not known."""
        self.gap_when_active = 0.0
        """`per_token` at the last tick with tokens, so without any stall."""
        self.per_prompt_token: float | None = None
        """Seconds to the first token per prompt token to compute before it, its own included."""
        self.per_prompt_token_age = 0
        """Ticks since a prompt was computed in the ticks that an estimate uses, or waited to be."""
        self.last_per_prompt_token = 0.0
        """The last measured `per_prompt_token`, even if it has expired."""
        self.best_per_prompt_token: float | None = None
        """The lowest recent `per_prompt_token`: the prefill speed without queueing."""
        self.interference = Interference()
        """How much prompts delayed the streams beside them."""
        self.prompt_share = 0.0
        """As of `PoolValues`."""
        self.buckets = SpeedBuckets()
        """Its measurements in the last ticks."""
        self.pauses = Pauses()
        """Its pauses, which do not count as slowness."""
        self._measured_at = math.inf

    def adopt(self, pool: PoolValues) -> None:
        """Take over what the pool's engines have shown together."""
        counts = self.counts
        if pool.prompt_overhead is not None:
            counts.prompt_overhead = pool.prompt_overhead
        if pool.prompt_share is not None:
            self.prompt_share = pool.prompt_share
        if pool.prompt_seconds is not None:
            counts.prompt_seconds = pool.prompt_seconds
        if pool.window is not None:
            self.buckets.window = pool.window

    def settle_prompts(self, per_prompt_token: float | None, now: float) -> None:
        """Mark the prompts of unary legs as computed once they should be. `per_prompt_token`: the
        pool's seconds per prompt token, used where this engine's is not known; None if unknown."""
        seconds = self.per_prompt_token or per_prompt_token or USUAL_PREFILL_SECONDS
        self.counts.waiting.settle_unary(seconds, now)

    def settle_held(self, sent_before: float, now: float) -> None:
        """Mark streams sent before `sent_before` as held back: the engine has generated tokens
        since then and no request waited, so their prompts are computed, unless they are long."""
        seconds, counts = self.best_per_prompt_token or USUAL_PREFILL_SECONDS, self.counts
        counts.waiting.settle_held(seconds, sent_before, now, is_prefill=counts.is_prefill)

    def tick(self, now: float) -> None:
        """Close a bucket and update the estimates."""
        counts = self.counts
        has_answered = counts.has_answered
        counts.is_warm = counts.is_warm or has_answered
        if has_answered or counts.all_streams or counts.silence(now) > SILENT_SECONDS:
            self._measured_at = now
        elif now - self._measured_at > FORGET_SECONDS:
            self._forget()
        tick = counts.take(now)
        self._note_best_prefill(tick)
        self._close_bucket(tick)
        self._measure()
        # A unary answer of enough tokens is reliable by itself.
        self.was_reliable = self.was_reliable or self.is_reliable or tick.whole_tokens > 0
        if tick.tokens > 0:
            self.gap_when_active = self.per_token or 0.0

    def reset(self) -> None:
        """Forget everything: the engine was restarted or replaced."""
        self._forget()
        self.counts.answers.reset()
        self.counts.is_warm = False
        self.last_per_prompt_token = 0.0

    def _forget(self) -> None:
        """Forget the speed, but not `is_warm`: silence of an engine that has produced tokens is a
        stall."""
        self._measured_at = math.inf
        self.per_token = self.per_prompt_token = self.best_per_prompt_token = None
        self.was_reliable = False
        self.counts.forget()
        self.interference = Interference()
        self.buckets.clear()
        self.pauses = Pauses()

    def _note_best_prefill(self, tick: TickCounts) -> None:
        best = self.best_per_prompt_token
        if tick.prompt_work:
            measured = tick.prompt_seconds / tick.prompt_work
            if best is None or measured < best:
                self.best_per_prompt_token = measured
                return
        if best is not None:
            self.best_per_prompt_token = best * BEST_PREFILL_DRIFT

    def _close_bucket(self, tick: TickCounts) -> None:
        streams = tick.stream_seconds / tick.seconds if tick.seconds > 0.0 else 0.0
        self.pauses.tick(
            tick.tokens + tick.begun,
            tick.stream_seconds,
            tick.seconds,
            self.gap_when_active,
            self.counts.calibration.tokens_per_event,
        )
        self.buckets.add(
            Bucket(
                tick.tokens,
                tick.stream_seconds,
                tick.computed * streams,
                tick.prompt_work,
                tick.prompt_seconds,
                self.pauses.is_silent,
            )
        )

    def _measure(self) -> None:
        buckets, pauses = self.buckets, self.pauses
        used, timed = buckets.sums(), buckets.timed
        is_prefill = timed == 0 and used.prompt_work > 0
        self.is_reliable = is_prefill or (used.tokens >= RELIABLE_TOKENS and timed == MIN_BUCKETS)
        if used.tokens and used.stream_seconds:
            self.interference.add(used.tokens, used.prompts_beside, used.stream_seconds)
        if used.prompt_work:
            self.per_prompt_token = used.prompt_seconds / used.prompt_work
            self.last_per_prompt_token = self.per_prompt_token
        is_old = not used.prompt_work and self.counts.oldest_waiting is None
        self.per_prompt_token_age = self.per_prompt_token_age + 1 if is_old else 0
        if not buckets.are_steady:  # ticks without tokens are normal there
            self._update_gap(used)
        elif not pauses.hides_speed:
            since = pauses.since
            if since is not None and since < buckets.window:  # the pause does not count
                used = buckets.latest(since)
            self._update_gap(used)

    def _update_gap(self, used: Bucket) -> None:
        if used.tokens:
            if used.stream_seconds:
                tokens = used.tokens + self.prompt_share * used.prompts_beside
                measured = used.stream_seconds / tokens
                is_first = self.per_token is None
                weight = 1.0 if is_first else min(1.0, used.tokens / RELIABLE_TOKENS)
                self.per_token = weight * measured + (1 - weight) * (self.per_token or 0.0)
        elif used.stream_seconds and self.counts.all_streams:
            # No tokens: the gap is at least the time since then.
            least = used.stream_seconds / self.counts.all_streams
            self.per_token = max(self.per_token or 0.0, least)
