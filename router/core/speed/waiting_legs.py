"""An endpoint's legs whose first token has not been seen, and what of their prompts is computed.

A leg of which nothing is seen may wait for a slot, be in its prefill, or be generating tokens that
the engine holds back (parsers, unary answers). Until its prompt counts as computed, its tokens are
pending, and it counts as delaying others.
"""

import math
from typing import Protocol

from router.core.candidate import STEP_TOKENS
from router.core.speed.speed_totals import SpeedTotals
from router.core.speed.tuning import OVERDUE, UNSEEN_PREFILL_FACTOR

__all__ = ["TimedLeg", "WaitingLegs"]


class TimedLeg(Protocol):
    """A leg, as `router.core.fleet.leg_timer.LegTimer` times it."""

    started: float
    work: int
    sequences: int
    is_held: bool
    """Whether the engine holds its first token back after its prompt was computed."""

    @property
    def pending(self) -> int:
        """Its prompt tokens while they are still to be computed on this engine, else 0."""

    def prompt_computed(self) -> None:
        """Its prompt is considered computed: its tokens are no longer pending."""


class WaitingLegs:
    """Those of one endpoint and process."""

    __slots__ = (
        "_ahead",
        "_elsewhere_since",
        "completed_at",
        "legs",
        "newest_begun",
        "unary",
    )

    def __init__(self) -> None:
        self.legs: dict[TimedLeg, None] = {}
        """Streams and prefills, oldest first."""
        self.unary: dict[TimedLeg, None] = {}
        """Unary legs, oldest first."""
        self.newest_begun = 0.0
        """When the newest leg that has had its first token was sent."""
        self._ahead = 0.0
        """Tokens of an unfinished prompt that have already been counted as computed."""
        self.completed_at = 0.0
        """When a prompt was last completed; those of others to the tick."""
        self._elsewhere_since = math.inf
        """Since when other processes or replicas have prompts pending there, to the tick."""

    def oldest(self, others: SpeedTotals) -> tuple[float, float] | None:
        """When the longest-waiting request was sent, and its pending prompt tokens then. `others`:
        the other processes' totals.

        Requests overtaken by a later one do not count. None when none waits.
        """
        mine = next(iter(self.legs), None)
        since, work = others.waiting_since, others.waiting_work
        if since < self.newest_begun:  # none waits there, or it was overtaken here
            since = 0.0
        if mine is not None and not 0 < since < mine.started:
            return mine.started, mine.work
        return (since, work) if since else None

    def settle_unary(self, seconds: float, now: float) -> None:
        """Mark the prompts of unary legs as computed once they should be, at `seconds` per prompt
        token."""
        while self.unary:
            leg = next(iter(self.unary))
            if now - leg.started < UNSEEN_PREFILL_FACTOR * seconds * leg.work:
                return
            del self.unary[leg]
            leg.prompt_computed()
            self.completed_at = now

    def settle_held(
        self, seconds: float, sent_before: float, now: float, *, is_prefill: bool
    ) -> None:
        """Mark streams sent before `sent_before` as held back, unless their prompts, at `seconds`
        per token, may still be computing."""
        while (leg := next(iter(self.legs), None)) is not None:
            least = UNSEEN_PREFILL_FACTOR * seconds * leg.work
            if leg.started >= sent_before or now - leg.started < least:
                return
            self._hold(leg, is_prefill)

    def drop_overtaken(self, *, is_prefill: bool) -> None:
        """Mark overtaken requests as held back. They do not wait for a slot or for their prefill:
        their tokens are held back, or their KV cache is being loaded."""
        legs = self.legs
        while legs and (first := next(iter(legs))).started < self.newest_begun:
            self._hold(first, is_prefill)

    def _hold(self, leg: TimedLeg, is_prefill: bool) -> None:
        del self.legs[leg]
        if not is_prefill:  # a prefill engine's answers are whole
            leg.is_held = True
            leg.prompt_computed()

    def newly_computed(
        self, computed: int, elsewhere: int, prompt_seconds: float, now: float
    ) -> float:
        """Prompt tokens computed since the last tick; `computed`: those of the prompts that were
        completed. An unfinished prompt is counted in proportion to the time that it has taken (at
        `prompt_seconds` per token); otherwise a long one would count as a whole in the tick in
        which it completes. `elsewhere`: pending prompt tokens of other processes and replicas."""
        if not elsewhere:
            self._elsewhere_since = math.inf
            if not (self.legs or self.unary or self._ahead):  # most ticks
                return float(computed)
        elif self._elsewhere_since == math.inf:
            self._elsewhere_since = now
        pending, tokens = self._in_progress(elsewhere, prompt_seconds, now)
        before, self._ahead = self._ahead, min(pending, tokens)
        return max(0.0, computed + self._ahead - before)

    def progress(self, elsewhere: int, prompt_seconds: float, now: float) -> float:
        """Tokens of the unfinished prompt that should be computed by now; 0 if it should have been
        complete long ago, so that it waits for something else, and for one of a single step, which
        it shares with others. Arguments as of `newly_computed`."""
        pending, tokens = self._in_progress(elsewhere, prompt_seconds, now)
        return min(pending, tokens) if STEP_TOKENS < pending > tokens / OVERDUE else 0.0

    def _in_progress(
        self, elsewhere: int, prompt_seconds: float, now: float
    ) -> tuple[float, float]:
        """The tokens of the unfinished prompt, and how many can be computed in the time that it has
        taken."""
        started, pending = self._elsewhere_since, elsewhere
        first = next(iter(self.legs or self.unary), None)
        if first is not None:
            started, pending = min(started, first.started), pending + first.pending
        if not pending or not prompt_seconds:
            return 0.0, 0.0
        return float(pending), max(0.0, now - max(started, self.completed_at)) / prompt_seconds
