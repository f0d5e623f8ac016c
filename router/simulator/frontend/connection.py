"""A client connection: uvicorn's HTTP protocol with the ability to misbehave.

The application accesses it as `scope["state"]["connection"]`, to learn immediately that the client
has left, and to end a connection in ways that ASGI does not support.
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
        # Set on the connection, because uvicorn's configuration would change global loggers.
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
        """Call `call` when the connection ends, or immediately if it has ended."""
        if self not in self.connections:
            call()
        else:
            self._on_lost.add(call)

    def forget(self, call: Callable[[], None]) -> None:
        """Remove `call`, because its request has ended."""
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
        """Send buffered data, then close without notice, like the peer of a killed process."""
        self.transport.close()

    def reset(self, behind: bytes = b"") -> None:
        """Send these bytes, then close with RST instead of FIN."""
        # A duplicate of the descriptor, because not every event loop allows the use of its sockets.
        with socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno())) as own:
            if behind:
                own.send(behind)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
