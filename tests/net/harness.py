"""A whole router in the test's own event loop, in front of scripted engines."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from router.core.events import Event, RequestEnded
from router.core.values import Endpoint
from router.net.client.client_connection import ClientConnection
from router.net.engine.pool import EnginePool
from router.settings import Settings
from router.web.app import Router
from router.web.server import Server
from tests.net.client import SECONDS, Client, request
from tests.net.engine import Call, ScriptedEngine
from tests.net.payloads import COMPLETIONS, STREAM
from tests.net.tls import server_context

__all__ = ["Harness", "Running", "eventually", "flow_of"]

E = TypeVar("E")
Header = tuple[bytes, bytes]

NEVER = 3600.0
"""Seconds, unless a test wants something to happen: no event comes that a test did not cause, even
where a busy machine lets it wait."""


async def eventually(holds: Callable[[], object], what: Callable[[], object] = str) -> None:
    """Wait until `holds`, for states without an event. Fails after a deadline."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SECONDS
    while not holds():
        assert loop.time() < deadline, what()
        await asyncio.sleep(0.001)


def flow_of(connection: object) -> ClientConnection:
    """A client connection's flow control; uvicorn's types know of protocols without one."""
    assert isinstance(connection, ClientConnection)
    return connection


class WatchedRouter(Router):
    """Notes what is observed."""

    def __init__(self, settings: Settings) -> None:
        self.events: list[Event] = []
        super().__init__(settings)

    def observe(self, event: Event) -> None:
        super().observe(event)
        self.events.append(event)


class Running:
    """A router that listens."""

    def __init__(self, settings: Settings) -> None:
        self.router = WatchedRouter(settings)
        self.server = Server(self.router)
        self.clients: list[Client] = []

    async def start(self) -> None:
        """As uvicorn's `serve` does, but for signals."""
        config = self.server.config
        config.load()
        self.server.lifespan = config.lifespan_class(config)
        await self.server.startup()
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End everything at once; see test_server.py for the graceful way."""
        for client in self.clients:
            client.leave()
        if self.server.lifespan.shutdown_event.is_set():  # the test has done it
            assert not self.server.server_state.tasks
            assert not self.router.handler.active
            await self.is_quiet()
            return
        for listener in self.server.servers:
            listener.close()
        if self.server.admin is not None:
            await self.server.admin.close()
        await eventually(lambda: not self.server.server_state.connections)
        await eventually(lambda: not self.server.server_state.tasks)
        await eventually(lambda: not self.router.handler.active)
        await self.is_quiet()
        await self.server.lifespan.shutdown()
        await eventually(lambda: not any(pool.open for pool in self.pools.values()))

    @property
    def connections(self) -> list[Any]:
        """The router's connections to clients."""
        return list(self.server.server_state.connections)

    async def client(self, **options: Any) -> Client:
        """A new connection."""
        client = await Client.open(self.port, **options)
        self.clients.append(client)
        return client

    async def send(self, path: str, body: object = None, *headers: Header, **line: str) -> Client:
        """A new connection on which a request was sent; `line`: its method and version."""
        client = await self.client()
        await client.send(request(path, body, *headers, **line))
        return client

    async def ask(self, path: str, body: object, *headers: Header) -> Any:
        """One request on a connection of its own."""
        return await (await self.send(path, body, *headers)).answer()

    # What it knows.

    @property
    def pools(self) -> dict[Endpoint, EnginePool]:
        """The connections to each engine."""
        return self.router.connections.pools.by_endpoint

    def pool(self, engine: ScriptedEngine) -> EnginePool:
        """The connections to an engine."""
        pools = self.pools
        return next(pool for endpoint, pool in pools.items() if endpoint.url == engine.url)

    def endpoint(self, engine: ScriptedEngine) -> Endpoint:
        """The engine's endpoint."""
        return next(endpoint for endpoint in self.pools if endpoint.url == engine.url)

    def all(self, kind: type[E]) -> list[E]:
        """The events of a kind so far."""
        return [event for event in self.router.events if isinstance(event, kind)]

    async def records(self, number: int = 1) -> list[RequestEnded]:
        """The first records; waits until there are so many."""
        await eventually(lambda: len(self.all(RequestEnded)) >= number, lambda: self.router.events)
        found = self.all(RequestEnded)
        assert len(found) == number, found
        return found

    async def record(self) -> RequestEnded:
        """The only request's record."""
        return (await self.records())[0]

    async def usable(self, *engines: ScriptedEngine) -> None:
        """Wait until the engines are up."""
        members = [self.router.fleet.member(self.endpoint(engine)) for engine in engines]
        await eventually(lambda: all(member.health.is_up for member in members))

    async def is_quiet(self) -> None:
        """Wait until nothing is held: no lease, no bytes of bodies or answers, no engine connection
        but idle ones."""
        pools = self.pools.values()
        ledger = self.router.fleet.ledger
        network = self.router.handler.network
        budgets = network.byte_budget, network.answer_budget
        await eventually(
            lambda: (
                ledger.total() == 0
                and all(pool.open == pool.idle for pool in pools)
                and not any(budget.held for budget in budgets)
            ),
            lambda: (ledger.total(), list(pools), [budget.held for budget in budgets]),
        )
        for endpoint in self.pools:
            assert ledger.in_flight(endpoint) == 0
            assert ledger.tokens(endpoint) == 0
        assert not self.router.clients.idle_sweep._watched
        if (gate := self.router.handler.network.admission) is not None:
            assert gate.admission.in_flight == gate.admission.waiting == gate.places.taken == 0


class Harness:
    """Makes engines and routers for one test, and ends them.

    `certificate` is trusted by its routers and used by its engines that speak TLS.
    """

    def __init__(self, certificate: Path) -> None:
        self.certificate = certificate
        self.engines: list[ScriptedEngine] = []
        self.routers: list[Running] = []

    async def engine(self, *, listening: bool = True, tls: bool = False) -> ScriptedEngine:
        """An engine."""
        engine = ScriptedEngine(server_context(self.certificate) if tls else None)
        self.engines.append(engine)
        if listening:
            await engine.listen()
        return engine

    async def router(
        self,
        *decode: ScriptedEngine,
        prefill: tuple[ScriptedEngine, ...] = (),
        ready: bool = True,
        unchecked: Mapping[str, Any] = MappingProxyType({}),
        **settings: Any,
    ) -> Running:
        """A router in front of these engines; waits until they are up by default.

        `unchecked` are settings that no user could give.
        """
        usual: dict[str, Any] = {
            "host": "127.0.0.1",
            "health_check_interval": NEVER,
            "engine_stats_interval": NEVER,
            "health_check_timeout": SECONDS,
            "connect_timeout": SECONDS,
            "idle_connection_timeout": NEVER,
            "stall_timeout": 0,
            "routing_threshold": 0,
            "sse_keep_alive": 0,
            "engine_ca_file": self._ca_file,
        }
        running = Running(
            Settings(
                port=0,
                decode=[engine.url for engine in decode],
                prefill=[engine.url for engine in prefill],
                **{**usual, **settings},
            ).model_copy(update=unchecked)
        )
        self.routers.append(running)
        await running.start()
        if ready:
            await running.usable(*decode, *prefill)
        return running

    @property
    def _ca_file(self) -> Path | None:
        """For routers of engines with TLS: each router reads it twice, in a tenth of its start."""
        return self.certificate if any(engine.tls for engine in self.engines) else None

    async def single(self, **settings: Any) -> tuple[ScriptedEngine, Running]:
        """An engine, and a router in front of it."""
        engine = await self.engine()
        return engine, await self.router(engine, **settings)

    async def stream(self, **settings: Any) -> tuple[ScriptedEngine, Running, Client, Call]:
        """An engine, a router with these settings, a client that has asked for a stream, and its
        request as the engine has it."""
        engine, router = await self.single(**settings)
        client = await router.send(COMPLETIONS, STREAM)
        return engine, router, client, await engine.call()

    async def close(self) -> None:
        """End all. Fails if a router holds what it should have given back."""
        try:
            for router in self.routers:
                await router.stop()
        finally:
            for engine in self.engines:
                engine.stop()
            for router in self.routers:
                for connection in router.connections:  # of a test that failed
                    connection.transport.abort()
        await eventually(lambda: not any(engine.connections for engine in self.engines))


class Complaints(logging.Handler):
    """Errors in the log: a healthy router has none, for any behaviour of peers."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))
