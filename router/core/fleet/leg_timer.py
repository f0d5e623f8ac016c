"""Times one leg for the engine's speed estimate.

The relay counts tokens (`SpeedEstimator.tokens`); the timer reports the first token, the end, and
the usage that the engine states.
"""

from router.core.fleet.ledger import Lease
from router.core.prefix.cache_events import PromptFeedback
from router.core.speed.speed_estimator import SpeedEstimator

__all__ = ["MAX_TIMED_SEQUENCES", "MIN_UNARY_TOKENS", "LegTimer"]

MIN_UNARY_TOKENS = 32
"""Tokens from which a unary answer is used to estimate seconds per token: its prefill and network
time hardly count then. Answers that waited for a KV transfer are not used."""


MAX_TIMED_SEQUENCES = 16
"""The most answers to one request from which speed is measured. Of more, the engine runs an unknown
number later than others, and a single such request would outweigh all others."""

CATCH_UP_SWEEPS = 2
"""Sweeps over silent streams until one whose client did not read is timed again: at least one whole
interval. What has piled up by then comes faster than any engine makes it."""


class LegTimer:
    """Times one leg, to its first token and to its end."""

    __slots__ = (
        "_has_begun",
        "_is_open",
        "_is_paused",
        "_lease",
        "feedback",
        "is_held",
        "sequences",
        "speed",
        "started",
        "sweeps_to_wait",
        "work",
    )

    def __init__(
        self,
        speed: SpeedEstimator,
        lease: Lease | None,
        work: int,
        now: float,
        tracks_first_token: bool,
        sequences: int = 1,
    ) -> None:
        """`work`: prompt tokens to compute before its first token.

        `tracks_first_token`: its first token is seen as it comes (a stream or a prefill, not a
        unary answer). `sequences`: answers generated side by side (the request's `n`, for each of
        its prompts); of more than MAX_TIMED_SEQUENCES only the prompt is timed.
        """
        self.speed = speed
        self.work = work
        self.started = now
        self.sequences = sequences
        self.is_held = False
        """Whether its first token is held back: its prompt was computed before."""
        self._lease = lease
        self.feedback: PromptFeedback | None = None if lease is None else lease.feedback
        """Gets what the answer reveals about the prompt; for --prefix-cache events only."""
        self.sweeps_to_wait = 0
        """Sweeps over silent streams, with a client that reads, until it is timed again; 0 while it
        is."""
        self._has_begun = False
        self._is_paused = False
        self._is_open = tracks_first_token = tracks_first_token and sequences <= MAX_TIMED_SEQUENCES
        if tracks_first_token:
            speed.on_request(self, now)
        else:
            speed.untracked += 1
            if work:
                speed.unary[self] = None

    @property
    def pending(self) -> int:
        """Its own prompt tokens, while they are to be computed there."""
        return 0 if self._lease is None else self._lease.pending

    def first_token(self, now: float) -> None:
        """The first token of a stream came."""
        self._answered(now, goes_on=True)
        self._has_begun = self._is_open
        if self._is_open and not self._is_paused:
            self.speed.on_stream_start(self, now)

    def unary_answer(self, now: float, tokens: int = 0) -> None:
        """The whole answer came at once, with `tokens` generated tokens (0: not known)."""
        self._answered(now, goes_on=self._is_open)
        sequences = self.sequences
        if sequences > MAX_TIMED_SEQUENCES or not self.work:
            return
        seconds = now - self.started if now > self.started else 0.0
        if tokens >= MIN_UNARY_TOKENS * sequences:
            self.speed.on_unary_answer(tokens, sequences * seconds)
        elif tokens:
            self.speed.answers.add(self.work, seconds)

    def sequences_ended(self, count: int, now: float) -> None:
        """`count` of a stream's answers are complete. The end of the last one is the leg's."""
        count = min(count, self.sequences - 1)
        if count > 0 and self._has_begun and self._is_open:
            self.sequences -= count
            if not self._is_paused:
                self.speed.on_sequences_end(count, now)

    def calibrate(self, tokens: int, events: int) -> None:
        """The stream's usage states `tokens`, which arrived in `events`. The first token of each
        sequence has an event of its own."""
        first = self.sequences
        self.speed.calibration.learn(tokens - first, events - first, by_usage=True)

    def end(self, now: float) -> None:
        """The leg is over. Idempotent."""
        if self._is_open:
            self.pause(now)
            self._is_open = False
        else:
            self.speed.unary.pop(self, None)

    def prompt_computed(self) -> None:
        """The prompt should be computed by now, though nothing came: it no longer delays other
        requests."""
        lease = self._lease
        if lease is not None:
            self.speed.computed += lease.pending
            lease.prefilled()

    def _answered(self, now: float, *, goes_on: bool) -> None:
        lease = self._lease
        if lease is not None:
            costs = self.speed.costs
            if costs is not None and self._is_open and not self._is_paused:
                costs.observe(self.work, lease.pending, lease.loads, now - self.started)
            self.speed.computed += lease.pending
            lease.prefilled(goes_on=goes_on)
        if self._is_open and not self._is_paused:
            self.speed.on_first_token(self, now)

    # While the client does not read, neither the engine's speed nor a stall can be seen. A leg that
    # was paused before its first token is not used for prefill speed.

    def client_stopped(self, now: float) -> None:
        """The client does not read: time nothing until it has kept up for a while."""
        self.sweeps_to_wait = CATCH_UP_SWEEPS
        self.pause(now)

    def catches_up(self, now: float) -> bool:
        """A sweep has come, and the client reads again; whether it is timed from now on."""
        self.sweeps_to_wait -= 1
        if self.sweeps_to_wait:
            return False
        self.resume(now)
        return True

    def pause(self, now: float) -> None:
        """Do not count it as open, nor as a stream. Idempotent."""
        if self._is_open and not self._is_paused:
            self._is_paused = True
            self.work = 0
            if self._lease is not None:
                self._lease.loads = 0
            self.speed.on_end(self, now, was_stream=self._has_begun)

    def resume(self, now: float) -> None:
        """Count it again. No effect if it is over or not paused."""
        if not self._is_open or not self._is_paused:
            return
        self._is_paused = False
        if self._has_begun:
            self.speed.on_resume(self, now)
        else:
            self.started = now  # as if it were sent only now, behind those that wait already
            self.speed.on_request(self, now)
