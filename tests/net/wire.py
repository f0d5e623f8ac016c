"""A client's connection without sockets: its reaction to bytes."""

import asyncio

from router.core.limits.budgets import ByteBudget
from router.net.client.client_connection import ClientConnection
from router.net.client.client_request import ClientRequest, RequestHead
from router.net.known_heads import KnownHeads
from router.net.limits.read_limiter import ReadLimiter

__all__ = ["MANY", "Handler", "Silent", "Wire", "exchange", "settled"]

MANY = 10


class Handler:
    """Accepts all requests, and records them."""

    body_seconds = stall_seconds = keep_alive_seconds = 100.0
    path_prefix = b""

    def __init__(self) -> None:
        self.known_heads: KnownHeads[RequestHead] = KnownHeads(MANY)
        self.read_limiter = ReadLimiter(1 << 40)
        self.answer_budget = ByteBudget(1 << 40)
        self.asked: list[tuple[object, ...]] = []

    def on_request(self, connection: ClientConnection, request: ClientRequest) -> None:
        """Answered at once, but for the body."""
        head = request.head
        head.is_accepted = True
        headers = [pair for pair in head.headers if pair[0] != b"content-length"]
        said = head.method, head.target, headers, head.is_http_1_0, head.keep_alive
        request.listener = Listener(connection, request, self.asked, said)


class Silent:
    """A listener that answers nothing."""

    def on_body_progress(self, size: int) -> None: ...
    def on_body_complete(self) -> None: ...
    def on_body_timeout(self) -> None: ...
    def on_disconnect(self) -> None: ...
    def on_write_paused(self) -> None: ...
    def on_write_resumed(self) -> None: ...


class Listener(Silent):
    """Answers when the body has come."""

    def __init__(
        self,
        connection: ClientConnection,
        request: ClientRequest,
        asked: list[tuple[object, ...]],
        said: tuple[object, ...],
    ) -> None:
        self._connection, self._request = connection, request
        self._asked, self._said = asked, said

    def on_body_complete(self) -> None:
        self._asked.append((*self._said, self._request.take_body()))
        self._connection.response.start(200, b"", 0)
        self._connection.end_response()


class Wire:
    """A transport that records writes until it is closed."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def exchange(handler: Handler, *data: bytes) -> tuple[list[tuple[object, ...]], bytes, bool]:
    """A connection's reaction to these reads: requests, answers, whether it closes."""
    handler.asked.clear()
    wire = Wire()
    connection = ClientConnection(handler, set(), asyncio.get_running_loop())
    connection.connection_made(wire)  # type: ignore[arg-type]
    for read in data:
        connection.data_received(read)
    return list(handler.asked), wire.written, wire.is_closed


async def settled(handler: Handler, *data: bytes) -> tuple[list[tuple[object, ...]], bytes, bool]:
    """The same, with the requests that wait behind one another; one that takes no more and waits
    for its client to read why counts as closed."""
    handler.asked.clear()
    wire = Wire()
    connection = ClientConnection(handler, set(), asyncio.get_running_loop())
    connection.connection_made(wire)  # type: ignore[arg-type]
    for read in data:
        if not wire.is_closed:
            connection.data_received(read)
        while connection._waiting and not wire.is_closed:  # noqa: ASYNC110
            await asyncio.sleep(0)  # a turn of the event loop
        await asyncio.sleep(0)  # the last of them begins
    return list(handler.asked), wire.written, wire.is_closed or connection._discards_input
