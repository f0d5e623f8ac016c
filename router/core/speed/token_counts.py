"""Counts of an engine's tokens and events, and how many tokens one SSE event carries."""

from typing import NamedTuple

from router.core.speed.tuning import (
    CALIBRATION_MEMORY,
    CALIBRATION_TOKENS,
    MAX_CALIBRATION_RATIO,
    MAX_TOKENS_PER_EVENT,
)

__all__ = ["Calibration", "EventCounts", "TickCounts", "TokenCounter"]


class EventCounts(NamedTuple):
    """Counts of an endpoint since it joined."""

    events: int = 0
    begun: int = 0
    untracked: int = 0
    whole_tokens: int = 0
    """Tokens of unary answers and of probes."""
    computed: float = 0.0
    """Prompt tokens that it has computed."""

    @property
    def whole(self) -> tuple[int, int]:
        """Changes when the engine has generated tokens that are not stream events."""
        return self.untracked, self.whole_tokens


class TickCounts(NamedTuple):
    """What was counted in one tick."""

    seconds: float
    tokens: float
    """Those of streams after their first, and of whole answers."""
    whole_tokens: int
    begun: int
    """Streams, each with a first token."""
    stream_seconds: float
    computed: float
    """Prompt tokens that the engine has computed, unfinished prompts in proportion."""
    prompt_work: int
    """Prompt tokens, with the overhead of each prompt, that first tokens waited for."""
    prompt_seconds: float
    """How long they waited."""


class TokenCounter:
    """Where the relay counts a stream's tokens, event by event."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = 0
        """Events since the last tick."""


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
            tokens = min(tokens, MAX_CALIBRATION_RATIO * self.tokens_per_event * events)
        self._tokens += tokens
        self._events += events
        if self._tokens >= CALIBRATION_TOKENS:
            self.is_learned = True
            measured = self._tokens / self._events
            self.tokens_per_event = min(max(measured, 1.0), MAX_TOKENS_PER_EVENT)
        if self._events > CALIBRATION_MEMORY:
            self._tokens /= 2
            self._events /= 2
