"""Engine loads reported by sibling replicas of the router, many times a second.

Each replica reports only its own requests on each engine, so that the sum of all reports is the
total of all replicas. A sibling that falls silent is removed; its requests are then only visible in
the engines' gauges, like those of any other client.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from router.core.candidate import OwnLoad
from router.core.replicas.peer_messages import PeerReport
from router.core.values import Endpoint

__all__ = [
    "MAX_SIBLINGS",
    "SAME_SECONDS",
    "STALE_SECONDS",
    "PeerBoard",
    "PeerLoad",
    "SiblingLoad",
    "seconds_between_reports",
]

REPORT_SECONDS: Final = 0.01
"""Seconds between reports while requests change. Until two replicas know of each other's requests,
both take the same engine for the emptiest."""

REPORT_SECONDS_PER_ENGINE: Final = 1e-4
"""Additional seconds per engine in a report, which limits the cost to some percent of a core."""

SAME_SECONDS: Final = 0.5
"""Seconds between reports without changes, as a keep-alive."""

STALE_SECONDS: Final = 2.0
"""Seconds after which a silent sibling is removed: four keep-alives were lost."""

MAX_SIBLINGS: Final = 64
"""Most siblings whose reports are kept, to limit the memory that a peer with the key can use."""

NOTHING: Final = (0, 0)
"""The load of an engine that a report does not name."""


def seconds_between_reports(engines: int) -> float:
    """Seconds to wait after a report with so many engines."""
    return max(REPORT_SECONDS, REPORT_SECONDS_PER_ENGINE * engines)


class SiblingLoad:
    """The sum of all siblings' requests on one engine."""

    __slots__ = ("_computed", "pending", "requests")

    def __init__(self) -> None:
        self.requests = self.pending = 0
        self._computed = 0

    def computed(self, tokens: int) -> None:
        """Count prompt tokens that the engine has computed for a sibling."""
        self._computed += tokens

    def take_computed(self) -> int:
        """How many were counted since the last call."""
        computed, self._computed = self._computed, 0
        return computed


class PeerLoad:
    """A `Load` that includes the siblings' requests; this router changes only its own part."""

    __slots__ = ("_board", "_siblings", "own")

    def __init__(self, own: OwnLoad, siblings: SiblingLoad, board: "PeerBoard") -> None:
        self._board = board
        self.own = own
        self._siblings = siblings

    @property
    def requests(self) -> int:
        """Number of requests."""
        return self.own.requests + self._siblings.requests

    @property
    def tokens(self) -> int:
        """The estimated input tokens of this router's own requests."""
        return self.own.tokens

    @property
    def pending(self) -> int:
        """Input tokens that the engine still has to compute."""
        return self.own.pending + self._siblings.pending

    def add(self, requests: int, tokens: int, pending: int) -> None:
        """Add to this router's part (negative: subtract)."""
        self.own.add(requests, tokens, pending)
        on_change = self._board.on_change
        if on_change is not None:
            on_change()


@dataclass(slots=True)
class _Sibling:
    report: PeerReport
    heard_at: float


class PeerBoard:
    """The reports of siblings. `replica` is this router's own name; times are monotonic seconds."""

    def __init__(self, replica: str) -> None:
        self.replica = replica
        self.on_change: Callable[[], None] | None = None
        """Called when this process's own requests have changed."""
        self._siblings: dict[str, _Sibling] = {}
        self._sums: dict[Endpoint, SiblingLoad] = {}

    def load(self, own: OwnLoad, endpoint: Endpoint) -> PeerLoad:
        """An engine's load including the siblings' requests; it changes with the reports."""
        return PeerLoad(own, self.siblings_on(endpoint), self)

    def siblings_on(self, endpoint: Endpoint) -> SiblingLoad:
        """The siblings' part of it."""
        total = self._sums.get(endpoint)
        if total is None:
            total = self._sums[endpoint] = SiblingLoad()
            self._add_up([endpoint])
        return total

    def requests(self, endpoint: Endpoint) -> int:
        """The siblings' requests on an engine."""
        total = self._sums.get(endpoint)
        return 0 if total is None else total.requests

    def drop(self, endpoint: Endpoint) -> None:
        """Remove an engine that has left the fleet."""
        self._sums.pop(endpoint, None)

    def receive(self, report: PeerReport, now: float) -> bool:
        """Process a report. Returns False if it is this replica's own."""
        if report.replica == self.replica:
            return False
        known = self._siblings.get(report.replica)
        if known is not None:
            if report.number <= known.report.number:  # a newer one has overtaken it
                return True
            before, known.report, known.heard_at = known.report, report, now
            self._note_computed(before, report)
            self._add_up(before.loads.keys() | report.loads.keys())
        elif len(self._siblings) < MAX_SIBLINGS:
            self._siblings[report.replica] = _Sibling(report, now)
            self._add_up(report.loads)
        return True

    def tick(self, now: float) -> list[str]:
        """Remove silent siblings. Returns their names."""
        oldest = now - STALE_SECONDS
        gone = [name for name, each in self._siblings.items() if each.heard_at < oldest]
        for name in gone:
            self._add_up(self._siblings.pop(name).report.loads)
        return gone

    def siblings(self, now: float) -> dict[str, tuple[float, int]]:
        """The age of each sibling's last report in seconds, and its requests on all engines."""
        return {
            name: (now - each.heard_at, sum(load[0] for load in each.report.loads.values()))
            for name, each in self._siblings.items()
        }

    def _note_computed(self, before: PeerReport, after: PeerReport) -> None:
        """Prompts that are no longer pending have been computed, but for the few whose clients
        left."""
        for endpoint, (_, pending) in before.loads.items():
            total = self._sums.get(endpoint)
            if total is not None:
                total.computed(max(0, pending - after.loads.get(endpoint, NOTHING)[1]))

    def _add_up(self, endpoints: Iterable[Endpoint]) -> None:
        for endpoint in endpoints:
            total = self._sums.get(endpoint)
            if total is not None:
                reported = [s.report.loads.get(endpoint, NOTHING) for s in self._siblings.values()]
                total.requests = sum(requests for requests, _ in reported)
                total.pending = sum(pending for _, pending in reported)
