"""Takes requests from client connections: inference is served here, everything else by FastAPI."""

import asyncio
from collections.abc import MutableSet
from typing import Any, Final
from urllib.parse import unquote

import httptools

from router.core.errors import BadRequest, Unauthorized
from router.core.limits.api_keys import check_key
from router.core.routes import ROUTES
from router.core.wire.headers import CORS
from router.net.client.client_connection import ClientConnection
from router.net.client.client_request import ClientRequest, RequestHead
from router.net.known_heads import KnownHeads
from router.net.request.network import Active, Limits, Network
from router.net.request.served_request import ServedRequest
from router.net.watched_files import KeyFile
from router.web.asgi_call import App, AsgiCall

__all__ = ["RequestHandler", "has_key", "target_of"]

MAX_HEADS: Final = 512
"""Most request heads that are cached; they take a few megabytes."""

ROUTES_BY_TARGET: Final = {path.encode(): route for path, route in ROUTES.items()}


class RequestHandler:
    """The only entrance for requests. `operations` is the ASGI application for everything other
    than inference; `tasks` is the set of the tasks that run it. Call `configure` before the first
    request."""

    body_seconds: float
    stall_seconds: float
    keep_alive_seconds: float

    def __init__(self, network: Network, operations: App, path_prefix: str) -> None:
        self.network = network
        self._operations = operations
        self.path_prefix = path_prefix.encode()
        self._root_path = path_prefix
        self.known_heads: KnownHeads[RequestHead] = KnownHeads(MAX_HEADS)
        self.read_limiter = network.read_limiter
        self.answer_budget = network.answer_budget
        self.tasks: MutableSet[asyncio.Task[None]] = set()
        self._cors: CORS | None = None
        self._is_closed = False

    def configure(self, limits: Limits, cors: CORS | None) -> None:
        """Set the limits, and which web pages may call the API; None: none."""
        self._cors = cors
        self.body_seconds = limits.body_seconds
        self.stall_seconds = limits.stall_seconds
        self.keep_alive_seconds = limits.keep_alive_seconds
        self.known_heads.clear()  # they were validated with the old limits

    @property
    def active(self) -> set[Active]:
        """Inference requests in progress."""
        return self.network.active

    def on_request(self, connection: ClientConnection, request: ClientRequest) -> None:
        """Start a request for which the head has arrived."""
        if self._cors is not None and self._is_preflight(self._cors, connection, request):
            return
        route, query = ROUTES_BY_TARGET.get(request.head.target), b""
        if route is None:
            target = target_of(connection, request)
            if target is None:
                return
            path, query = target
            route = ROUTES.get(path)
            if route is None:
                key_file = self.network.api_keys if path.startswith("/v1/") else None
                if has_key(connection, request, key_file):
                    self._call(connection, request, path, query)
                return
        if request.head.method == b"OPTIONS":
            self._call(connection, request, route.path, query)
            return
        network = self.network
        served = ServedRequest(network, connection, request, route, query)
        network.active.add(served)
        request.listener = served
        if self._is_closed:
            served.abort()
        else:
            served.on_head()

    def _call(
        self, connection: ClientConnection, request: ClientRequest, path: str, query: bytes
    ) -> None:
        AsgiCall(self._operations, self.tasks, connection, request, path, query, self._root_path)

    def _is_preflight(
        self, cors: CORS, connection: ClientConnection, request: ClientRequest
    ) -> bool:
        """Whether the request is a CORS preflight, which is answered here."""
        head, response = request.head, connection.response
        response.extra = cors.lines(head.fields)
        lines = cors.preflight(head.method, head.fields)
        if lines is None:
            return False
        if not request.is_complete:  # do not read the rest of the body
            response.closes = True
        response.start(204, lines, 0)
        connection.end_response()
        return True

    def abort(self) -> int:
        """End all requests with an error, and start no more. Returns the number of ended
        requests."""
        self._is_closed = True
        active = list(self.network.active)
        for served in active:
            served.abort()
        return len(active)


def target_of(connection: ClientConnection, request: ClientRequest) -> tuple[str, bytes] | None:
    """The decoded path and the query string. None if the target is invalid and the request was
    refused."""
    try:
        return split_target(request.head.target)
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        connection.response.closes = True
        connection.fail(request, BadRequest("This is not a valid HTTP request."))
        return None


def has_key(connection: ClientConnection, request: ClientRequest, key_file: KeyFile | None) -> bool:
    """Whether the request has a valid API key or needs none. If not, it was refused."""
    try:
        if key_file is not None:
            check_key(key_file.keys, request.head.fields)
    except Unauthorized as error:
        connection.fail(request, error)
        return False
    return True


def split_target(target: bytes) -> tuple[str, bytes]:
    """The decoded path and the query string. Raises HttpParserInvalidURLError."""
    url: Any = httptools.parse_url(target)
    if url.path is None:
        raise httptools.HttpParserInvalidURLError("no path")
    path: str = url.path.decode("ascii")
    return unquote(path) if "%" in path else path, url.query or b""
