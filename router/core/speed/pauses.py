"""Distinguishes an engine that paused and continues at its usual speed from a slow one.

An engine may pause for a second (the host swaps, a CUDA graph is captured, the network path fails
over) and then continue with all its streams. During the pause its requests do not end, so its load
alone keeps new ones away. If it were also rated slow, it would get no requests just after it has
recovered, and the other engines would have them when the next one pauses. An engine whose steps
are long does not count as pausing: before and after a pause, tokens arrive in every tick.
"""

from typing import Final

__all__ = ["Pauses"]

HIDDEN_TICKS: Final = 4
"""Ticks without tokens that do not count as slowness. An engine that pauses for longer than a
second has to be avoided, since there is no telling how long the pause will last."""

STEADY_TICKS: Final = 2
"""Ticks in a row with tokens from which an engine counts as generating steadily: its steps take
less than two ticks."""

SHORTEST_GAPS: Final = 4.0
"""Shortest pause, in multiples of the time between two tokens: where steps take longer than a tick,
some ticks have no token."""

MISSED_EVENTS: Final = 8.0
"""Fewest events missed in a pause: the events of one or two streams may be far apart."""


class Pauses:
    """Pause detection for one engine."""

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
