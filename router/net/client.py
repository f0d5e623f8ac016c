"""The client's side: uvicorn's HTTP protocol, which hands inference requests to the front door.

ASGI costs a task per request and another switch, with a dictionary, per chunk. A request on an
inference route never gets there: its `ClientReply` takes the body, tells its `Visit` when that is
whole, and writes to the transport directly. It stands where uvicorn's own request cycle would, and
has the fields that uvicorn looks at, so keep-alive, pipelining and graceful shutdown stay
uvicorn's. That interface is not public: the range of versions is bounded in pyproject.toml and
tests/net runs against it.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

from router.core.errors import BadRequest, BodyTooSlow, HeadersTooLarge, RouterError
from router.core.routes import ROUTES
from router.core.sse import error_frame
from router.core.values import Route, RouteKind
from router.net.engine_connection import HeaderList

__all__ = ["ClientProtocol", "ClientReply", "Door", "Upstream", "Visit"]

MAX_HEAD_BYTES = 64 << 10
"""Request line and headers together; nginx and Node.js allow 32 and 16 KiB, tokens are long."""

HEAD_SECONDS = 20.0
"""From the first byte of a request to the end of its headers, and from the connection's start to
its first request: a client that sends slower only holds a socket."""

LINGER_SECONDS = 2.0
"""How long a client that is still sending gets to read why it was refused: closing with bytes
unread makes the kernel take the answer back."""

BODILESS = frozenset({204, 304})

MAX_PIPELINED = 8
"""Requests that wait behind another one on their connection while it is still read from, which is
how the client's end is noticed."""


UNREAD_BYTES = 64 << 10
"""Of a body that comes behind another request; then it is not read on until its turn."""


class Visit(Protocol):
    """An inference request, as its client's connection sees it."""

    def whole(self) -> None:
        """The body has come to its end. Called once, if at all."""

    def grown(self, size: int) -> None:
        """The body has grown to `size` bytes and goes on."""

    def late(self) -> None:
        """The body has not come to its end in time."""

    def left(self) -> None:
        """The client is gone, or nothing more can be said to it."""


class Upstream(Protocol):
    """Where a response comes from, as its back-pressure sees it."""

    def pause_reading(self) -> None:
        """The client's buffers are full."""

    def resume_reading(self) -> None:
        """The client reads again."""


class Door(Protocol):
    """Who takes inference requests."""

    @property
    def body_seconds(self) -> float:
        """How long a body may take."""

    @property
    def stall_seconds(self) -> float:
        """How long a client may refuse to read."""

    def begin(self, reply: "ClientReply") -> None:
        """A request's head has come. Gives `reply` its visit, unless it answers at once."""


class ClientProtocol(HttpToolsProtocol):
    """uvicorn's protocol plus: direct replies, disconnects as events, limits on the head."""

    # Beside uvicorn's own attributes they would be too many for Python's compact dictionaries.
    __slots__ = (
        "_arrived",
        "_declined",
        "_head_bytes",
        "_head_timer",
        "_in_head",
        "_is_deaf",
        "_stall_timer",
        "_unparsed",
        "active",
        "door",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.door = cast("Door", self.config.app)
        self.pipeline = cast("Any", _Pipeline())
        self.active: ClientReply | None = None
        """The inference request that is being answered, if one is."""
        self._arrived: ClientReply | None = None
        """One whose head has come in this very read."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._unparsed = 0
        self._in_head = False
        self._is_deaf = False
        self._declined: bytes | None = None
        """The head of a request that offered to upgrade, without the offer."""

    # The event loop's side.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Arm the timer for the first request. Addresses are looked up when uvicorn needs them."""
        self.connections.add(self)
        self.transport = transport
        self.flow = cast("FlowControl", _Flow(transport))
        self._arm_head_timer()

    def data_received(self, data: bytes) -> None:
        """Parse, and time a head that does not come whole."""
        if self._is_deaf:
            return
        self._unparsed += len(data)
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse_what_is_no_http()
        if self._arrived is not None:
            arrived, self._arrived = self._arrived, None
            self._begin(arrived)
        elif self.active is not None:
            self.active.read()
        if self._unparsed > MAX_HEAD_BYTES:  # a line without an end: the parser keeps all of it
            self._refuse(HeadersTooLarge(f"A line is longer than {MAX_HEAD_BYTES} bytes."))
        elif self._awaits_head and self._head_timer is None:
            self._arm_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left: whatever works for it stops now."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._disarm_head_timer()
        self._disarm_stall_timer()
        self._arrived = None
        if self.active is not None:
            self.active.left()

    def pause_writing(self) -> None:
        """The client reads slower than its engine writes."""
        super().pause_writing()
        self._arm_stall_timer()
        if self.active is not None:
            self.active.pause()

    def resume_writing(self) -> None:
        """The client caught up."""
        super().resume_writing()
        self._disarm_stall_timer()
        if self.active is not None:
            self.active.resume()

    def timeout_keep_alive_handler(self) -> None:
        """The client asked nothing more; if it did not even read its answer it is gone."""
        self.close()

    # The parser's side.

    def on_message_begin(self) -> None:
        """A request begins. uvicorn's scope is made when it is known to be wanted."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._in_head = True
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._unparsed = 0
        self._head_bytes += len(url)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("request head too large")  # httptools turns it into a parser error
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header; one that follows the body counts too, and is not passed on."""
        self._unparsed = 0
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("request head too large")  # httptools turns it into a parser error
        if self._in_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Give the request what answers it: its `ClientReply`, or uvicorn's cycle and task."""
        self._in_head = False
        self._unparsed = 0
        self._disarm_head_timer()
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._decline()
            return
        route, query = self._route()
        if route is None or self.parser.get_method() == b"OPTIONS":
            self._hand_to_uvicorn()
        else:
            self._queue(ClientReply(self, route, query))
        if 0 < len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """Take a piece of body."""
        self._unparsed = 0
        cycle: Any = self.cycle
        if isinstance(cycle, ClientReply):
            cycle.take(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The body is whole."""
        if self._declined is None:
            cycle: Any = self.cycle
            if isinstance(cycle, ClientReply):
                cycle.more_body = False
            else:
                super().on_message_complete()

    def close(self) -> None:
        """Close when the client has read all, or has stopped to read."""
        self.transport.close()
        if self.transport.get_write_buffer_size() and self._stall_timer is None:
            self._arm_stall_timer()

    def hang_up(self) -> None:
        """Say that the answer was the last, and take what the client still sends for a while."""
        self._is_deaf = True
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.close)

    # What follows from it.

    def _route(self) -> tuple[Route | None, bytes]:
        """The inference route that is asked for, if it is one, and the query string."""
        route = _BY_URL.get(self.url)  # as nearly always
        if route is not None:
            return route, b""
        url = httptools.parse_url(self.url)  # what is none becomes a parser error
        path = url.path.decode("ascii")
        return ROUTES.get(unquote(path) if "%" in path else path), url.query or b""

    def _hand_to_uvicorn(self) -> None:
        url, headers = self.url, self.headers
        if self.server is None:
            self.server = get_local_addr(self.transport)
            self.client = get_remote_addr(self.transport)
            self.scheme = "https" if is_ssl(self.transport) else "http"
        super().on_message_begin()
        self.url, self.headers = url, headers
        self.scope["headers"] = headers
        self.expect_100_continue = (b"expect", b"100-continue") in headers
        super().on_headers_complete()

    def _queue(self, reply: "ClientReply") -> None:
        is_free = not self._is_answering
        self.cycle = cast("RequestResponseCycle", reply)
        if is_free:
            self._arrived = reply
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Begin with a request whose turn has come."""
        reply: Any = cycle
        if isinstance(reply, ClientReply):
            self.loop.call_soon(self._begin, reply)  # what it waited for is not over to its end
        else:
            super()._start_asgi_task(cycle, app)

    def _begin(self, reply: "ClientReply") -> None:
        if not self.transport.is_closing():
            self.active = reply
            reply.begin(is_paused=self.flow.write_paused)
            self.door.begin(reply)
            reply.read()

    def _feed(self, data: bytes) -> None:
        """Parse. Raises HttpParserError for what is not HTTP."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Java's HTTP client offers h2c with its requests. The offer is declined by answering as
            # usual; httptools ends such a request at its head, so it is parsed anew without it.
            rest = data[upgrade.args[0] :]
            head, self._declined = self._declined or b"", None
            self.parser = httptools.HttpRequestParser(self)
            self._feed(head + rest)

    def _decline(self) -> None:
        if self._is_answering:
            raise ValueError("an upgrade behind another request")  # becomes a parser error
        lines = [b"%b %b HTTP/1.1" % (self.parser.get_method(), self.url)]
        for name, value in self.headers:
            tokens = [token.strip().lower() for token in value.split(b",")]
            if name == b"connection":
                kept = b", ".join(token for token in tokens if token != b"upgrade")
                lines.append(b"connection: %b" % kept)
            elif name != b"upgrade":
                lines.append(b"%b: %b" % (name, value))
        self._declined = b"\r\n".join(lines) + b"\r\n\r\n"

    def _refuse_what_is_no_http(self) -> None:
        if self._head_bytes > MAX_HEAD_BYTES:
            text = f"The request's head is larger than {MAX_HEAD_BYTES} bytes."
            self._refuse(HeadersTooLarge(text))
        else:
            self._refuse(BadRequest("This is not a valid HTTP request."))

    @property
    def _awaits_head(self) -> bool:
        is_idle = self.timeout_keep_alive_task is not None
        return not self._is_deaf and (self._in_head or not (self._is_answering or is_idle))

    @property
    def _is_answering(self) -> bool:
        """Whether a request has come whose answer is not over."""
        cycle = self.cycle  # None before the first request, whatever its annotation says
        return cycle is not None and not cycle.response_complete  # type: ignore[redundant-expr]

    def _refuse(self, error: RouterError) -> None:
        """Read no further: answer, unless an answer is under way, and close."""
        self._is_deaf = True
        cycle = self.cycle if self._is_answering else None
        if cycle is not None and not cycle.more_body:  # it came behind a request that was good
            cycle.keep_alive = False
        elif cycle is not None and (cycle.response_started or self.pipeline):
            self.transport.abort()  # what is said now would stand in an answer
        else:
            self._arrived = None
            if cycle is not None:
                cycle.disconnected = True
                cycle.message_event.set()
            if self.active is not None:
                self.active.left()
            body = error.body()
            self.transport.write(
                b"%bcontent-type: application/json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%b" % (STATUS_LINE[error.status], len(body), body)
            )
            self.hang_up()

    def _arm_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _disarm_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._is_answering:  # it may be us who do not read on
            self._arm_head_timer()
        elif self._in_head:
            self._refuse(BodyTooSlow(f"The head did not arrive within {HEAD_SECONDS:g} s."))
        else:
            self.close()

    def _arm_stall_timer(self) -> None:
        self._stall_timer = self.loop.call_later(self.door.stall_seconds, self.transport.abort)

    def _disarm_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


class _Pipeline(list[tuple[RequestResponseCycle, Any]]):
    """uvicorn's deque of waiting requests, of which there are hardly ever any: an empty deque
    takes ten times an empty list's memory."""

    def appendleft(self, waiting: tuple[RequestResponseCycle, Any]) -> None:
        """Let it wait behind all others."""
        self.insert(0, waiting)


class _Flow:
    """uvicorn's FlowControl, with an event only while somebody waits for it."""

    __slots__ = ("_is_writable", "_transport", "read_paused", "write_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_writable: asyncio.Event | None = None
        self.read_paused = self.write_paused = False

    async def drain(self) -> None:
        """Wait until the client has read."""
        if self.write_paused:
            self._is_writable = self._is_writable or asyncio.Event()
            await self._is_writable.wait()

    def pause_reading(self) -> None:
        """Take no more from the client."""
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The client reads slower than it is written to."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """It has read."""
        self.write_paused = False
        event, self._is_writable = self._is_writable, None
        if event is not None:
            event.set()


_BY_URL = {path.encode(): route for path, route in ROUTES.items()}


class _NoEvent:
    """uvicorn wakes the tasks of its cycles with an event; nobody waits for this one."""

    def set(self) -> None:
        """Nothing."""


_NO_EVENT = _NoEvent()


class ClientReply:
    """One inference request's body and its response, written straight to the client's transport.

    The head of the request is in `route`, `method`, `query` and `headers` (names in lower case).
    """

    __slots__ = (
        "_body_timer",
        "_chunked",
        "_head",
        "_is_old",
        "_is_whole",
        "_parts",
        "_paused",
        "_protocol",
        "_size",
        "_stream_of",
        "_transport",
        "_upstream",
        "disconnected",
        "headers",
        "is_corked",
        "is_started",
        "keep_alive",
        "loop",
        "method",
        "more_body",
        "query",
        "response_complete",
        "route",
        "visit",
    )

    message_event = _NO_EVENT

    def __init__(self, protocol: ClientProtocol, route: Route, query: bytes) -> None:
        parser = protocol.parser
        self._protocol = protocol
        self._transport = protocol.transport
        self.loop = protocol.loop
        """The event loop; asking asyncio for it is a system call before Python 3.12."""
        self.route = route
        self.query = query
        self.method: bytes = parser.get_method()
        self.headers: HeaderList = protocol.headers
        self._is_old = parser.get_http_version() == "1.0"
        self.visit: Visit | None = None
        # What uvicorn looks at.
        self.keep_alive: bool = not self._is_old and parser.should_keep_alive()
        self.more_body = True
        self.disconnected = self.response_complete = False
        # The body.
        self._parts: list[bytes] = []
        self._size = 0
        self._is_whole = False
        self._body_timer: asyncio.TimerHandle | None = None
        # The response.
        self._upstream: Upstream | None = None
        self._head = b""
        self._chunked = False
        self._stream_of: RouteKind | None = None
        self._paused = False
        self.is_corked = False
        """Whether what is written waits for `finish`, so that the end goes out with it."""
        self.is_started = False

    @property
    def response_started(self) -> bool:
        """uvicorn's name for it."""
        return self.is_started

    @property
    def is_gone(self) -> bool:
        """Whether the client has left, or cannot be told anything."""
        return self.disconnected

    # The body.

    def begin(self, *, is_paused: bool) -> None:
        """Its turn has come: nothing is answered before it on this connection."""
        self._paused = is_paused
        if self._size > UNREAD_BYTES:
            self._protocol.flow.resume_reading()

    def take(self, data: bytes) -> None:
        """A piece of body."""
        if self.response_complete:
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size > UNREAD_BYTES and self._protocol.pipeline:
            self._protocol.flow.pause_reading()

    def read(self) -> None:
        """What there was to read has been read: go on, or wait for the rest of the body."""
        visit = self.visit
        if visit is None or self._is_whole:
            return
        if not self.more_body:
            self._is_whole = True
            self._disarm_body_timer()
            visit.whole()
            return
        visit.grown(self._size)
        if self.visit is not None and self._body_timer is None:
            self._body_timer = self.loop.call_later(self._protocol.door.body_seconds, visit.late)
            if any(n == b"expect" and v.lower() == b"100-continue" for n, v in self.headers):
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def body(self) -> bytes:
        """The whole body; it is kept here no longer."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _disarm_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    # Back-pressure.

    def detach(self) -> None:
        """Nothing more will be done with the reply."""
        self.visit = None
        self._parts = []
        self._disarm_body_timer()
        self.unbind()
        if self._protocol.active is self:
            self._protocol.active = None

    def bind(self, upstream: Upstream) -> None:
        """Let back-pressure reach what the response comes from."""
        self._upstream = upstream
        if self._paused:
            upstream.pause_reading()

    def unbind(self) -> None:
        """It has delivered everything, or is gone."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None and self._paused:
            upstream.resume_reading()

    # What the protocol reports.

    def left(self) -> None:
        """The client is gone, or nothing more can be said to it."""
        self.disconnected = True
        if self.visit is not None and not self.response_complete:
            self.visit.left()

    def pause(self) -> None:
        """The client's buffers are full."""
        self._paused = True
        if self._upstream is not None:
            self._upstream.pause_reading()

    def resume(self) -> None:
        """The client reads again."""
        self._paused = False
        if self._upstream is not None:
            self._upstream.resume_reading()

    @property
    def is_paused(self) -> bool:
        """Whether the client is the one to wait for."""
        return self._paused

    # Writing.

    def start(
        self,
        status: int,
        block: bytes,
        length: int | None,
        *,
        stream_of: RouteKind | None = None,
    ) -> None:
        """Begin the response. `block` is its headers as bytes; without `length` it is chunked.

        `stream_of` says that it is an event stream, of which route. Nothing is sent before the
        first `write`, `flush` or `finish`.
        """
        self.is_started = True
        self._stream_of = stream_of
        has_body = status not in BODILESS
        self._chunked = length is None and has_body and not self._is_old
        lines = [STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status, block]
        if not has_body:
            pass  # these end with their head
        elif length is not None:
            lines.append(b"content-length: %d\r\n" % length)
        elif self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            self.keep_alive = False
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    def write(self, data: bytes) -> None:
        """Send a piece of body."""
        if not data:
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data = self._head + data
            self._head = b""
        if self.is_corked:
            self._head = data
        else:
            self._transport.write(data)

    def chunk_writer(self) -> Callable[[bytes], None] | None:
        """Where chunks that have their framing can be written, once the head is sent."""
        return self._transport.write if self._chunked and not self._head else None

    def flush(self) -> None:
        """Send the head if it still waits for a body."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def finish(self) -> None:
        """End the response and let uvicorn go on with the connection."""
        if self._chunked:
            self._transport.write(self._head + b"0\r\n\r\n")
            self._head = b""
        else:
            self.flush()
        self.response_complete = True
        protocol = self._protocol
        if protocol.active is self:
            protocol.active = None
        if self.more_body:
            protocol.hang_up()
        elif not self.keep_alive:
            protocol.close()
        protocol.on_response_complete()

    def fail(self, error: RouterError, block: bytes = b"") -> None:
        """End the response with an error, in the truest way that is still possible.

        Before the head: a response of its own, with `block` as further headers. In an event
        stream: an error frame. In any other body: a broken connection.
        """
        if self.disconnected or self.response_complete:
            return
        if not self.is_started:
            body = error.body()
            if self.more_body:  # the rest of the request is not worth reading
                self.keep_alive = False
            block += b"content-type: application/json\r\n"
            if error.retry_after is not None:
                block += b"retry-after: %d\r\n" % error.retry_after
            self.start(error.status, block, len(body))
            if self.method != b"HEAD":
                self.write(body)
            self.finish()
        elif self._stream_of is not None:
            self.write(error_frame(error, self._stream_of))
            self.finish()
        else:
            # The only honest end of a body that cannot be completed.
            self.response_complete = True
            self._transport.abort()
