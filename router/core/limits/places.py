"""Places on decode engines: how many requests each may have that admission let in.

A request has one place, from when it is let in to its end: on an engine that could take it, and,
once its plan has leased one, on that. So a request that is still prefilled is counted, and what
runs on an engine that is gone, stalled or drained takes nothing from the others. Where the places
are counted, `Load.admitted` says: those of all processes of a router.
"""

from collections.abc import Iterable

from router.core.admitted import Count
from router.core.values import Candidate, Endpoint, Facts, Load

__all__ = ["Group", "Place", "Places", "group_of"]

Group = tuple[str | None, tuple[Endpoint, ...] | None]
"""What says which decode engines can take a request: its model, and those that a gateway names."""


def group_of(facts: Facts) -> Group:
    """A request's group."""
    named = facts.destinations
    return facts.model, None if named is None else named.decode


class Places:
    """Of all decode engines, `per_engine` each; any number if that is None."""

    def __init__(self, per_engine: int | None) -> None:
        self.per_engine = per_engine
        self.taken = 0
        """All places that this process has taken."""

    def is_full(self, load: Load, now: float) -> bool:
        """Whether an engine can take no more of this process; `now` in seconds."""
        limit = self.per_engine
        return limit is not None and load.own.admitted.room(limit, now) <= 0

    def with_room(self, engines: Iterable[Candidate], now: float) -> Candidate | None:
        """The first engine that can take one more; None if none can."""
        for engine in engines:
            if not self.is_full(engine.load, now):
                return engine
        return None

    def add(self, count: Count, number: int) -> None:
        """Take a place, or (-1) give it back."""
        count.add(number)
        self.taken += number


class Place:
    """One request's. It is on no engine before it is let in, and after its end."""

    __slots__ = ("_count", "_places")

    def __init__(self, places: Places) -> None:
        self._places = places
        self._count: Count | None = None
        """That of its engine: another engine at the same address has another one."""

    def fits(self, load: Load, now: float) -> bool:
        """Whether it is on this engine, or can move there."""
        return load.own.admitted is self._count or not self._places.is_full(load, now)

    def full(self, engines: Iterable[Candidate], now: float) -> frozenset[Endpoint]:
        """Those to which it cannot move."""
        return frozenset([each.endpoint for each in engines if not self.fits(each.load, now)])

    def move(self, load: Load | None) -> None:
        """Be on this engine and on no other one; None: on none."""
        before, self._count = self._count, None if load is None else load.own.admitted
        if self._count is before:
            return
        if self._count is not None:
            self._places.add(self._count, 1)
        if before is not None:
            self._places.add(before, -1)
