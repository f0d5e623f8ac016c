"""The load of engines by what sibling replicas of the router tell of theirs, many times a second.

Each tells its own requests on each engine, never what it has heard: the sums of all reports are
the sum of all replicas. A sibling that is not heard any more is forgotten; its requests then show
in the engines' gauges only, as any other client's.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from router.core.shared.peer_messages import PeerReport
from router.core.values import Endpoint, OwnLoad

__all__ = [
    "MAX_SIBLINGS",
    "SAME_SECONDS",
    "STALE_SECONDS",
    "PeerBoard",
    "PeerLoad",
    "seconds_between_reports",
]

TELL_SECONDS: Final = 0.01
"""Between two reports, while requests come and go. Until it hears of the other's requests, each of
two replicas takes the same engine for the emptiest."""

TELL_SECONDS_PER_ENGINE: Final = 1e-4
"""What a report on many engines costs is bounded to some percent of a core."""

SAME_SECONDS: Final = 0.5
"""Between two reports that say the same: a sign of life."""

STALE_SECONDS: Final = 2.0
"""A sibling of which nothing is heard for so long is forgotten: four signs of life were lost."""

MAX_SIBLINGS: Final = 64
"""Siblings whose reports are kept: this bounds what a peer with the key can make the router
hold."""


def seconds_between_reports(engines: int) -> float:
    """How long to wait after a report on that many engines."""
    return max(TELL_SECONDS, TELL_SECONDS_PER_ENGINE * engines)


class _Sum:
    """What all siblings have on one engine."""

    __slots__ = ("pending", "requests")

    def __init__(self) -> None:
        self.requests = self.pending = 0


class PeerLoad:
    """A `Load` with the siblings' requests; this router adds to its own."""

    __slots__ = ("_board", "_siblings", "own")

    def __init__(self, own: OwnLoad, siblings: _Sum, board: "PeerBoard") -> None:
        self._board = board
        self.own = own
        self._siblings = siblings

    @property
    def requests(self) -> int:
        """Requests there now."""
        return self.own.requests + self._siblings.requests

    @property
    def tokens(self) -> int:
        """The estimated input tokens of this router's own."""
        return self.own.tokens

    @property
    def pending(self) -> int:
        """Tokens that the engine still has to compute."""
        return self.own.pending + self._siblings.pending

    def add(self, requests: int, tokens: int, pending: int) -> None:
        """Change this router's part."""
        self.own.add(requests, tokens, pending)
        on_change = self._board.on_change
        if on_change is not None:
            on_change()


@dataclass(slots=True)
class _Sibling:
    report: PeerReport
    heard_at: float


class PeerBoard:
    """What siblings have told. `replica` is this router's own name; times are monotonic seconds."""

    def __init__(self, replica: str) -> None:
        self.replica = replica
        self.on_change: Callable[[], None] | None = None
        """Called when this process's own requests have changed."""
        self._siblings: dict[str, _Sibling] = {}
        self._sums: dict[Endpoint, _Sum] = {}

    def load(self, own: OwnLoad, endpoint: Endpoint) -> PeerLoad:
        """An engine's load with what siblings have there, live."""
        total = self._sums.get(endpoint)
        if total is None:
            total = self._sums[endpoint] = _Sum()
            self._add_up([endpoint])
        return PeerLoad(own, total, self)

    def requests(self, endpoint: Endpoint) -> int:
        """The siblings' requests on an engine."""
        total = self._sums.get(endpoint)
        return 0 if total is None else total.requests

    def drop(self, endpoint: Endpoint) -> None:
        """The engine has left the fleet."""
        self._sums.pop(endpoint, None)

    def hear(self, report: PeerReport, now: float) -> bool:
        """Take a report; returns whether it is another replica's."""
        if report.replica == self.replica:
            return False
        known = self._siblings.get(report.replica)
        if known is not None:
            if report.number <= known.report.number:  # it was overtaken on its way
                return True
            before, known.report, known.heard_at = known.report, report, now
            self._add_up(before.loads.keys() | report.loads.keys())
        elif len(self._siblings) < MAX_SIBLINGS:
            self._siblings[report.replica] = _Sibling(report, now)
            self._add_up(report.loads)
        return True

    def tick(self, now: float) -> list[str]:
        """Forget siblings of which nothing is heard; returns their names."""
        oldest = now - STALE_SECONDS
        gone = [name for name, each in self._siblings.items() if each.heard_at < oldest]
        for name in gone:
            self._add_up(self._siblings.pop(name).report.loads)
        return gone

    def siblings(self, now: float) -> dict[str, tuple[float, int]]:
        """Each sibling's age of report in seconds, and its requests on all engines."""
        return {
            name: (now - each.heard_at, sum(load[0] for load in each.report.loads.values()))
            for name, each in self._siblings.items()
        }

    def _add_up(self, endpoints: Iterable[Endpoint]) -> None:
        nothing = (0, 0)
        for endpoint in endpoints:
            total = self._sums.get(endpoint)
            if total is not None:
                told = [s.report.loads.get(endpoint, nothing) for s in self._siblings.values()]
                total.requests = sum(requests for requests, _ in told)
                total.pending = sum(pending for _, pending in told)
