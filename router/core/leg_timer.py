"""One attempt at an engine, timed: what it tells of the engine's speed.

Tokens are counted by whoever relays them (`SpeedEstimator.tokens`); a leg says when the first one came, when
it was over, and what the engine said that it took.
"""

from router.core.ledger import Lease
from router.core.speed_estimator import SpeedEstimator

__all__ = ["MIN_UNARY_TOKENS", "LegTimer"]

MIN_UNARY_TOKENS = 32
"""An answer that is no stream tells of the gap between tokens when it has so many: its prompt and
the way there hardly count then. It must not have waited for a KV cache from elsewhere."""


class LegTimer:
    """One attempt at an engine, timed for its pace: to the first token, and on to the end."""

    __slots__ = (
        "_has_begun",
        "_is_open",
        "_is_paused",
        "_lease",
        "sequences",
        "speed",
        "started",
        "work",
    )

    def __init__(
        self,
        speed: SpeedEstimator,
        lease: Lease | None,
        work: int,
        now: float,
        *,
        tracks_first_token: bool,
        sequences: int = 1,
    ) -> None:
        """`work`: prompt tokens to compute until its first token.

        `tracks_first_token`: it says something soon, as a stream or a prefill does. `sequences`: answers
        that were asked for at once (the request's `n`).
        """
        self.speed = speed
        self.work = work
        self.started = now
        self.sequences = sequences
        self._lease = lease
        self._has_begun = False
        self._is_paused = False
        self._is_open = tracks_first_token
        if tracks_first_token:
            speed.on_request(self, now)
        else:
            speed.untracked += 1

    def first_token(self, now: float) -> None:
        """The first token of a stream came."""
        self._answered(now)
        self._has_begun = self._is_open
        if self._is_open and not self._is_paused:
            self.speed.on_stream_start(self, now)

    def unary_answer(self, now: float, tokens: int = 0) -> None:
        """The whole answer came at once; `tokens` of it were generated, as far as is known."""
        self._answered(now)
        if tokens >= MIN_UNARY_TOKENS * self.sequences and self.work:
            self.speed.on_unary_answer(tokens, self.sequences * max(0.0, now - self.started))

    def calibrate(self, tokens: int, events: int) -> None:
        """The stream is over: the engine says that it had so many tokens, and it was seen as so
        many events. Each sequence's first token came with an event of its own."""
        first = self.sequences
        self.speed.calibration.learn(tokens - first, events - first, by_usage=True)

    def end(self, now: float) -> None:
        """It is over; doing it again changes nothing."""
        if self._is_open:
            self.pause(now)
            self._is_open = False

    def _answered(self, now: float) -> None:
        if self._lease is not None:
            self._lease.prefilled()
        if self._is_open and not self._is_paused:
            self.speed.on_first_token(self, now)

    # While the client does not read, the engine is not heard: neither its silence nor its speed
    # shows. What was paused before its first token tells nothing of prompts any more either.

    def pause(self, now: float) -> None:
        """Count it no longer as open, nor as a stream; doing it again changes nothing."""
        if self._is_open and not self._is_paused:
            self._is_paused = True
            self.work = 0
            self.speed.on_end(self, now, was_stream=self._has_begun)

    def resume(self, now: float) -> None:
        """Count it again; nothing if it is over or was not paused."""
        if not self._is_open or not self._is_paused:
            return
        self._is_paused = False
        if self._has_begun:
            self.speed.on_resume(self, now)
        else:
            self.started = now  # as if it were asked for only now: those before it are ahead
            self.speed.on_request(self, now)
