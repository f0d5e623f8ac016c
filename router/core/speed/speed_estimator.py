"""Estimates an engine's speed, in seconds per token, from the streams that are relayed.

The time per token is measured for all sequences of an engine together: the seconds that they were
open after their first token, divided by the tokens that came, in buckets of 0.25 s. So nothing is
timed per token, and an outage shows at once.

The relay counts stream events. How many tokens an event carries (`--stream-interval`, speculative
decoding, parsers that hold tokens back) is learned per engine (`calibration.py`). A request for
`n` answers counts as `n` sequences, less those that have ended.
"""

import math

from router.core.speed.calibration import Calibration
from router.core.speed.interference import Interference
from router.core.speed.leg_counts import EventCounts, LegCounts
from router.core.speed.pauses import Pauses
from router.core.speed.prompt_costs import LineFit, PromptCosts
from router.core.speed.speed_buckets import MIN_BUCKETS, RELIABLE_TOKENS, Bucket, SpeedBuckets
from router.core.speed.speed_totals import SharedTotals

__all__ = ["TICK_SECONDS", "SpeedEstimator"]

TICK_SECONDS = 0.25
"""Length of one bucket, and seconds between ticks."""

FORGET_SECONDS = 60.0
"""Estimates expire after this long without measurements; otherwise an engine that was slow once
might never get requests again."""

SILENT_SECONDS = 1.0
"""Shortest silence after a request that counts as a measurement. Probes that are refused at once
measure nothing."""

USUAL_PREFILL_SECONDS = 0.0001
"""Seconds per prompt token to assume until an engine has streamed an answer to a prompt that it
computed: what a dense 70B model takes on four H100."""

BEST_PREFILL_DRIFT = 1.0025
"""Factor per tick by which the best prefill time grows: it doubles in 70 s."""


class SpeedEstimator(LegCounts):
    """One endpoint's speed, estimated at each tick from what was counted since the last one."""

    __slots__ = (
        "_measured_at",
        "_ticked_at",
        "best_per_prompt_token",
        "buckets",
        "calibration",
        "costs",
        "gap_when_active",
        "interference",
        "is_reliable",
        "is_stalled",
        "is_warm",
        "last_per_prompt_token",
        "pauses",
        "per_prompt_token",
        "per_prompt_token_age",
        "per_token",
        "prompt_seconds",
        "prompt_share",
        "was_reliable",
    )

    def __init__(self, shared: SharedTotals | None = None) -> None:
        super().__init__(shared)
        self.is_reliable = self.was_reliable = False
        """Whether the estimate is reliable now, or has been since the engine joined."""
        self.is_warm = False
        """Whether it has produced any token since its start, as far as known."""
        self.is_stalled = False
        """Whether the pool monitor considers it stalled."""
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
        self.calibration = Calibration()
        self.costs: PromptCosts | None = None
        """How long prompts take there; None where no part of the router uses it."""
        self.interference = Interference()
        """How much prompts delayed the streams beside them."""
        self.prompt_share = 0.0
        """Tokens of a stream that take as long as one prompt token beside it; the pool's value."""
        self.prompt_seconds = 0.0
        """Seconds to compute one prompt token; the pool's value, 0 if not known."""
        self.buckets = SpeedBuckets()
        """Its measurements in the last ticks."""
        self.pauses = Pauses()
        """Its pauses, which do not count as slowness."""
        self._ticked_at = 0.0
        self._measured_at = math.inf

    def settle_prompts(self, per_prompt_token: float | None, now: float) -> None:
        """Mark the prompts of unary legs as computed once they should be. `per_prompt_token`: the
        pool's seconds per prompt token, used where this engine's is not known; None if unknown."""
        seconds = self.per_prompt_token or per_prompt_token or USUAL_PREFILL_SECONDS
        self.waiting.settle_unary(seconds, now)

    def settle_held(self, sent_before: float, now: float) -> None:
        """Mark streams sent before `sent_before` as held back: the engine has generated tokens
        since then and no request waited, so their prompts are computed, unless they are long."""
        seconds = self.best_per_prompt_token or USUAL_PREFILL_SECONDS
        self.waiting.settle_held(seconds, sent_before, now, is_prefill=self.is_prefill)

    def progress(self, now: float) -> float:
        """Tokens of the prompt in progress that should be computed by now, at the pool's speed."""
        return self.waiting.progress(self.pending_elsewhere, self.prompt_seconds, now)

    def tick(self, now: float) -> None:
        """Close a bucket and update the estimates."""
        self._pass(now)
        tokens = self.tokens * self.calibration.tokens_per_event + self._whole_tokens
        has_tokens = tokens > 0
        has_answered = has_tokens or self._prompt_work > 0
        self.is_warm = self.is_warm or has_answered
        if has_answered or self.all_streams or self.silence(now) > SILENT_SECONDS:
            self._measured_at = now
        elif now - self._measured_at > FORGET_SECONDS:
            self._forget()
        self.waiting.drop_overtaken(is_prefill=self.is_prefill)
        self._note_best_prefill()
        computed = self.waiting.newly_computed(
            self.computed, self.pending_elsewhere, self.prompt_seconds, now
        )
        seconds, self._ticked_at = now - self._ticked_at, now
        streams = self._stream_seconds / seconds if seconds > 0.0 else 0.0
        self.pauses.tick(
            tokens + self.begun,
            self._stream_seconds,
            seconds,
            self.gap_when_active,
            self.calibration.tokens_per_event,
        )
        self.buckets.add(
            Bucket(
                tokens,
                self._stream_seconds,
                computed * streams,
                self._prompt_work,
                self._prompt_seconds,
                self.pauses.is_silent,
            )
        )
        events, begun, untracked, whole_tokens, _ = self.counted
        before = self._counted.computed
        self._counted = EventCounts(events, begun, untracked, whole_tokens, before + computed)
        has_whole = self._whole_tokens > 0
        if self.costs is not None:
            self.costs.tick(self.computed)
        self.tokens = self._whole_tokens = self.begun = self.untracked = self.computed = 0
        self._stream_seconds = self._first_seconds = 0.0
        self._prompt_work, self._prompt_seconds = 0, 0.0
        self.prompts.add_all(self._prompt_samples.take())
        self._measure()
        self.answers.tick()
        # A unary answer of enough tokens is reliable by itself.
        self.was_reliable = self.was_reliable or self.is_reliable or has_whole
        if has_tokens:
            self.gap_when_active = self.per_token or 0.0

    def reset(self) -> None:
        """Forget everything: the engine was restarted or replaced."""
        self._forget()
        self.answers.reset()
        self.is_warm = False
        self.last_per_prompt_token = 0.0

    def _forget(self) -> None:
        """Forget the speed, but not `is_warm`: silence of an engine that has produced tokens is a
        stall."""
        self._measured_at = math.inf
        self.per_token = self.per_prompt_token = self.best_per_prompt_token = None
        self.was_reliable = False
        self.calibration.reset()
        if self.costs is not None:
            self.costs.reset()
        self.prompts = LineFit()
        self.interference = Interference()
        self.buckets.clear()
        self.pauses = Pauses()

    def _note_best_prefill(self) -> None:
        best = self.best_per_prompt_token
        if self._prompt_work:
            measured = self._prompt_seconds / self._prompt_work
            if best is None or measured < best:
                self.best_per_prompt_token = measured
                return
        if best is not None:
            self.best_per_prompt_token = best * BEST_PREFILL_DRIFT

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
        is_old = not used.prompt_work and self.oldest_waiting is None
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
        elif (
            used.stream_seconds and self.all_streams
        ):  # no tokens: the gap is at least the time since then
            least = used.stream_seconds / self.all_streams
            self.per_token = max(self.per_token or 0.0, least)
