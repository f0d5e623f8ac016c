"""A simulated engine of a cluster, and the requests that reached it over all its restarts."""

import asyncio
import re
from dataclasses import replace
from typing import Any, NamedTuple

from router.simulator import EngineConfig, RunningEngine
from router.simulator.api.errors import leg_of
from router.simulator.records import Records, Request

__all__ = ["REQUEST_ID", "Engine", "Visit"]

REQUEST_ID = "load-%d"
"""The id that a client gives to a request. The router appends its own suffix, so a request without
it is the router's own: a speed probe."""

_ID = re.compile(r"load-(\d+)-")


class Visit(NamedTuple):
    """One request that reached the engine."""

    number: int
    at: float
    """Seconds, the event loop's clock."""
    leg: str
    """prefill, decode or plain."""


class Engine:
    """One engine of a cluster; `restart` gives it a new process behind the same address."""

    def __init__(self, name: str, config: EngineConfig) -> None:
        self.name = name
        self.visits: list[Visit] = []
        self.probes = 0
        """The router's own generations."""
        self._running = self._incarnation(config)
        self.url, self.port = self._running.url, self._running.port
        self._config = replace(config, port=self.port)
        self.is_up = False

    def _incarnation(self, config: EngineConfig) -> RunningEngine:
        running = RunningEngine(config)
        running.engine.records = _Arrivals(self)
        return running

    @property
    def running(self) -> int:
        """Requests in its batch now."""
        return self._running.engine.machine.running if self.is_up else 0

    @property
    def waiting(self) -> int:
        """Requests in its queue now."""
        return self._running.engine.machine.waiting if self.is_up else 0

    @property
    def in_flight(self) -> int:
        """Requests that it has."""
        return self.running + self.waiting

    async def start(self) -> None:
        """Listen."""
        await self._running.start()
        self.is_up = True

    async def stop(self) -> None:
        """End it: all its streams break, and new connections are refused."""
        if self.is_up:
            self.is_up = False
            await self._running.stop()

    async def start_again(self) -> None:
        """Start it anew behind the same address, with nothing in its cache."""
        self._running = self._incarnation(self._config)
        await self.start()

    async def set_faults(self, **faults: Any) -> None:
        """Put faults in force instead of those before; see router.simulator.Faults."""
        await self._running.set_faults(**faults)

    def arrived(self, request: Request) -> None:
        """Note a request for tokens."""
        found = _ID.match(request.headers.get("x-request-id", ""))
        if found is None:
            self.probes += 1
        else:
            now = asyncio.get_running_loop().time()
            self.visits.append(Visit(int(found[1]), now, leg_of(request.body)))


class _Arrivals(Records):
    """Tells the engine of each request for tokens, and remembers no bodies."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(0)
        self._engine = engine

    def add(self, request: Request) -> None:
        super().add(request)
        if request.method == "POST" and request.path.startswith("/v1/"):
            self._engine.arrived(request)
