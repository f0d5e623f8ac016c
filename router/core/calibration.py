"""How many tokens an event of an engine's streams carries, by what the engine says of its usage."""

__all__ = ["MAX_TOKENS_PER_EVENT", "Calibration"]

CALIBRATION_TOKENS = 16
"""Tokens that tell how many an event carries; before that it is one."""

MAX_TOKENS_PER_EVENT = 64.0
"""More is no sane --stream-interval, but an engine that counts wrong."""

CALIBRATION_MEMORY = 4096
"""Events after which what was learned earlier counts half."""


class Calibration:
    """One engine's tokens per event."""

    __slots__ = ("_by_usage", "_events", "_tokens", "tokens_per_event")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """It may be another engine by now."""
        self.tokens_per_event = 1.0
        self._tokens = self._events = 0.0
        self._by_usage = False

    def learn(self, tokens: float, events: float, *, by_usage: bool) -> None:
        """So many tokens came in so many events.

        `by_usage`: the engine said so of a single answer. Its counter of all generated tokens
        serves until then; it also counts what others asked for. Numbers that cannot be are ignored.
        """
        if by_usage and not self._by_usage:
            self.reset()
            self._by_usage = True
        if events <= 0 or tokens <= 0 or by_usage is not self._by_usage:
            return
        self._tokens += tokens
        self._events += events
        if self._tokens >= CALIBRATION_TOKENS:
            measured = self._tokens / self._events
            self.tokens_per_event = min(max(measured, 1.0), MAX_TOKENS_PER_EVENT)
        if self._events > CALIBRATION_MEMORY:
            self._tokens /= 2
            self._events /= 2
