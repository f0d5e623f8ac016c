"""Places on decode engines: how many requests each may have that admission let in.

A request has one place, from when it is let in to its end: on an engine that could take it, and,
once its plan has leased one, on that. So a request that is still prefilled is counted, and what
runs on an engine that is gone, stalled or drained takes nothing from the others.
"""

from collections.abc import Iterable

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
        self._taken: dict[Load, int] = {}
        """By the engine's load: another engine at the same address has another one."""

    def is_full(self, load: Load) -> bool:
        """Whether an engine can take no more."""
        return self.per_engine is not None and self._taken.get(load, 0) >= self.per_engine

    def with_room(self, engines: Iterable[Candidate]) -> Candidate | None:
        """The first engine that can take one more; None if none can."""
        for engine in engines:
            if not self.is_full(engine.load):
                return engine
        return None

    @property
    def taken(self) -> int:
        """All places that are taken."""
        return sum(self._taken.values())

    def add(self, load: Load, number: int) -> None:
        """Take a place on an engine, or (-1) give it back."""
        now = self._taken.get(load, 0) + number
        if now:
            self._taken[load] = now
        else:
            del self._taken[load]


class Place:
    """One request's. It is on no engine before it is let in, and after its end."""

    __slots__ = ("_load", "_places")

    def __init__(self, places: Places) -> None:
        self._places = places
        self._load: Load | None = None

    def fits(self, load: Load) -> bool:
        """Whether it is on this engine, or can move there."""
        return load is self._load or not self._places.is_full(load)

    def full(self, engines: Iterable[Candidate]) -> frozenset[Endpoint]:
        """Those to which it cannot move."""
        return frozenset([each.endpoint for each in engines if not self.fits(each.load)])

    def move(self, load: Load | None) -> None:
        """Be on this engine and on no other one; None: on none."""
        before, self._load = self._load, load
        if load is not None:
            self._places.add(load, 1)
        if before is not None:
            self._places.add(before, -1)
