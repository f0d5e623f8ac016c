"""A client's connection: uvicorn's HTTP protocol, able to misbehave.

The application reaches it as `scope["state"]["connection"]`, to learn at once that the client is
gone and to end a connection in ways that ASGI has no word for.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.simulator.faults import FaultPlan


class Connection(HttpToolsProtocol):
    """One connection of a simulated engine."""

    def __init__(
        self, config: Config, state: ServerState, faults: FaultPlan, keep_alive_s: float
    ) -> None:
        super().__init__(config, state, {})
        # Of the connection, not of uvicorn's configuration: that one changes global loggers.
        self.access_log = False
        self.timeout_keep_alive = keep_alive_s  # type: ignore[assignment]
        self._faults = faults
        self._on_lost: set[Callable[[], None]] = set()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self._faults.take_reset():
            self.reset()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for call in list(self._on_lost):
            call()
        self._on_lost.clear()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["connection"] = self

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._faults.now.close_idle and not self.pipeline:
            self.close()

    def when_lost(self, call: Callable[[], None]) -> None:
        """Call when the connection ends; at once if it has ended."""
        if self not in self.connections:
            call()
        else:
            self._on_lost.add(call)

    def forget(self, call: Callable[[], None]) -> None:
        """The request of `call` is over; the connection may live on."""
        self._on_lost.discard(call)

    async def ended(self) -> None:
        """Wait until the connection has ended."""
        end = asyncio.get_running_loop().create_future()

        def finish() -> None:
            if not end.done():
                end.set_result(None)

        self.when_lost(finish)
        try:
            await end
        finally:
            self.forget(finish)

    def close(self) -> None:
        """Send what is written, then close without another word: the peer of a killed process."""
        self.transport.close()

    def reset(self, behind: bytes = b"") -> None:
        """Close with RST instead of FIN, behind these bytes."""
        # A descriptor of our own: not every event loop lets its sockets be touched.
        with socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno())) as own:
            if behind:
                own.send(behind)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
