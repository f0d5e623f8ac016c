"""A simulated engine on a socket. Any number of them can run in one event loop.

uvicorn's protocol serves the connections. The listener is separate, so that an engine can refuse or
reset connections, or die.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import uvloop
from uvicorn.config import Config
from uvicorn.server import ServerState

from router.simulator.config import EngineConfig
from router.simulator.engine import Engine
from router.simulator.faults import NO_FAULTS, Faults
from router.simulator.frontend.app import App
from router.simulator.frontend.control import state_of
from router.simulator.frontend.exchange import Connection
from router.simulator.records import Request

_BACKLOG = 2048
"""uvicorn's."""
_PATIENCE_S = 1.0
"""Time-out in seconds for requests to end; only those that a fault lets hang need it."""


class CannotListen(OSError):
    """An engine's address cannot be bound."""


class RunningEngine:
    """A simulated engine that listens; created by `serve_engine`."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.engine = Engine(config)
        self.ranks = [RunningEngine(each) for each in _other_ranks(config)]
        """The other ranks of a data-parallel engine. Requests arrive through this engine's API
        server; the others' listeners take KV transfers."""
        self.engine.listen = self._listen
        self.engine.connections = lambda: len(self._state.connections)
        self.engine.drop_connections = self.drop_connections
        self._state = ServerState()
        # Disables uvicorn's detection of `interface` and so on, and its logging.
        self._uvicorn = Config(
            App(self.engine, *(rank.engine for rank in self.ranks)),
            interface="asgi3",
            lifespan="off",
            ws="none",
            http="httptools",
            proxy_headers=False,
            log_config=None,
        )
        self._uvicorn.load()
        # Bound but not listening, to keep the port while the engine refuses connections.
        self._place = _bind(config.host, config.port)
        self.host, self.port = self._place.getsockname()[:2]
        self._listener: asyncio.Server | None = None
        self._clock: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def state(self) -> dict[str, Any]:
        """The same as GET /sim/state."""
        return state_of(self.engine)

    @property
    def requests(self) -> Sequence[Request]:
        """The received requests, oldest first."""
        return tuple(self.engine.records.requests)

    @property
    def faults(self) -> Faults:
        """The current faults; `next`, `fail_kv_loads` and `expire_references` count down."""
        return self.engine.faults.now

    async def set_faults(self, **faults: Any) -> None:
        """Replace the faults; see `Faults`."""
        await self.engine.set_faults(Faults(**faults))

    async def clear_faults(self) -> None:
        await self.engine.set_faults(NO_FAULTS)

    def drop_connections(self) -> None:
        """Reset all connections, like a host that dies."""
        for connection in self._connections():
            connection.reset()

    def _connections(self) -> list[Connection]:
        return [each for each in self._state.connections if isinstance(each, Connection)]

    # Start and stop.

    async def start(self) -> None:
        for rank in self.ranks:
            await rank.start()
        self._tell_time()
        self.engine.start(self.host, self.port)
        self.engine.spawn(self._await_death())
        await self._listen(not self.config.faults.refuse)

    async def shut_down(self) -> None:
        """Do as vLLM at SIGTERM, with its default --shutdown-timeout of 0: requests end in an
        error."""
        await self._listen(False)
        for each in (self, *self.ranks):
            each.engine.die()
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=_PATIENCE_S)

    async def stop(self) -> None:
        """Abort everything immediately, like a killed process."""
        for rank in self.ranks:
            await rank.stop()
        if self._clock is not None:
            self._clock.cancel()
        await self._listen(False)
        self._place.close()
        await self._hang_up()
        await self.engine.close()

    async def _hang_up(self) -> None:
        for connection in self._connections():
            connection.transport.abort()
        await asyncio.gather(*(connection.ended() for connection in self._connections()))
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=_PATIENCE_S)

    async def _await_death(self) -> None:
        await self.engine.died.wait()
        if self.config.stop_after_death_s is not None:
            await asyncio.sleep(self.config.stop_after_death_s)
            await self._listen(False)
            await self._hang_up()

    async def _listen(self, open_: bool) -> None:
        if not open_ and self._listener is not None:
            self._listener.close()
            self._listener = None
        elif open_ and self._listener is None:
            loop = asyncio.get_running_loop()
            place = _bind(self.host, self.port)
            self._listener = await loop.create_server(
                self._connection, sock=place, backlog=_BACKLOG
            )

    def _connection(self) -> Connection:
        return Connection(self._uvicorn, self._state, self.engine.faults, self.config.keep_alive_s)

    def _tell_time(self) -> None:
        """uvicorn's server refreshes the headers of all responses every second."""
        self._state.default_headers = [
            (b"date", formatdate(self.engine.wall_clock(), usegmt=True).encode()),
            (b"server", b"uvicorn"),
        ]
        self._clock = asyncio.get_running_loop().call_later(1.0, self._tell_time)


def _other_ranks(config: EngineConfig) -> Iterator[EngineConfig]:
    for place in range(1, config.data_parallel_size):
        events = config.kv_events_port
        yield replace(
            config,
            port=0,
            engine_id=None,
            data_parallel_size=1,
            data_parallel_start_rank=config.data_parallel_start_rank + place,
            kv_events_port=events + 2 * place if events else 0,
        )


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's algorithm only for sockets created with IPPROTO_TCP. Otherwise each
    # response in two writes waits 40 ms for the peer's delayed acknowledgement.
    place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((host, port))
    except OSError as error:
        place.close()
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror}") from None
    place.setblocking(False)
    return place


@asynccontextmanager
async def serve_engine(config: EngineConfig | None = None) -> AsyncIterator[RunningEngine]:
    """Run an engine in the current event loop until the block ends.

    Raises CannotListen.
    """
    running = RunningEngine(config or EngineConfig())
    try:
        await running.start()
        yield running
    finally:
        await running.stop()


def serve_until_ended(
    configs: Sequence[EngineConfig], on_ready: Callable[[Sequence[RunningEngine]], None]
) -> None:
    """Run engines until SIGTERM or SIGINT; `on_ready` is called when all listen.

    Raises CannotListen.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_until_ended(configs, on_ready))


async def _serve_until_ended(
    configs: Sequence[EngineConfig], on_ready: Callable[[Sequence[RunningEngine]], None]
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(serve_engine(config)) for config in configs]
        on_ready(engines)
        await stop.wait()
        await asyncio.gather(*(engine.shut_down() for engine in engines))
