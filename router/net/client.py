"""The client's side: uvicorn's HTTP protocol, which hands its transport to the relay.

ASGI's `send` costs a task switch and a dictionary per chunk. A `ClientReply` writes to the
transport directly instead, and keeps uvicorn's own bookkeeping (keep-alive, pipelining, graceful
shutdown) true by setting the fields that `send` would set. That interface is not public: the
range of uvicorn versions is bounded in pyproject.toml and tests/net runs against it.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from router.core.errors import BadRequest, HeadersTooLarge, RouterError
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


LINGER_SECONDS = 2.0
"""How long a client that is still sending its body gets to read why it was refused."""


class ClientProtocol(HttpToolsProtocol):
    """uvicorn's protocol plus: direct replies, disconnects as cancellation, limits on the head."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._replies: set[ClientReply] = set()
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = False

    # The event loop's side.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Arm the timer for the first request."""
        super().connection_made(transport)
        self._arm_head_timer()

    def data_received(self, data: bytes) -> None:
        """Parse, and time a head that does not come whole."""
        super().data_received(data)
        if self._in_head and self._head_timer is None:
            self._arm_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left: whatever works for it stops now."""
        super().connection_lost(exc)
        self._disarm_head_timer()
        for reply in list(self._replies):
            reply.left()

    def pause_writing(self) -> None:
        """The client reads slower than its engine writes."""
        super().pause_writing()
        for reply in self._replies:
            reply.pause()

    def resume_writing(self) -> None:
        """The client caught up."""
        super().resume_writing()
        for reply in self._replies:
            reply.resume()

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
        """Count a header."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Give the request its reply before its task starts."""
        self._in_head = False
        self._disarm_head_timer()
        super().on_headers_complete()
        self.scope["extensions"] = {REPLY: ClientReply(self, self.cycle)}  # type: ignore[dict-item]

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets its answer in the same shape as every other error."""
        error: RouterError = BadRequest(msg)
        if self._head_bytes > MAX_HEAD_BYTES:
            error = HeadersTooLarge(f"The request's head is larger than {MAX_HEAD_BYTES} bytes.")
        body = error.body()
        self.transport.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (STATUS_LINE[error.status], len(body), body)
        )
        self.transport.close()

    def attach(self, reply: "ClientReply") -> None:
        """`reply` wants to hear of disconnects and of pressure."""
        self._replies.add(reply)

    def detach(self, reply: "ClientReply") -> None:
        """`reply` is done."""
        self._replies.discard(reply)

    def _count(self, size: int) -> None:
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
        self.transport.close()


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
        "_stall_timer",
        "_stream_of",
        "_task",
        "_transport",
        "_upstream",
        "is_gone",
        "is_started",
        "stall_seconds",
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
        self._stall_timer: asyncio.TimerHandle | None = None
        self.stall_seconds = 300.0
        self.is_gone = cycle.disconnected
        self.is_started = False

    # The request's task.

    def attach(self, task: asyncio.Task[Any]) -> None:
        """Tie the reply to the task that makes it."""
        self._task = task
        self._protocol.attach(self)
        if self._protocol.flow.write_paused:
            self.pause()

    def detach(self) -> None:
        """The task is done with the reply."""
        self._task = None
        self.unbind()
        self._disarm()
        self._protocol.detach(self)

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
        """The client is gone."""
        self.is_gone = True
        if self._task is not None and not self._cycle.response_complete:
            self._task.cancel()

    def pause(self) -> None:
        """The client's buffers are full."""
        self._paused = True
        self._stall_timer = self._protocol.loop.call_later(self.stall_seconds, self.abort)
        if self._upstream is not None:
            self._upstream.pause_reading()

    def resume(self) -> None:
        """The client reads again."""
        self._paused = False
        self._disarm()
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
        self.is_started = self._cycle.response_started = True
        self._stream_of = stream_of
        self._cycle.waiting_for_100_continue = False
        self._chunked = length is None and self._cycle.scope["http_version"] != "1.0"
        lines = [STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status, block]
        if length is not None:
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
        self._transport.write(data)

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
        if not cycle.keep_alive and not cycle.more_body:
            self._transport.close()
        elif cycle.more_body:
            # Closing with unread bytes makes the kernel drop the answer: let the client read it.
            self._protocol.loop.call_later(LINGER_SECONDS, self._transport.close)
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
            self.abort()

    def abort(self) -> None:
        """Break the connection off: the only honest end of a body that cannot be completed."""
        self._transport.abort()

    def _disarm(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
