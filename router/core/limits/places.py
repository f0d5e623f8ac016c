"""Places on decode engines: how many admitted requests each engine may have.

A request has one place from its admission to its end: first on any engine that could take it, then
on the one that its plan leases. So requests in prefill are counted, and requests on an engine that
is gone, stalled or drained take no places from the others. The counts, of all processes of a
router, are kept in `Load.admitted`.
"""

from collections.abc import Iterable

from router.core.candidate import Candidate, Load
from router.core.request_facts import Facts
from router.core.shared_memory import Count
from router.core.values import Endpoint

__all__ = ["Group", "Place", "Places", "group_of"]

Group = tuple[str | None, tuple[Endpoint, ...] | None]
"""Determines which decode engines can take a request: its model, and those that a gateway names."""


def group_of(facts: Facts) -> Group:
    """A request's group."""
    named = facts.destinations
    return facts.model, None if named is None else named.decode


class Places:
    """The places of all decode engines: `per_engine` each, None: unlimited."""

    def __init__(self, per_engine: int | None) -> None:
        self.per_engine = per_engine
        self.taken = 0
        """Places that this process has taken, on all engines."""

    def is_full(self, load: Load, now: float) -> bool:
        """Whether an engine can take no more requests of this process; `now` in seconds."""
        limit = self.per_engine
        return limit is not None and load.own.admitted.room(limit, now) <= 0

    def with_room(self, engines: Iterable[Candidate], now: float) -> Candidate | None:
        """The first engine that can take one more; None if none can."""
        for engine in engines:
            if not self.is_full(engine.load, now):
                return engine
        return None

    def add(self, count: Count, number: int) -> None:
        """Take a place (1), or give it back (-1)."""
        count.add(number)
        self.taken += number


class Place:
    """The place of one request. It is on no engine before its admission and after its end."""

    __slots__ = ("_count", "_places")

    def __init__(self, places: Places) -> None:
        self._places = places
        self._count: Count | None = None
        """The count of its engine. A later engine at the same address has a new one."""

    def fits(self, load: Load, now: float) -> bool:
        """Whether the request is on this engine, or can move there."""
        return load.own.admitted is self._count or not self._places.is_full(load, now)

    def full(self, engines: Iterable[Candidate], now: float) -> frozenset[Endpoint]:
        """The endpoints to which the request cannot move."""
        return frozenset([each.endpoint for each in engines if not self.fits(each.load, now)])

    def move(self, load: Load | None) -> None:
        """Move to the engine with this load; None: to no engine."""
        before, self._count = self._count, None if load is None else load.own.admitted
        if self._count is before:
            return
        if self._count is not None:
            self._places.add(self._count, 1)
        if before is not None:
            self._places.add(before, -1)
