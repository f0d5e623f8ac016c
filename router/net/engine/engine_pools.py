"""The connection pools of all engines of the fleet."""

from collections.abc import Callable, Iterable
from itertools import zip_longest

from router.core.fleet.member import Member
from router.core.values import Endpoint
from router.net.engine.engine_connection import EngineConnection
from router.net.engine.pool import EnginePool

__all__ = ["EnginePools"]


class EnginePools:
    """One pool per engine, created by `make`. `by_endpoint` stays the same object, because requests
    hold a reference to it."""

    def __init__(self, make: Callable[[Endpoint], EnginePool]) -> None:
        self.by_endpoint: dict[Endpoint, EnginePool] = {}
        self._make = make
        self._members: dict[Endpoint, Member] = {}
        self._retired: list[EnginePool] = []
        """Those of engines that have left, as long as requests are in flight on them."""

    def follow(self, members: Iterable[Member]) -> None:
        """Set the engines of the fleet. The pools of engines that have left are retired, and
        requests in flight on them continue."""
        current = {member.endpoint: member for member in members}
        for endpoint, member in self._members.items():
            if current.get(endpoint) is not member:
                pool = self.by_endpoint.pop(endpoint)
                pool.retire()
                self._retired.append(pool)
        self._retired = [pool for pool in self._retired if pool.open]
        for endpoint in current:
            if endpoint not in self.by_endpoint:
                self.by_endpoint[endpoint] = self._make(endpoint)
        self._members = current

    def configure(
        self,
        make: Callable[[Endpoint], EnginePool],
        *,
        connect_seconds: float,
        idle_seconds: float,
        max_idle: int,
    ) -> None:
        """Set `make` for engines that join from now on, and these limits for all pools."""
        self._make = make
        for pool in self.by_endpoint.values():
            pool.configure(
                connect_seconds=connect_seconds, idle_seconds=idle_seconds, max_idle=max_idle
            )

    def answering(self) -> list[EngineConnection]:
        """The connections that are in the middle of an answer, also those to engines that have
        left. Engines alternate, so that each slice of the read rotation has some of every engine:
        their speeds are compared four times a second."""
        pools = (*self.by_endpoint.values(), *self._retired)
        rows = zip_longest(*[pool.answering() for pool in pools])
        return [one for row in rows for one in row if one is not None]

    def close(self) -> None:
        """Close all connections immediately."""
        for pool in (*self.by_endpoint.values(), *self._retired):
            pool.close()
