"""The client's side: uvicorn's HTTP protocol, which hands its transport to the relay.

ASGI's `send` costs a task switch and a dictionary per chunk. A `ClientReply` writes to the
transport directly instead, and keeps uvicorn's own bookkeeping (keep-alive, pipelining, graceful
shutdown) true by setting the fields that `send` would set. That interface is not public: the
range of uvicorn versions is bounded in pyproject.toml and tests/net runs against it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from router.core.errors import BadRequest, BodyTooSlow, HeadersTooLarge, RouterError
from router.core.sse import error_frame
from router.core.values import RouteKind
from router.net.engine_connection import EngineConnection

__all__ = ["REPLY", "ClientProtocol", "ClientReply"]

REPLY = "pd_router.reply"
"""The key in the ASGI scope's extensions under which a request's `ClientReply` stands."""

MAX_HEAD_BYTES = 64 << 10
"""Request line and headers together; nginx and Node.js allow 32 and 16 KiB, tokens are long."""

HEAD_SECONDS = 20.0
"""From the first byte of a request to the end of its headers, and from the connection's start to
its first request: a client that sends slower only holds a socket."""

STALL_SECONDS = 300.0
"""How long a client may refuse to read, unless the settings say otherwise."""

LINGER_SECONDS = 2.0
"""How long a client that is still sending gets to read why it was refused: closing with bytes
unread makes the kernel take the answer back."""

BODILESS = frozenset({204, 304})

MAX_PIPELINED = 8
"""Requests that wait behind another one on their connection while it is still read from, which is
how the client's end is noticed."""


class ClientProtocol(HttpToolsProtocol):
    """uvicorn's protocol plus: direct replies, disconnects as cancellation, limits on the head."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stall_seconds = STALL_SECONDS
        self._replies: set[ClientReply] = set()
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
        """Arm the timer for the first request."""
        super().connection_made(transport)
        self._arm_head_timer()

    def data_received(self, data: bytes) -> None:
        """Parse, and time a head that does not come whole."""
        if self._is_deaf:
            return
        self._unparsed += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse_what_is_no_http()
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
        for reply in list(self._replies):
            reply.left()

    def pause_writing(self) -> None:
        """The client reads slower than its engine writes."""
        super().pause_writing()
        self._arm_stall_timer()
        for reply in self._replies:
            reply.pause()

    def resume_writing(self) -> None:
        """The client caught up."""
        super().resume_writing()
        self._disarm_stall_timer()
        for reply in self._replies:
            reply.resume()

    def timeout_keep_alive_handler(self) -> None:
        """The client asked nothing more; if it did not even read its answer it is gone."""
        self.close()

    # The parser's side.

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header; one that follows the body counts too, and is not passed on."""
        self._count(len(name) + len(value))
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Give the request its reply before its task starts."""
        self._in_head = False
        self._unparsed = 0
        self._disarm_head_timer()
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._decline()
            return
        super().on_headers_complete()
        self.scope["extensions"] = {REPLY: ClientReply(self, self.cycle)}  # type: ignore[dict-item]
        if 0 < len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """Take a piece of body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The body is whole."""
        if self._declined is None:
            super().on_message_complete()

    # What replies need.

    def attach(self, reply: "ClientReply") -> None:
        """`reply` wants to hear of disconnects and of pressure."""
        self._replies.add(reply)

    def detach(self, reply: "ClientReply") -> None:
        """`reply` is done."""
        self._replies.discard(reply)

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
        return not self._is_deaf and (self._in_head or not self._is_answering)

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
        elif cycle is not None and cycle.response_started:
            self.transport.abort()
        else:
            if cycle is not None:
                cycle.disconnected = True
                cycle.message_event.set()
            for reply in list(self._replies):
                reply.left()
            body = error.body()
            self.transport.write(
                b"%bcontent-type: application/json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%b" % (STATUS_LINE[error.status], len(body), body)
            )
            self.hang_up()

    def _count(self, size: int) -> None:
        self._unparsed = 0
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("request head too large")  # httptools turns it into a parser error

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
        self._stall_timer = self.loop.call_later(self.stall_seconds, self.transport.abort)

    def _disarm_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


class ClientReply:
    """One response, written straight to the client's transport.

    Used by one task, between `attach` and `detach`. If the client leaves in between, that task is
    cancelled and `is_gone` is true.
    """

    __slots__ = (
        "_chunked",
        "_cycle",
        "_head",
        "_paused",
        "_protocol",
        "_stream_of",
        "_task",
        "_transport",
        "_upstream",
        "is_corked",
        "is_gone",
        "is_started",
    )

    def __init__(self, protocol: ClientProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self._transport = protocol.transport
        self._task: asyncio.Task[Any] | None = None
        self._upstream: EngineConnection | None = None
        self._head = b""
        self._chunked = False
        self._stream_of: RouteKind | None = None
        self._paused = False
        self.is_corked = False
        """Whether what is written waits for `finish`, so that the end goes out with it."""
        self.is_gone = False
        self.is_started = False

    # The request's task.

    def attach(self, task: asyncio.Task[Any], stall_seconds: float) -> None:
        """Tie the reply to the task that makes it."""
        self._task = task
        self._protocol.stall_seconds = stall_seconds
        self._protocol.attach(self)
        self._paused = self._protocol.flow.write_paused
        self.is_gone = self._cycle.disconnected

    def detach(self) -> None:
        """The task is done with the reply."""
        self._task = None
        self.unbind()
        self._protocol.detach(self)

    def listen(self) -> None:
        """The whole body was taken: read on, for that is how the client's end is noticed.

        uvicorn stops reading when a body comes faster than it is taken.
        """
        if len(self._protocol.pipeline) <= MAX_PIPELINED:
            self._protocol.flow.resume_reading()

    def bind(self, upstream: EngineConnection) -> None:
        """Let back-pressure reach this engine connection."""
        self._upstream = upstream
        if self._paused:
            upstream.pause_reading()

    def unbind(self) -> None:
        """The engine connection has delivered everything, or is gone."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None and self._paused:
            upstream.resume_reading()

    # What the protocol reports.

    def left(self) -> None:
        """The client is gone, or nothing more can be said to it."""
        self.is_gone = self._cycle.disconnected = True
        if self._task is not None and not self._cycle.response_complete:
            self._task.cancel()

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
    def has_whole_body(self) -> bool:
        """Whether the request's body has arrived to its end."""
        return not self._cycle.more_body

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop; asking asyncio for it is a system call before Python 3.12."""
        return self._protocol.loop

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
        self.is_started = self._cycle.response_started = True
        self._stream_of = stream_of
        self._cycle.waiting_for_100_continue = False
        has_body = status not in BODILESS
        is_old = self._cycle.scope["http_version"] == "1.0"
        self._chunked = length is None and has_body and not is_old
        lines = [STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status, block]
        if not has_body:
            pass  # these end with their head
        elif length is not None:
            lines.append(b"content-length: %d\r\n" % length)
        elif self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            self._cycle.keep_alive = False
        if not self._cycle.keep_alive:
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
        cycle = self._cycle
        cycle.response_complete = True
        cycle.message_event.set()
        if cycle.more_body:
            self._protocol.hang_up()
        elif not cycle.keep_alive:
            self._protocol.close()
        cycle.on_response()

    def fail(self, error: RouterError, block: bytes = b"") -> None:
        """End the response with an error, in the truest way that is still possible.

        Before the head: a response of its own, with `block` as further headers. In an event
        stream: an error frame. In any other body: a broken connection.
        """
        if self.is_gone or self._cycle.response_complete:
            return
        if not self.is_started:
            body = error.body()
            if self._cycle.more_body:  # the rest of the request is not worth reading
                self._cycle.keep_alive = False
            block += b"content-type: application/json\r\n"
            if error.retry_after is not None:
                block += b"retry-after: %d\r\n" % error.retry_after
            self.start(error.status, block, len(body))
            if self._cycle.scope["method"] != "HEAD":
                self.write(body)
            self.finish()
        elif self._stream_of is not None:
            self.write(error_frame(error, self._stream_of))
            self.finish()
        else:
            # The only honest end of a body that cannot be completed.
            self._cycle.response_complete = True
            self._transport.abort()
