"""The connections to every engine of the fleet."""

from collections.abc import Callable, Iterable

from router.core.fleet.member import Member
from router.core.values import Endpoint
from router.net.engine.pool import EnginePool

__all__ = ["EnginePools"]


class EnginePools:
    """A pool for each engine, made by `make`. `by_endpoint` is one object, which requests use."""

    def __init__(self, make: Callable[[Endpoint], EnginePool]) -> None:
        self.by_endpoint: dict[Endpoint, EnginePool] = {}
        self._make = make
        self._members: dict[Endpoint, Member] = {}

    def follow(self, members: Iterable[Member]) -> None:
        """These are the engines now. What is under way on other connections goes on."""
        current = {member.endpoint: member for member in members}
        for endpoint, member in self._members.items():
            if current.get(endpoint) is not member:
                self.by_endpoint.pop(endpoint).retire()
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
        """Make those of engines that join by `make` from now on, and keep to these limits."""
        self._make = make
        for pool in self.by_endpoint.values():
            pool.configure(
                connect_seconds=connect_seconds, idle_seconds=idle_seconds, max_idle=max_idle
            )

    def close(self) -> None:
        """Close everything at once."""
        for pool in self.by_endpoint.values():
            pool.close()
