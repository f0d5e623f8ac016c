"""The operators' side of the router: what they can read, and the engines that they add and remove;
with `--admin-port` on a listener of their own, which clients do not reach."""

import asyncio
import hmac
import logging
import socket
import time
from collections.abc import MutableSet, Sequence
from typing import Any, Final

from router.core.errors import Unauthorized
from router.core.fleet.status import StatusLog
from router.core.limits.api_keys import presented_key
from router.core.limits.budgets import ByteBudget
from router.core.membership.engine_names import EngineNetworks
from router.net.client.client_connection import ClientConnection
from router.net.client.client_request import ClientRequest, RequestHead
from router.net.known_heads import KnownHeads
from router.net.limits.read_limiter import ReadLimiter
from router.net.replicas import PEERS_PATH, Siblings
from router.net.request.network import Limits
from router.net.watched_files import KeyFile, TLSFiles
from router.settings import Settings
from router.telemetry.metrics import Counts
from router.web.asgi_call import App, AsgiCall, LazyApp
from router.web.client_side import key_file_of, limits_of, listener_tls
from router.web.dashboard.figures import Figures, Readings
from router.web.dashboard.page import FILES, Sampler
from router.web.engines_api import add_engines_api, clock
from router.web.fleet_sync import FleetSync
from router.web.lifecycle import Lifecycle
from router.web.listener import DeadlineSweep, Listener
from router.web.operations import Admin, create_admin_operations
from router.web.replicas import PeersCall, Replicas, add_peers_api
from router.web.request_handler import has_key, target_of
from router.web.routing import Routing

__all__ = ["AdminListener", "OperationsHandler", "OperatorSide"]

log = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset({"/", "/health", "/ready", "/version"}) | FILES
"""Paths that need no key: probes of a platform have none, and browsers load pages before they ask
for one."""

MAX_HEADS: Final = 16
"""Most request heads that are cached: those of scrapers and dashboards."""


class OperatorSide:
    """`handler` takes operators' requests on the admin listener. `for_clients` is what clients can
    read too: everything, unless there is an admin listener."""

    def __init__(
        self,
        settings: Settings,
        routing: Routing,
        sync: FleetSync,
        networks: EngineNetworks,
        replicas: Replicas | None,
        lifecycle: Lifecycle,
        counts: Counts,
        read_limiter: ReadLimiter,
    ) -> None:
        fleet = routing.fleet
        self._routing = routing
        self._fleet = fleet
        self._lifecycle = lifecycle
        self._has_listener = settings.admin_port is not None
        self.tls = listener_tls(
            "--admin-tls-cert-file",
            settings.admin_tls_cert_file,
            settings.admin_tls_key_file,
            settings.admin_tls_client_ca_file,
        )
        """The TLS of the admin listener; None: no TLS."""
        self.status_log = StatusLog(
            *(fleet, fleet.pool, fleet.is_panic, time.monotonic()),
            avoids_slow=fleet.avoids_slow,
            time_of=clock,
        )
        self.readings = Readings(fleet, counts.totals)
        self.sampler = Sampler(self._figures, self._ends_viewers)
        admin = Admin(counts.exposition, self.sampler, settings.otlp_traces_endpoint is not None)
        self.for_clients = None if self._has_listener else admin

        def create() -> App:
            app = create_admin_operations(fleet, lifecycle, admin)
            add_engines_api(app, routing, sync, networks)
            if replicas is not None:
                add_peers_api(app, replicas.siblings)
            return app

        self.operations = LazyApp(create)
        self.handler = OperationsHandler(
            self.operations,
            read_limiter,
            settings.peer_key,
            None if replicas is None else replicas.siblings,
        )
        self.configure(settings, self.read(settings))

    def read(self, settings: Settings) -> KeyFile | None:
        """Read the operators' keys. Raises OSError or ValueError."""
        return key_file_of(settings.admin_key_file, self.handler.key_file)

    def configure(self, settings: Settings, keys: KeyFile | None) -> None:
        """Apply the settings, and the keys that were read for them."""
        self.handler.configure(limits_of(settings), keys)

    def note_changes(self, *, is_logged: bool) -> None:
        """Collect the changes of engines so far, for the live page, and log them if `is_logged`."""
        for notice in self.status_log.notices(time.monotonic()):
            if is_logged:
                log.log(logging.WARNING if notice.is_bad else logging.INFO, "%s", notice.text)

    def _figures(self) -> Figures:
        return Figures(
            self._fleet,
            self.status_log,
            self.readings,
            lambda: self._lifecycle.is_draining,
            self._routing.has_prefill,
        )

    def _ends_viewers(self) -> bool:
        """Whether viewers of the live page are disconnected at a shutdown. On the admin listener,
        which is closed last, they are not; on the public one they would delay the shutdown."""
        return self._lifecycle.is_draining and not self._has_listener


class OperationsHandler:
    """Passes all requests to one ASGI application, `operations`; `tasks` is the set of the tasks
    that run it. With a `peer_key` sibling replicas need that key. Without `siblings` there are
    none. Call `configure` before the first request."""

    body_seconds: float
    stall_seconds: float
    keep_alive_seconds: float

    def __init__(
        self,
        operations: App,
        read_limiter: ReadLimiter,
        peer_key: str | None,
        siblings: Siblings | None,
    ) -> None:
        self._operations = operations
        self._siblings = siblings
        self._peer_key = None if peer_key is None else peer_key.encode()
        self.path_prefix = b""
        self.read_limiter = read_limiter
        self.answer_budget = ByteBudget(0)  # not charged to clients' budget
        self.known_heads: KnownHeads[RequestHead] = KnownHeads(MAX_HEADS)
        self.tasks: MutableSet[asyncio.Task[None]] = set()
        self.key_file: KeyFile | None = None
        """With it, requests need one of its keys."""

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
            AsgiCall(self._operations, self.tasks, connection, request, path, query)

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
        self._deadlines = DeadlineSweep(self._connections, handler, loop)
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
