"""The measurements of an engine that the worker processes of one host share.

Each process publishes sums since its start, and current values. Readers take the difference between
two readings of the sums. `core/shared_table.py` keeps them in shared memory.
"""

from operator import add
from typing import NamedTuple, Protocol

__all__ = ["SharedTotals", "SpeedTotals", "WorkerTotals"]


class SpeedTotals(NamedTuple):
    """One process's sums since its start, and its current values, for an endpoint."""

    tokens: float = 0.0
    """Stream events after the first token."""
    whole_tokens: float = 0.0
    begun: float = 0.0
    first_seconds: float = 0.0
    untracked: float = 0.0
    stream_seconds: float = 0.0
    prompt_work: float = 0.0
    prompt_seconds: float = 0.0
    answers: float = 0.0
    """Number of short unary answers. The next three: the prompt tokens ahead of them, their
    seconds, and the sum of the squares of these."""
    answer_work: float = 0.0
    answer_seconds: float = 0.0
    answer_squares: float = 0.0
    computed_tokens: float = 0.0
    """Prompt tokens computed there."""
    streams: float = 0.0
    surplus: float = 0.0
    """Sequences of `streams` beyond the first one of each request."""
    open: float = 0.0
    last_token_at: float = 0.0
    busy_since: float = 0.0
    waiting_since: float = 0.0
    """When the longest-waiting request was sent; 0: none waits."""
    waiting_work: float = 0.0
    newest_begun: float = 0.0
    """When the newest request that has had its first token was sent."""

    def plus(self, other: "SpeedTotals") -> "SpeedTotals":
        """The sum of both."""
        return SpeedTotals(*map(add, self, other))._replace(**_moments(self, other))

    def since(self, before: "SpeedTotals") -> "SpeedTotals":
        """What was added after `before`; never negative, even after a restart from 0."""
        added = [now - was if now > was else 0.0 for now, was in zip(self, before, strict=True)]
        return SpeedTotals(*added)._replace(
            streams=self.streams, surplus=self.surplus, open=self.open, **_moments(self, NOTHING)
        )


def _moments(one: SpeedTotals, other: SpeedTotals) -> dict[str, float]:
    """The times of both: the latest of each, and the longest wait."""
    longest = one
    if not one.waiting_since or 0.0 < other.waiting_since < one.waiting_since:
        longest = other
    return {
        "last_token_at": max(one.last_token_at, other.last_token_at),
        "busy_since": max(one.busy_since, other.busy_since),
        "waiting_since": longest.waiting_since,
        "waiting_work": longest.waiting_work,
        "newest_begun": max(one.newest_begun, other.newest_begun),
    }


NOTHING = SpeedTotals()


class SharedTotals(Protocol):
    """Publishes a process's totals, and reads those of the others."""

    def publish(self, totals: SpeedTotals) -> None:
        """Publish the sums since this process's start."""

    def others(self) -> SpeedTotals:
        """What all others have added since the last call."""


CURRENT = (
    "streams",
    "surplus",
    "open",
    "last_token_at",
    "busy_since",
    "waiting_since",
    "waiting_work",
    "newest_begun",
)
"""The fields that are current values, not sums."""


class WorkerTotals:
    """The totals of this process, and its exchange of them with the others."""

    __slots__ = ("_published", "_shared")

    def __init__(self, shared: SharedTotals) -> None:
        self._shared = shared
        self._published = SpeedTotals()

    def exchange(self, tick: SpeedTotals) -> SpeedTotals:
        """Publish what this process has counted in a tick, and its current values. Returns what the
        others have published since the last call."""
        current = {name: getattr(tick, name) for name in CURRENT}
        self._published = self._published.plus(tick)._replace(**current)
        self._shared.publish(self._published)
        return self._shared.others()
