"""A client's HTTP/1.1 connection: requests in, one response after the other out.

uvicorn's server creates one for each accepted socket, in place of its own protocol. Requests are
delivered to listeners by plain calls: ASGI needs a task for each request, and a dictionary and a
task switch for each chunk.

A client that half-closes counts as one that left, as uvicorn does: no client of an LLM API
half-closes, and one that is gone looks the same.
"""

import asyncio
from typing import Any, Final, Protocol

import httptools

from router.core.errors import BadRequest, BodyTooSlow, HeadersTooLarge, RouterError
from router.core.limits.byte_budget import ByteBudget
from router.net.client.client_request import ClientRequest, RequestHead
from router.net.client.known_heads import NOTHING, KnownHeads, split
from router.net.client.request_parser import MAX_HEAD_BYTES, MAX_HEADERS, RequestParser
from router.net.client.response_writer import STATUS_LINES, ResponseWriter
from router.net.limits.read_limiter import LARGE_READ_BYTES, ReadLimiter

__all__ = ["ClientConnection", "Handler"]

HEAD_SECONDS = 20.0
"""Time-out in seconds from the first byte of a request to the end of its headers, and from the
connection's start to its first request: a slower client only occupies a socket."""

LINGER_SECONDS: Final = 2.0
"""How long a refused client that is still sending may take to read the answer: if a socket is
closed with unread input, the kernel resets it and the answer may be lost."""

MAX_PIPELINED: Final = 8
"""Pipelined requests that may wait while the connection is still read from, which is how a
disconnect is noticed."""

MAX_WAITING: Final = 512
"""Most requests that may wait on a connection, since one read can contain many. If a client sends
more, these are answered and the connection is closed. A read of 256 kB could hold thousands of tiny
requests, parsed in one turn of the event loop and ten times as large in memory."""

UNREAD_BYTES: Final = 64 << 10
"""Bytes of bodies of waiting requests, beyond which nothing is read until it is their turn."""

FEW_PIECES: Final = 64
"""Chunks of a body in one read, beyond which each counts toward the read limit."""

FREE_UNREAD_BYTES: Final = 512 << 10
"""Unread bytes of an answer that are not charged to the answer budget. A stream has at most 320 KiB
(the mark at which reading from the engine is paused, and one read); an answer that is sent as a
whole has up to 32 MiB."""

NEVER: Final = float("inf")

# What a connection waits for, once `deadline` is set.
HEAD: Final = 0
BODY: Final = 1
NEXT_REQUEST: Final = 2
LINGER: Final = 3


class Handler(Protocol):
    """Receives requests and defines the client time-outs, in seconds."""

    known_heads: KnownHeads[RequestHead]
    """Shared by all connections."""

    read_limiter: ReadLimiter
    """Shared by all connections."""

    answer_budget: ByteBudget
    """Budget for answers that clients have not read; shared by all connections."""

    @property
    def body_seconds(self) -> float:
        """From a request's head to the end of its body."""

    @property
    def stall_seconds(self) -> float:
        """How long a client may leave its answer unread."""

    @property
    def keep_alive_seconds(self) -> float:
        """From the end of a response to the next request."""

    def on_request(self, connection: "ClientConnection", request: ClientRequest) -> None:
        """A request's head was received. Sets its listener, unless it is answered at once."""


class ClientConnection:
    """One connection; an `asyncio.Protocol` in all but name.

    It is one of `connections`, which the server's connections share, while it lasts.

    `active` is the request that is being answered. `deadline` is when what it waits for is late,
    on the event loop's clock: one sweep looks at all connections, so no request needs a timer.
    """

    __slots__ = (
        "_active_is_read",
        "_arrived",
        "_awaited",
        "_closes_next",
        "_connections",
        "_counted",
        "_discards_input",
        "_handler",
        "_has_turn",
        "_known_heads",
        "_last",
        "_parser",
        "_pieces",
        "_read_limiter",
        "_unread",
        "_waiting",
        "_waits_for_turn",
        "active",
        "deadline",
        "loop",
        "read_paused",
        "response",
        "transport",
        "write_paused",
    )

    def __init__(
        self, handler: Handler, connections: set[Any], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.loop = loop
        self._handler = handler
        self._known_heads = handler.known_heads
        self._read_limiter = handler.read_limiter
        self._connections = connections
        self._parser = RequestParser(self)
        self.transport: asyncio.Transport
        self.response = ResponseWriter()
        self.active: ClientRequest | None = None
        self._active_is_read = False
        """Whether the active request's listener knows that the body is complete."""
        self._last: ClientRequest | None = None
        """The request that came last, while it is not answered."""
        self._arrived: ClientRequest | None = None
        """A request whose head came in this read, and whose turn it is."""
        self._waiting: list[ClientRequest] | None = None
        """Those behind the active one; hardly any connection ever has one."""
        self.read_paused = self.write_paused = False
        self._waits_for_turn = self._has_turn = False
        self.deadline = NEVER
        self._awaited = HEAD
        self._counted = 0
        """Bytes that the client has not read, as far as they count in the budget of answers."""
        self._unread = 0
        """Bytes that were left for the client to read when the deadline was set."""
        self._pieces = 0
        """Pieces of body in the read that is being parsed."""
        self._discards_input = False
        self._closes_next = False
        """Whether the next response is to be the last."""

    # What the event loop calls.

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Wait for the first request."""
        self.transport = self.response.transport = transport
        self._connections.add(self)
        self._await(HEAD, HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Take a request whose head is known, or else parse."""
        if len(data) > LARGE_READ_BYTES and not self._may_take(data):
            return  # what is refused and discarded waits too
        if self._discards_input:
            return
        key, body = NOTHING
        # The parser is between two requests, and the client reads.
        if self._last is None and not self._parser.in_head and not self.write_paused:
            key, body = split(data)
            head = self._known_heads.find(key)
            if head is not None:
                self._last = request = ClientRequest(head, body)
                self._begin(request)
                return
        arrived = self._parse(data)
        if body and arrived is not None and arrived.size == len(body) and arrived.head.is_accepted:
            self._known_heads.add(key, arrived.head)

    def eof_received(self) -> None:
        """Close. With something left to be sent that takes until the client has read it."""
        if self.transport.get_write_buffer_size():
            self._tell_of_end()
            self._await_reading()

    def connection_lost(self, _: Exception | None) -> None:
        """The client disconnected: stop all work for it."""
        self._connections.discard(self)
        self._parser.close()
        self._count_unread(0)
        self._arrived = self._last = self._waiting = None
        self._tell_of_end()

    def pause_writing(self) -> None:
        """The client reads slower than its engine writes."""
        self.write_paused = True
        self._await_reading()
        self._count_unread(self._unread)
        if self.active is not None and self.active.listener is not None:
            self.active.listener.on_write_paused()

    def resume_writing(self) -> None:
        """The client caught up."""
        self.write_paused = False
        self._count_unread(0)
        self.deadline = NEVER
        active = self.active
        if active is None:
            if self._waiting and not self.transport.is_closing():
                self._begin(self._waiting.pop(0))
            else:
                self._await_request()
            return
        if not active.is_complete:
            self._await(BODY, self._handler.body_seconds)
        if active.listener is not None:
            active.listener.on_write_resumed()

    # What the limiter of reads calls.

    def wait_for_turn(self) -> None:
        """Read no more for now."""
        self._waits_for_turn = True
        if not self.read_paused and not self.transport.is_closing():
            self.transport.pause_reading()

    def read_on(self, data: bytes) -> None:
        """Take what was read, and read on, unless something else forbids it or the connection is
        closed."""
        self._waits_for_turn = False
        if self.transport.is_closing():
            return
        self._has_turn = True
        self.data_received(data)
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _may_take(self, data: bytes) -> bool:
        """Whether a large read may be parsed now. If not, it comes back by `read_on`."""
        has_turn, self._has_turn = self._has_turn, False
        return has_turn or self._read_limiter.may_take(data, self)

    # What the server calls.

    def shutdown(self) -> None:
        """Answer what has come, then close."""
        if self._last is None:
            self._close()
        else:
            self._last.keep_alive = False
            if self._last is self.active:
                self.response.closes = True

    def drain(self) -> None:
        """Answer once more, and say that the connection ends with that: a client may send its next
        request at any moment, and must not find the connection closed."""
        self._closes_next = True
        if self.active is not None and not self.response.is_started:
            self.response.closes = True

    def on_deadline(self) -> None:
        """What it waits for is late."""
        self.deadline = NEVER
        if self.write_paused or self.transport.is_closing():
            if self.transport.get_write_buffer_size() < self._unread:  # it reads, if slowly
                self._await_reading()
            else:
                self.transport.abort()
        elif self._awaited == HEAD and self._parser.in_head:
            self._refuse(BodyTooSlow(f"The head did not arrive within {HEAD_SECONDS:g} s."))
        elif self._awaited == BODY and self.active is not None and self.active.listener is not None:
            self.active.listener.on_body_timeout()
        else:
            self._close()

    # What the parser calls.

    @property
    def is_idle(self) -> bool:
        """Whether no request is there that is not answered."""
        return self._last is None

    def on_head(self, head: RequestHead) -> None:
        """It is the request's turn, or it waits for those before it, and until their answers are
        read."""
        request = ClientRequest(head)
        if self._last is None and not self.write_paused:
            self._arrived = request
        else:
            self._wait_its_turn(request)
        self._last = request

    def on_body(self, body: bytes) -> None:
        """Keep a piece of body, unless its request has been answered without it."""
        self._pieces += 1
        request = self._last
        if request is not None:
            request.add(body)
            if self._waiting and self._has_backlog():
                self._pause_reading()

    def on_message_complete(self) -> None:
        """The body is whole."""
        if self._last is not None:
            self._last.is_complete = True

    # What a listener calls.

    def end_response(self) -> None:
        """End the response, and go on with the next request."""
        request = self.active
        if request is None:
            return
        self.response.end()
        self.active = request.listener = None
        if self._last is request:
            self._last = None
        if not request.is_complete:
            self._hang_up()
        elif self.response.closes:
            self._close()
        elif not self.transport.is_closing():
            self._go_on()

    def fail(self, request: ClientRequest, error: RouterError, block: bytes = b"") -> None:
        """End the response with an error, as well as that is still possible.

        Before the head: a response of its own, with `block` as further header lines. In an event
        stream: an error frame. In any other body: a broken connection.
        """
        if self.active is not request:
            return
        response = self.response
        if not response.is_started:
            if not request.is_complete:  # the rest of it is not worth reading
                response.closes = True
            body = error.body()
            block += error.header_lines() + b"content-type: application/json\r\n"
            response.start(error.status, block, len(body))
            response.write(body)
            self.end_response()
        elif response.write_error_frame(error):
            self.end_response()
        else:  # a client cannot take this for a complete body
            self.active = request.listener = None
            self.transport.abort()

    # From one request to the next.

    def _begin(self, request: ClientRequest) -> None:
        """It is its turn: nothing is answered before it on this connection."""
        if self.transport.is_closing() or self._last is None:  # it was refused in the meantime
            return
        self.active = request
        self._active_is_read = False
        if not self.write_paused:  # the client has done its part
            self.deadline = NEVER
        if self.read_paused:
            self._resume_reading()
        head = request.head
        self.response.begin(
            head.method,
            is_http_1_0=head.is_http_1_0,
            closes=self._closes_next or not request.keep_alive,
        )
        self._handler.on_request(self, request)
        self._tell_of_body(request)

    def _tell_of_body(self, request: ClientRequest) -> None:
        listener = request.listener
        if listener is None:  # it was answered by its head
            return
        if request.is_complete:
            self._active_is_read = True
            if not self.write_paused:  # the client has done its part
                self.deadline = NEVER
            listener.on_body_complete()
            return
        listener.on_body_progress(request.size)
        if self.active is request and self.deadline == NEVER:
            self._await(BODY, self._handler.body_seconds)
            if request.head.expects_continue:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _wait_its_turn(self, request: ClientRequest) -> None:
        waiting = self._waiting = self._waiting or []
        if len(waiting) >= MAX_WAITING:
            raise ValueError("too many requests at once")  # becomes a parser error
        waiting.append(request)
        if self._has_backlog():
            self._pause_reading()

    def _has_backlog(self) -> bool:
        """Whether so much waits behind the active request that no more is to be read."""
        waiting = self._waiting
        return waiting is not None and (
            len(waiting) > MAX_PIPELINED or sum(each.size for each in waiting) > UNREAD_BYTES
        )

    def _go_on(self) -> None:
        """Begin the next request, if it has come: not before the client has read the answers up to
        it, or they would be kept without a limit."""
        if self.read_paused:
            self._resume_reading()
        if self.write_paused:  # see `resume_writing`
            return
        if self._waiting:
            self.loop.call_soon(self._begin, self._waiting.pop(0))
        elif self._parser.in_head:
            self._await_request()
        else:
            self._await(NEXT_REQUEST, self._handler.keep_alive_seconds)

    def _await_request(self) -> None:
        if self.transport.is_closing():
            self._await_reading()
        elif self._parser.in_head:
            self._await(HEAD, HEAD_SECONDS)
        else:
            self._await(NEXT_REQUEST, self._handler.keep_alive_seconds)

    def _await(self, what: int, seconds: float) -> None:
        self._awaited = what
        self.deadline = self.loop.time() + seconds

    def _await_reading(self) -> None:
        """The client must go on reading what it is sent."""
        self._unread = self.transport.get_write_buffer_size()
        self._await(LINGER, self._handler.stall_seconds)

    def _count_unread(self, size: int) -> None:
        """The client has so many bytes to read."""
        counted = max(0, size - FREE_UNREAD_BYTES)
        if counted != self._counted:
            self._handler.answer_budget.add(counted - self._counted)
            self._counted = counted

    def _tell_of_end(self) -> None:
        request, self.active = self.active, None
        if request is not None and request.listener is not None:
            listener, request.listener = request.listener, None
            listener.on_disconnect()

    # Reading.

    def _parse(self, data: bytes) -> ClientRequest | None:
        """Begin a request that came, which is returned, and tell the listener of the active one
        what there is of its body."""
        parser = self._parser
        self._pieces = 0
        try:
            parser.feed(data)
        except httptools.HttpParserError:
            self._refuse_malformed()
        if self._pieces > FEW_PIECES and len(data) > LARGE_READ_BYTES:
            self._read_limiter.took_pieces(self._pieces)
        arrived = self._arrived
        if arrived is not None:
            self._arrived = None
            self._begin(arrived)
        elif self.active is not None:
            if not self._active_is_read:
                self._tell_of_body(self.active)
        elif parser.in_head and self._awaited == NEXT_REQUEST:
            self._await(HEAD, HEAD_SECONDS)
        if parser.unparsed > MAX_HEAD_BYTES and not self._discards_input:
            # A line without an end: the parser buffers all of it.
            self._refuse(HeadersTooLarge(f"A line is longer than {MAX_HEAD_BYTES} bytes."))
        return arrived

    def _pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            if not self._waits_for_turn:
                self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._has_backlog():
            self.read_paused = False
            if not self._waits_for_turn:
                self.transport.resume_reading()

    # Refusing and closing.

    def _refuse_malformed(self) -> None:
        if self._parser.head_bytes > MAX_HEAD_BYTES:
            text = f"The request's head is larger than {MAX_HEAD_BYTES} bytes."
            self._refuse(HeadersTooLarge(text))
        elif self._parser.has_too_many_headers:
            self._refuse(HeadersTooLarge(f"The request has more than {MAX_HEADERS} headers."))
        else:
            self._refuse(BadRequest("This is not a valid HTTP request."))

    def _refuse(self, error: RouterError) -> None:
        """Read no further: answer, unless an answer is under way, and close."""
        self._discards_input = True
        last = self._last
        if last is not None and last.is_complete:  # it was pipelined behind a valid request
            self.shutdown()
        elif last is not None and (self._waiting or (self.active and self.response.is_started)):
            self.transport.abort()  # an error response would become part of the answer under way
        else:
            self._arrived = self._last = None
            self._tell_of_end()
            body = error.body()
            self.transport.write(
                b"%bcontent-type: application/json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%b" % (STATUS_LINES[error.status], len(body), body)
            )
            self._hang_up()

    def _hang_up(self) -> None:
        """Say that the response was the last, and take what the client still sends for a while."""
        self._discards_input = True
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        self._await(LINGER, LINGER_SECONDS)

    def _close(self) -> None:
        """Close when the client has read all, or when it has not read for too long. With TLS, that
        lasts until the client has closed its half too, or until it has not for too long."""
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._await_reading()
        else:
            self._await(LINGER, LINGER_SECONDS)
