"""Tells that an engine paused, and goes on as before, from slowness.

An engine may stand still for a second (a host that swaps, a CUDA graph, a network path that is
lost) and then go on at its usual speed, with all its streams. While it does, the number of its
requests, which do not end, keeps others away. Were it called slow, it would lose its streams to the
others just when it is well again, and the next one that pauses would have them. An engine of long
steps is not one that pauses: before and after a pause tokens come in every tick.
"""

from typing import Final

__all__ = ["Pauses"]

HIDDEN_TICKS: Final = 4
"""Ticks of silence that are no slowness yet. What stands still for longer than a second has to be
avoided, for nobody knows how long that will last."""

STEADY_TICKS: Final = 2
"""Ticks in a row with tokens from which an engine generates steadily: its steps take less than two
ticks."""

SHORTEST_GAPS: Final = 4.0
"""Shortest pause, in gaps between two tokens: where steps take longer than a tick, some ticks have
no token."""

MISSED_EVENTS: Final = 8.0
"""Fewest events that did not come: those of one or two streams may come at long intervals."""


class Pauses:
    """One engine's."""

    __slots__ = ("_gaps", "_missed", "_silent", "_steady", "since")

    def __init__(self) -> None:
        self.since: int | None = None
        """Whole ticks for which it has gone on since its last pause; None: it has not paused."""
        self._steady = 0
        """Ticks in a row with tokens."""
        self._silent = 0
        """Ticks of the pause that goes on, or has just ended; 0 if there is none."""
        self._gaps = self._missed = 0.0
        """Tokens of one stream, and events of all, that did not come in them."""

    @property
    def is_silent(self) -> bool:
        """Whether it stood still in the last tick."""
        return self._silent > 0 and self._steady == 0

    @property
    def hides_speed(self) -> bool:
        """Whether it stands still, and not for long, or goes on and it is not seen how fast."""
        return self._silent > 0 and (self._steady > 0 or self._silent <= HIDDEN_TICKS)

    def tick(
        self, tokens: float, stream_seconds: float, seconds: float, gap: float, per_event: float
    ) -> None:
        """A tick of `seconds` with so many tokens, first ones included, of streams that were open
        for `stream_seconds` in all. `gap`: seconds between two tokens of one of them, as it was
        before, 0 if not known; `per_event`: tokens that come together."""
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
