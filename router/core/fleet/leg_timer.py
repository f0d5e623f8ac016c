"""Measures the times of one leg for the engine's speed estimate.

The leg's reader counts tokens (`counter`), and reports the first token, the end, and the usage that
the engine states.
"""

from router.core.fleet.ledger import Lease
from router.core.kv_events import PromptFeedback
from router.core.speed.leg_counts import LegCounts
from router.core.speed.token_counts import TokenCounter

__all__ = ["MAX_TIMED_SEQUENCES", "MIN_UNARY_TOKENS", "LegTimer"]

MIN_UNARY_TOKENS = 32
"""Fewest tokens of a unary answer that is used to estimate seconds per token: with so many, its
prefill and network time hardly matter. Answers that waited for a KV transfer are not used."""


MAX_TIMED_SEQUENCES = 16
"""Most sequences of one request from which speed is measured. With more, the engine schedules an
unknown number of them later, and a single such request would outweigh all others."""

CATCH_UP_SWEEPS = 2
"""Sweeps over idle streams until a stream is timed again after its client had stopped reading; at
least one whole interval. Data that have piled up by then arrive faster than any engine
generates."""


class LegTimer:
    """Measures one leg up to its first token and up to its end."""

    __slots__ = (
        "_has_begun",
        "_is_open",
        "_is_paused",
        "_lease",
        "counter",
        "counts",
        "feedback",
        "is_held",
        "sequences",
        "started",
        "sweeps_to_wait",
        "work",
    )

    def __init__(
        self,
        counts: LegCounts,
        lease: Lease | None,
        work: int,
        now: float,
        tracks_first_token: bool,
        sequences: int = 1,
    ) -> None:
        """`work`: prompt tokens to compute before its first token, its own and those ahead of it.

        `tracks_first_token`: the first token is seen when it arrives (a stream or a prefill, not a
        unary answer). `sequences`: number generated concurrently (the request's `n` for each of its
        prompts); with more than MAX_TIMED_SEQUENCES only the prompt is timed.
        """
        self.counts = counts
        self.work = work
        self.started = now
        self.sequences = sequences
        self.is_held = False
        """Whether its first token is held back by the engine although its prompt has been
        computed."""
        self._lease = lease
        self.counter = counts.counter
        """Where the tokens of its stream are counted: for the engine's speed, if they show it."""
        if sequences > MAX_TIMED_SEQUENCES:
            self.counter = TokenCounter()
        self.feedback: PromptFeedback | None = None if lease is None else lease.feedback
        """Learns from the answer about the prompt; only with --prefix-cache events."""
        self.sweeps_to_wait = 0
        """Idle sweeps, while the client reads, until the leg is timed again; 0 while it is
        timed."""
        self._has_begun = False
        self._is_paused = False
        self._is_open = tracks_first_token = tracks_first_token and sequences <= MAX_TIMED_SEQUENCES
        if tracks_first_token:
            counts.on_request(self, now)
        else:
            counts.untracked += 1
            if work:
                counts.waiting.unary[self] = None

    @property
    def pending(self) -> int:
        """Prompt tokens that the engine still has to compute for this leg."""
        return 0 if self._lease is None else self._lease.pending

    def first_token(self, now: float) -> None:
        """The first token of a stream has arrived."""
        self._answered(now, goes_on=True)
        self._has_begun = self._is_open
        if self._is_open and not self._is_paused:
            self.counts.on_stream_start(self, now)

    def unary_answer(self, now: float, tokens: int = 0) -> None:
        """The whole answer has arrived, with `tokens` generated tokens (0 if unknown)."""
        self._answered(now, goes_on=self._is_open)
        sequences = self.sequences
        if sequences > MAX_TIMED_SEQUENCES or not self.work:
            return
        seconds = now - self.started if now > self.started else 0.0
        if tokens >= MIN_UNARY_TOKENS * sequences:
            self.counts.on_unary_answer(tokens, sequences * seconds)
        elif tokens:
            self.counts.answers.add(self.work, seconds)

    def sequences_ended(self, count: int, now: float) -> None:
        """`count` sequences of a stream have ended. The last one ends with the leg."""
        count = min(count, self.sequences - 1)
        if count > 0 and self._has_begun and self._is_open:
            self.sequences -= count
            if not self._is_paused:
                self.counts.on_sequences_end(count, now)

    def calibrate(self, tokens: int, events: int, now: float) -> None:
        """Compare the usage of `tokens` of a stream that ends now with the number of `events`. Each
        sequence's first token is an event of its own; a stream without any other shows as much of
        the engine's speed as a unary answer."""
        first = self.sequences
        if tokens <= first and self.work and now > self.started:
            self.counts.answers.add(self.work, now - self.started)
        self.counts.calibration.learn(tokens - first, events - first, by_usage=True)

    def end(self, now: float) -> None:
        """The leg has ended. Idempotent."""
        if self._is_open:
            self.pause(now)
            self._is_open = False
        else:
            self.counts.waiting.unary.pop(self, None)

    def prompt_computed(self) -> None:
        """Assume that the prompt has been computed although nothing arrived, so that it no longer
        counts as delaying other requests."""
        lease = self._lease
        if lease is not None:
            self.counts.computed += lease.pending
            lease.prefilled()

    def _answered(self, now: float, *, goes_on: bool) -> None:
        lease = self._lease
        if lease is not None:
            costs = self.counts.costs
            if costs is not None and self._is_open and not self._is_paused:
                costs.observe(self.work, lease.pending, lease.loads, now - self.started)
            if lease.pending:
                self.counts.computed += lease.pending
                self.counts.waiting.completed_at = now
            lease.prefilled(goes_on=goes_on)
        if self._is_open and not self._is_paused:
            self.counts.on_first_token(self, now)

    # While the client does not read, neither the engine's speed nor a stall is visible. A leg that
    # was paused before its first token is not used for prefill speed.

    def client_stopped(self, now: float) -> None:
        """The client has stopped reading: stop timing until it has kept up for a while."""
        self.sweeps_to_wait = CATCH_UP_SWEEPS
        self.counter = TokenCounter()
        self.pause(now)

    def catches_up(self, now: float) -> bool:
        """Count a sweep during which the client reads. Returns whether the leg is timed from now
        on."""
        self.sweeps_to_wait -= 1
        if self.sweeps_to_wait:
            return False
        if self.sequences <= MAX_TIMED_SEQUENCES:
            self.counter = self.counts.counter
        self.resume(now)
        return True

    def pause(self, now: float) -> None:
        """Stop counting it as open and as a stream. Idempotent."""
        if self._is_open and not self._is_paused:
            self._is_paused = True
            self.work = 0
            if self._lease is not None:
                self._lease.loads = 0
            self.counts.on_end(self, now, was_stream=self._has_begun)

    def resume(self, now: float) -> None:
        """Count it again. No effect if it has ended or is not paused."""
        if not self._is_open or not self._is_paused:
            return
        self._is_paused = False
        if self._has_begun:
            self.counts.on_resume(self, now)
        else:
            self.started = now  # as if it were sent now, behind all that are queued
            self.counts.on_request(self, now)
