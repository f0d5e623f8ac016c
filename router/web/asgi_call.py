"""Runs an ASGI application for one request; only for operations, which are rare.

The interface is the HTTP scope of the ASGI specification, version 2.3.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping, MutableSet
from functools import cached_property
from typing import Any, Final

from router.core.errors import BodyTooLarge, BodyTooSlow, InternalError
from router.core.wire import headers as http
from router.net.client.client_connection import ClientConnection
from router.net.client.client_request import ClientRequest

__all__ = ["App", "AsgiCall", "LazyApp", "Message", "Receive", "Send"]

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 64 << 10
"""Largest body in bytes: no operation takes one, but some clients send one."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class LazyApp:
    """An ASGI application that `create` makes on first use. That takes 10 ms, so a server prepares
    it before it accepts connections; commands and tests that serve nothing go without."""

    def __init__(self, create: Callable[[], App]) -> None:
        self._create = create

    @cached_property
    def app(self) -> App:
        """The application."""
        return self._create()

    def prepare(self) -> None:
        """Create the application now."""
        _ = self.app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Process a request."""
        await self.app(scope, receive, send)


class AsgiCall:
    """The listener of a client's request, which runs the application in a task when the body is
    complete. The task is in `tasks` while it runs."""

    def __init__(
        self,
        app: App,
        tasks: MutableSet[asyncio.Task[None]],
        client: ClientConnection,
        request: ClientRequest,
        path: str,
        query: bytes,
        root_path: str = "",
    ) -> None:
        self._app = app
        self._tasks = tasks
        self._client = client
        self._request = request
        self._path = path
        self._query = query
        self._root_path = root_path
        self._body: bytes | None = None
        self._is_gone = asyncio.Event()
        self._is_writable = asyncio.Event()
        if not client.write_paused:
            self._is_writable.set()
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        request.listener = self

    # Called by the client's connection.

    def on_body_progress(self, size: int) -> None:
        """Refuse a body that is too large."""
        if size > MAX_BODY_BYTES:
            text = f"The body is larger than {MAX_BODY_BYTES} bytes."
            self._client.fail(self._request, BodyTooLarge(text))

    def on_body_timeout(self) -> None:
        """Refuse a body that takes too long."""
        self._client.fail(self._request, BodyTooSlow("The body did not arrive in time."))

    def on_body_complete(self) -> None:
        """Run the application."""
        self._body = bytes(self._request.take_body())
        task = self._client.loop.create_task(self._run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def on_disconnect(self) -> None:
        """Tell the application, which may continue regardless."""
        self._is_gone.set()
        self._is_writable.set()

    def on_write_paused(self) -> None:
        """Pause the application's writes."""
        self._is_writable.clear()

    def on_write_resumed(self) -> None:
        """Resume the application's writes."""
        self._is_writable.set()

    # Called by the application.

    async def _run(self) -> None:
        try:
            await self._app(self._scope(), self._receive, self._send)
        except Exception as error:
            log.exception("%s failed inside the router", self._path)
            text = f"The router failed: {type(error).__name__}."
            self._client.fail(self._request, InternalError(text))
        else:
            if self._client.active is self._request:
                self._client.fail(self._request, InternalError("The router gave no answer."))

    def _scope(self) -> Message:
        transport, head = self._client.transport, self._request.head
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.0" if head.is_http_1_0 else "1.1",
            "method": head.method.decode("ascii"),
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
            "path": self._root_path + self._path,
            "query_string": self._query,
            "root_path": self._root_path,
            "headers": head.headers,
            # An IPv6 socket address is a 4-tuple.
            "client": tuple(transport.get_extra_info("peername") or ())[:2] or None,
            "server": tuple(transport.get_extra_info("sockname") or ())[:2] or None,
            "state": {},
        }

    async def _receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._is_gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(name.lower(), value) for name, value in message.get("headers", ())]
            self._head = message["status"], headers
            return
        client = self._client
        if not self._is_writable.is_set():
            await self._is_writable.wait()
        if client.active is not self._request:
            return
        data, is_last = message.get("body", b""), not message.get("more_body", False)
        if self._head is not None:
            (status, headers), self._head = self._head, None
            length = http.content_length(headers)
            if length is None and is_last:
                length = len(data)
            block = http.block(http.end_to_end(headers, http.HOP_BY_HOP))
            client.response.start(status, block, length)
        client.response.write(data)
        if is_last:
            client.end_response()
