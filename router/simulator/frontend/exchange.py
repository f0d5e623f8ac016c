"""One HTTP request and its response over ASGI, and uvicorn's connection, which can misbehave.

The application accesses the connection as `scope["state"]["connection"]`, to learn immediately that
the client has left, and to end a connection in ways that ASGI does not support.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.simulator.api.errors import ApiError
from router.simulator.engine import Gone
from router.simulator.faults import NO_FAULTS, FaultPlan
from router.simulator.records import Request


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


Message = MutableMapping[str, Any]

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"


class HttpExchange:
    """Reads the request, writes the response, and detects that the client has left."""

    def __init__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self.connection: Connection = scope["state"]["connection"]
        self.faults = NO_FAULTS
        """The faults of this request."""

    @property
    def query(self) -> dict[str, list[str]]:
        """The parameters behind the path."""
        return parse_qs(self._scope["query_string"].decode("latin-1"))

    async def read(self) -> Request:
        """Read the whole request. Raises Gone if the client leaves before."""
        parts = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in self._scope["headers"]
        }
        return Request(self._scope["method"], self._scope["path"], headers, b"".join(parts))

    async def start(self, status: int, kind: str | None, length: int | None = None) -> None:
        """Send status and headers. Without a length the body is chunked."""
        headers = [] if length is None else [(b"content-length", b"%d" % length)]
        if kind is not None:
            headers.append((b"content-type", kind.encode()))
        headers.append((b"vary", b"Origin"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, body: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def answer(self, status: int, body: bytes, kind: str | None = JSON) -> None:
        """Send a response of known length."""
        await self.start(status, kind, len(body))
        await self.send(body, more=False)

    async def json(self, document: object, status: int = 200) -> None:
        await self.answer(status, orjson.dumps(document))

    async def error(self, error: ApiError) -> None:
        await self.json(error.body(self._scope["path"]), error.status)

    async def hang(self, seconds: float | None = None) -> None:
        """Do nothing for `seconds`; None: forever. Raises Gone when the client has left."""
        try:
            async with asyncio.timeout(seconds):
                await self.connection.ended()
        except TimeoutError:
            return
        raise Gone


Route = Callable[[HttpExchange, Request], Awaitable[None]]
