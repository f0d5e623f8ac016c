"""How many tokens one SSE event of an engine carries, learned from the usage it reports."""

__all__ = ["MAX_TOKENS_PER_EVENT", "Calibration"]

CALIBRATION_TOKENS = 16
"""Tokens needed for an estimate; until then the pool's is used, or one token per event."""

MAX_OUTLIER_RATIO = 2.0
"""Cap on one answer's tokens per event, as a multiple of the learned value: a parser (of tool
calls, say) may hold an answer's tokens back and send them as one event."""

MAX_TOKENS_PER_EVENT = 64.0
"""No sensible --stream-interval is larger; a larger value is an engine's counting error."""

CALIBRATION_MEMORY = 4096
"""Events after which older counts are halved."""


class Calibration:
    """One engine's tokens per event."""

    __slots__ = ("_by_usage", "_events", "_tokens", "is_learned", "tokens_per_event")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: the engine was restarted or replaced."""
        self.is_learned = False
        self.tokens_per_event = 1.0
        self._tokens = self._events = 0.0
        self._by_usage = False

    def assume(self, tokens_per_event: float) -> None:
        """Use what other engines of the pool have learned until this one has its own estimate."""
        if not self.is_learned:
            self.tokens_per_event = tokens_per_event

    def learn(self, tokens: float, events: float, *, by_usage: bool) -> None:
        """Count `tokens` that arrived in `events`. Values of 0 or below are ignored.

        `by_usage`: the numbers are from the usage of one answer. Until the first such answer they
        are from the engine's counter of generated tokens, which includes other clients' tokens.
        """
        if by_usage and not self._by_usage:
            self.reset()
            self._by_usage = True
        if events <= 0 or tokens <= 0 or by_usage is not self._by_usage:
            return
        if self.is_learned:
            tokens = min(tokens, MAX_OUTLIER_RATIO * self.tokens_per_event * events)
        self._tokens += tokens
        self._events += events
        if self._tokens >= CALIBRATION_TOKENS:
            self.is_learned = True
            measured = self._tokens / self._events
            self.tokens_per_event = min(max(measured, 1.0), MAX_TOKENS_PER_EVENT)
        if self._events > CALIBRATION_MEMORY:
            self._tokens /= 2
            self._events /= 2
