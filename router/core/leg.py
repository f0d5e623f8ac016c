"""One attempt at an engine, timed: what it tells of the engine's speed.

Tokens are counted by whoever relays them (`Pace.tokens`); a leg says when the first one came, when
it was over, and what the engine said that it took.
"""

from router.core.ledger import Lease
from router.core.pace import Pace

__all__ = ["WHOLE_TOKENS", "Leg"]

WHOLE_TOKENS = 32
"""An answer that is no stream tells of the gap between tokens when it has so many: its prompt and
the way there hardly count then. It must not have waited for a KV cache from elsewhere."""


class Leg:
    """One attempt at an engine, timed for its pace: to the first token, and on to the end."""

    __slots__ = (
        "_has_begun",
        "_is_open",
        "_is_paused",
        "_lease",
        "pace",
        "sequences",
        "started",
        "work",
    )

    def __init__(
        self,
        pace: Pace,
        lease: Lease | None,
        work: int,
        now: float,
        *,
        is_heard: bool,
        sequences: int = 1,
    ) -> None:
        """`work`: prompt tokens to compute until its first token.

        `is_heard`: it says something soon, as a stream or a prefill does. `sequences`: answers
        that were asked for at once (the request's `n`).
        """
        self.pace = pace
        self.work = work
        self.started = now
        self.sequences = sequences
        self._lease = lease
        self._has_begun = False
        self._is_paused = False
        self._is_open = is_heard
        if is_heard:
            pace.ask(self, now)
        else:
            pace.unheard += 1

    def first(self, now: float) -> None:
        """The first token of a stream came."""
        self._answered(now)
        self._has_begun = self._is_open
        if self._is_open and not self._is_paused:
            self.pace.begin(self, now)

    def whole(self, now: float, tokens: int = 0) -> None:
        """The whole answer came at once; `tokens` of it were generated, as far as is known."""
        self._answered(now)
        if tokens >= WHOLE_TOKENS * self.sequences and self.work:
            self.pace.computed(tokens, self.sequences * max(0.0, now - self.started))

    def used(self, tokens: int, events: int) -> None:
        """The stream is over: the engine says that it had so many tokens, and it was seen as so
        many events. Each sequence's first token came with an event of its own."""
        first = self.sequences
        self.pace.calibration.learn(tokens - first, events - first, by_usage=True)

    def end(self, now: float) -> None:
        """It is over; doing it again changes nothing."""
        if self._is_open:
            self.pause(now)
            self._is_open = False

    def _answered(self, now: float) -> None:
        if self._lease is not None:
            self._lease.prefilled()
        if self._is_open and not self._is_paused:
            self.pace.answered(self, now)

    # While the client does not read, the engine is not heard: neither its silence nor its speed
    # shows. What was paused before its first token tells nothing of prompts any more either.

    def pause(self, now: float) -> None:
        """Count it no longer as open, nor as a stream; doing it again changes nothing."""
        if self._is_open and not self._is_paused:
            self._is_paused = True
            self.work = 0
            self.pace.end(self, now, was_stream=self._has_begun)

    def resume(self, now: float) -> None:
        """Count it again; nothing if it is over or was not paused."""
        if not self._is_open or not self._is_paused:
            return
        self._is_paused = False
        if self._has_begun:
            self.pace.rejoin(self, now)
        else:
            self.started = now  # as if it were asked for only now: those before it are ahead
            self.pace.ask(self, now)
