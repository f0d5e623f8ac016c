"""One HTTP request and its response: a thin layer over ASGI and the connection."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

import orjson

from router.simulator.api.errors import ApiError
from router.simulator.driver import Gone
from router.simulator.faults import NO_FAULTS
from router.simulator.frontend.connection import Connection
from router.simulator.records import Request

Message = MutableMapping[str, Any]

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"


class Exchange:
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


Route = Callable[[Exchange, Request], Awaitable[None]]
