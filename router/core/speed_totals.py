"""What the processes of one host tell each other of an endpoint's speed, and where they do.

Each shows sums since it began and what it has now; what the others added since the last look is
the difference. `core/board.py` keeps them in shared memory.
"""

from typing import NamedTuple, Protocol

__all__ = ["Shared", "Shown"]


class Shown(NamedTuple):
    """What a process shows the others of an endpoint: sums since it began, and what it has now."""

    tokens: float = 0.0
    """Events of streams behind their first tokens."""
    whole_tokens: float = 0.0
    begun: float = 0.0
    first_seconds: float = 0.0
    unheard: float = 0.0
    stream_seconds: float = 0.0
    prompt_work: float = 0.0
    prompt_seconds: float = 0.0
    streams: float = 0.0
    open: float = 0.0
    heard_at: float = 0.0
    asked_at: float = 0.0
    waiting_since: float = 0.0
    """0: none waits."""
    waiting_work: float = 0.0
    newest_begun: float = 0.0
    """When the youngest request that has had a first token was asked."""

    def plus(self, other: "Shown") -> "Shown":
        """Both together."""
        sums = (one + more for one, more in zip(self, other, strict=True))
        return Shown(*sums).with_moments_of(self, other)

    def since(self, before: "Shown") -> "Shown":
        """What was added after `before`; a process that has started anew added nothing yet."""
        added = (max(0.0, now - was) for now, was in zip(self, before, strict=True))
        return (
            Shown(*added)
            ._replace(streams=self.streams, open=self.open)
            .with_moments_of(self, NOTHING)
        )

    def with_moments_of(self, one: "Shown", other: "Shown") -> "Shown":
        """This, with the moments of two others: the latest ones, and the longest wait."""
        waits = [shown for shown in (one, other) if shown.waiting_since]
        longest = min(waits, key=lambda shown: shown.waiting_since, default=NOTHING)
        return self._replace(
            heard_at=max(one.heard_at, other.heard_at),
            asked_at=max(one.asked_at, other.asked_at),
            waiting_since=longest.waiting_since,
            waiting_work=longest.waiting_work,
            newest_begun=max(one.newest_begun, other.newest_begun),
        )


NOTHING = Shown()


class Shared(Protocol):
    """Where a process shows what it counted, and finds what the others did."""

    def show(self, shown: Shown) -> None:
        """Show all that has been counted so far."""

    def others(self) -> Shown:
        """What all others have counted since the last time."""
