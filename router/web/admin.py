"""The listener for operators: metrics, endpoints and docs on a port that clients do not reach."""

import asyncio
import hmac
import socket
from collections.abc import Callable, MutableSet, Sequence
from typing import Any, Final

from router.core.errors import Unauthorized
from router.core.limits.api_keys import presented_key
from router.core.limits.budgets import ByteBudget
from router.net.client.client_connection import ClientConnection
from router.net.client.client_request import ClientRequest, RequestHead
from router.net.known_heads import KnownHeads
from router.net.limits.read_limiter import ReadLimiter
from router.net.replicas import PEERS_PATH, Siblings
from router.net.request.network import Limits
from router.net.watched_files import KeyFile, TLSFiles
from router.web.asgi_call import App, AsgiCall
from router.web.dashboard.page import FILES
from router.web.listener import DeadlineSweep, Listener
from router.web.replicas import PeersCall
from router.web.request_handler import has_key, target_of

__all__ = ["AdminListener", "OperationsHandler"]

OPEN_PATHS: Final = frozenset({"/", "/health", "/ready", "/version"}) | FILES
"""Paths that need no key: probes of a platform have none, and browsers load pages before they ask
for one."""

MAX_HEADS: Final = 16
"""Most request heads that are cached: those of scrapers and dashboards."""


class OperationsHandler:
    """Passes all requests to one ASGI application, which `operations` returns; `tasks` is the set
    of the tasks that run it. With a `key_file` requests need one of its keys; with a `peer_key`
    sibling replicas need that one. Without `siblings` there are none."""

    body_seconds: float
    stall_seconds: float
    keep_alive_seconds: float

    def __init__(
        self,
        operations: Callable[[], App],
        limits: Limits,
        read_limiter: ReadLimiter,
        key_file: KeyFile | None = None,
        peer_key: str | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        self._operations = operations
        self._siblings = siblings
        self._peer_key = None if peer_key is None else peer_key.encode()
        self.read_limiter = read_limiter
        self.answer_budget = ByteBudget(0)  # not charged to clients' budget
        self.known_heads: KnownHeads[RequestHead] = KnownHeads(MAX_HEADS)
        self.tasks: MutableSet[asyncio.Task[None]] = set()
        self.configure(limits, key_file)

    def configure(self, limits: Limits, key_file: KeyFile | None) -> None:
        """Set the limits and keys."""
        self.key_file = key_file
        self.body_seconds = limits.body_seconds
        self.stall_seconds = limits.stall_seconds
        self.keep_alive_seconds = limits.keep_alive_seconds

    def on_request(self, connection: ClientConnection, request: ClientRequest) -> None:
        """Start a request for which the head has arrived."""
        target = target_of(connection, request)
        if target is None:
            return
        path, query = target
        if path == PEERS_PATH and request.head.method == b"POST" and self._siblings is not None:
            if self._is_sibling(request.head):
                PeersCall(self._siblings, connection, request)
            else:
                error = Unauthorized("The replicas of a router need its --peer-key.")
                connection.fail(request, error)
        elif has_key(connection, request, None if path in OPEN_PATHS else self.key_file):
            AsgiCall(self._operations(), self.tasks, connection, request, path, query)

    def _is_sibling(self, head: RequestHead) -> bool:
        """Whether a request has the key of sibling replicas, if there is one."""
        if self._peer_key is None:
            return True
        key = presented_key(head.fields)
        return key is not None and hmac.compare_digest(key, self._peer_key)


class AdminListener:
    """Listens for operators until it is closed, which is after the router has drained."""

    def __init__(
        self,
        handler: OperationsHandler,
        sockets: Sequence[socket.socket],
        loop: asyncio.AbstractEventLoop,
        tls: TLSFiles | None = None,
    ) -> None:
        self._connections: set[Any] = set()
        self._handler = handler
        self._listeners = [
            Listener(
                each,
                lambda: ClientConnection(handler, self._connections, loop),
                lambda _: None,  # waits of operators' connections are not counted
                loop,
                tls,
            )
            for each in sockets
        ]
        shortest = min(handler.body_seconds, handler.stall_seconds, handler.keep_alive_seconds)
        self._deadlines = DeadlineSweep(self._connections, shortest, loop)
        for listener in self._listeners:
            listener.start()

    @property
    def socket(self) -> socket.socket:
        """The first listening socket."""
        return self._listeners[0].sockets[0]

    def drain(self) -> None:
        """Stop accepting, because another router listens on these sockets now. Connections end with
        their next response."""
        for listener in self._listeners:
            listener.close()
        for connection in list(self._connections):
            connection.drain()

    async def close(self) -> None:
        """Stop listening and end all requests."""
        self._deadlines.close()
        for listener in self._listeners:
            listener.close()
            await listener.wait_closed()
        for task in list(self._handler.tasks):
            task.cancel()
        for connection in list(self._connections):
            connection.transport.abort()
