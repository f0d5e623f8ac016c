"""What the processes of one host tell each other of an endpoint's speed, and where they do.

Each shows sums since it began and what it has now; what the others added since the last look is
the difference. `core/shared_table.py` keeps them in shared memory.
"""

from typing import NamedTuple, Protocol

__all__ = ["SharedTotals", "SpeedTotals"]


class SpeedTotals(NamedTuple):
    """What a process shows the others of an endpoint: sums since it began, and what it has now."""

    tokens: float = 0.0
    """Events of streams behind their first tokens."""
    whole_tokens: float = 0.0
    begun: float = 0.0
    first_seconds: float = 0.0
    untracked: float = 0.0
    stream_seconds: float = 0.0
    prompt_work: float = 0.0
    prompt_seconds: float = 0.0
    streams: float = 0.0
    open: float = 0.0
    last_token_at: float = 0.0
    busy_since: float = 0.0
    waiting_since: float = 0.0
    """0: none waits."""
    waiting_work: float = 0.0
    newest_begun: float = 0.0
    """When the youngest request that has had a first token was asked."""

    def plus(self, other: "SpeedTotals") -> "SpeedTotals":
        """Both together."""
        sums = (one + more for one, more in zip(self, other, strict=True))
        return SpeedTotals(*sums).with_moments_of(self, other)

    def since(self, before: "SpeedTotals") -> "SpeedTotals":
        """What was added after `before`; a process that has started anew added nothing yet."""
        added = (max(0.0, now - was) for now, was in zip(self, before, strict=True))
        return (
            SpeedTotals(*added)
            ._replace(streams=self.streams, open=self.open)
            .with_moments_of(self, NOTHING)
        )

    def with_moments_of(self, one: "SpeedTotals", other: "SpeedTotals") -> "SpeedTotals":
        """This, with the moments of two others: the latest ones, and the longest wait."""
        waits = [totals for totals in (one, other) if totals.waiting_since]
        longest = min(waits, key=lambda totals: totals.waiting_since, default=NOTHING)
        return self._replace(
            last_token_at=max(one.last_token_at, other.last_token_at),
            busy_since=max(one.busy_since, other.busy_since),
            waiting_since=longest.waiting_since,
            waiting_work=longest.waiting_work,
            newest_begun=max(one.newest_begun, other.newest_begun),
        )


NOTHING = SpeedTotals()


class SharedTotals(Protocol):
    """Where a process shows what it counted, and finds what the others did."""

    def publish(self, totals: SpeedTotals) -> None:
        """Show all that has been counted so far."""

    def others(self) -> SpeedTotals:
        """What all others have counted since the last time."""
