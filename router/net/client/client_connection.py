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
from router.core.limits.budgets import ByteBudget
from router.core.wire.api_errors import error_body
from router.net.client.client_request import ClientRequest, RequestHead, WaitingRequests
from router.net.client.request_parser import MAX_HEAD_BYTES, MAX_HEADERS, RequestParser
from router.net.client.response_writer import STATUS_LINES, ResponseWriter, UnreadAnswer
from router.net.known_heads import (
    NOTHING,
    VIEWED_BYTES,
    KnownHeads,
    split,
    split_large,
)
from router.net.limits.read_limiter import LARGE_READ_BYTES, LimitedReader, ReadLimiter

__all__ = ["ClientConnection", "Handler"]

HEAD_SECONDS = 20.0
"""Time-out in seconds from the first byte of a request to the end of its headers, and from the
connection's start to its first request: a slower client only occupies a socket."""

LINGER_SECONDS: Final = 2.0
"""How long a refused client that is still sending may take to read the answer: if a socket is
closed with unread input, the kernel resets it and the answer may be lost."""

FEW_PIECES: Final = 64
"""Chunks of a body in one read, beyond which each counts toward the read limit."""

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

    path_prefix: bytes
    """Removed from request targets that have it; empty: none is."""

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


class ClientConnection(LimitedReader):
    """One client connection.

    While it is open it is in `connections`, the set of the server's open connections.

    `active` is the request that is being answered. `deadline` is the time, on the event loop's
    clock, at which the current wait times out: one sweep checks all connections, so that no request
    needs a timer.
    """

    __slots__ = (
        "_active_is_read",
        "_arrived",
        "_awaited",
        "_closes_next",
        "_connections",
        "_discards_input",
        "_handler",
        "_known_heads",
        "_last",
        "_parser",
        "_pieces",
        "_unread",
        "_unread_answer",
        "_waiting",
        "active",
        "deadline",
        "loop",
        "response",
        "write_paused",
    )

    def __init__(
        self, handler: Handler, connections: set[Any], loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(handler.read_limiter)
        self.loop = loop
        self._handler = handler
        self._known_heads = handler.known_heads
        self._connections = connections
        self._parser = RequestParser(self, handler.path_prefix)
        self.response = ResponseWriter()
        self.active: ClientRequest | None = None
        self._active_is_read = False
        """Whether the active request's listener has been called with the complete body."""
        self._last: ClientRequest | None = None
        """The latest request, until it has been answered."""
        self._arrived: ClientRequest | None = None
        """A request whose head was parsed in the current read and that can begin at once."""
        self._waiting: WaitingRequests | None = None
        """Pipelined requests behind the active one. None on nearly all connections."""
        self.write_paused = False
        self.deadline = NEVER
        self._awaited = HEAD
        self._unread_answer = UnreadAnswer(handler.answer_budget)
        self._unread = 0
        """Size of the write buffer in bytes when the deadline was set."""
        self._pieces = 0
        """Chunks of request bodies in the read that is being parsed."""
        self._discards_input = False
        self._closes_next = False
        """Whether the next response will be the last one on the connection."""

    # Called by the event loop.

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Keep the transport and wait for the first request."""
        self.transport = self.response.transport = transport
        self._connections.add(self)
        self._await(HEAD, HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Look up the request's head among the known ones, or else parse the data."""
        if len(data) > LARGE_READ_BYTES and not self.may_take(data):
            return  # data that will be discarded is limited as well
        if self._discards_input:
            return
        body: bytes | memoryview
        key, body = NOTHING
        # The parser is between two requests, and the client is reading.
        if self._last is None and not self._parser.in_head and not self.write_paused:
            key, body = split(data) if len(data) <= VIEWED_BYTES else split_large(data)
            head = self._known_heads.find(key)
            if head is not None:
                self._last = request = ClientRequest(head, body)
                self._begin(request)
                return
        arrived = self._parse(data)
        if body and arrived is not None and arrived.size == len(body) and arrived.head.is_accepted:
            self._known_heads.add(key, arrived.head)

    def eof_received(self) -> None:
        """Close the connection, once the client has read what is still to be sent."""
        if self.transport.get_write_buffer_size():
            self._report_end()
            self._await_reading()

    def connection_lost(self, _: Exception | None) -> None:
        """Release everything and stop all work for the client."""
        self._connections.discard(self)
        self._parser.close()
        self._unread_answer.charge(0)
        self._arrived = self._last = self._waiting = None
        self._report_end()

    def pause_writing(self) -> None:
        """Pause the answer: the client reads more slowly than its engine writes."""
        self.write_paused = True
        self._await_reading()
        self._unread_answer.charge(self._unread)
        if self.active is not None and self.active.listener is not None:
            self.active.listener.on_write_paused()

    def resume_writing(self) -> None:
        """Resume the answer, or begin the next request."""
        self.write_paused = False
        self._unread_answer.charge(0)
        self.deadline = NEVER
        active = self.active
        if active is None:
            if self._waiting and not self.transport.is_closing():
                self._begin(self._waiting.pop())
            else:
                self._await_request()
            return
        if not active.is_complete:
            self._await(BODY, self._handler.body_seconds)
        if active.listener is not None:
            active.listener.on_write_resumed()

    # Called by the server.

    def shutdown(self) -> None:
        """Answer the requests that have been received, then close."""
        if self._last is None:
            self._close()
        else:
            self._last.keep_alive = False
            if self._last is self.active:
                self.response.closes = True

    def drain(self) -> None:
        """Answer one more request, with `Connection: close`. The client may send its next request
        at any moment, so the connection cannot simply be closed."""
        self._closes_next = True
        if self.active is not None and not self.response.is_started:
            self.response.closes = True

    def on_deadline(self) -> None:
        """Handle the time-out of the current wait: abort, answer with an error, or close."""
        self.deadline = NEVER
        if self.write_paused or self.transport.is_closing():
            if self.transport.get_write_buffer_size() < self._unread:  # it reads, but slowly
                self._await_reading()
            else:
                self.transport.abort()
        elif self._awaited == HEAD and self._parser.in_head:
            self._refuse(BodyTooSlow(f"The head did not arrive within {HEAD_SECONDS:g} s."))
        elif self._awaited == BODY and self.active is not None and self.active.listener is not None:
            self.active.listener.on_body_timeout()
        else:
            self._close()

    # Called by the parser.

    @property
    def is_idle(self) -> bool:
        """Whether all requests have been answered."""
        return self._last is None

    def on_head(self, head: RequestHead) -> None:
        """Queue a request. It begins at once if the earlier ones have been answered and the client
        has read the answers."""
        request = ClientRequest(head)
        if self._last is None and not self.write_paused:
            self._arrived = request
        else:
            self._wait_its_turn(request)
        self._last = request

    def on_body(self, body: bytes) -> None:
        """Add a chunk to the latest request's body, unless it has been answered without it."""
        self._pieces += 1
        request = self._last
        if request is not None:
            request.add(body)
            if self._has_backlog():
                self.pause_reading()

    def on_message_complete(self) -> None:
        """Mark the latest request's body as complete."""
        if self._last is not None:
            self._last.is_complete = True

    # Called by a request's listener.

    def end_response(self) -> None:
        """End the response and begin the next request."""
        request = self.active
        if request is None:
            return
        self.response.end()
        self.active = request.listener = None
        if self._last is request:
            self._last = None
        if not request.is_complete or (self._discards_input and self.response.closes):
            self._hang_up()  # the client may still be sending
        elif self.response.closes:
            self._close()
        elif not self.transport.is_closing():
            self._go_on()

    def fail(
        self,
        request: ClientRequest,
        error: RouterError,
        block: bytes = b"",
        *,
        request_id: str | None = None,
        last: bytes = b"",
    ) -> None:
        """End the response with an error, as far as that is still possible.

        Before the head is sent: an error response, with `block` as additional header lines. In an
        event stream: an error event, behind the events in `last`. In any other body: the connection
        is aborted.
        """
        if self.active is not request:
            return
        response = self.response
        if not response.is_started:
            if not request.is_complete:  # do not read the rest of the body
                response.closes = True
            body = error_body(error, request.head.target, request_id)
            block += error.header_lines() + b"content-type: application/json\r\n"
            response.start(error.status, block, len(body))
            response.write(body)
            self.end_response()
        elif response.write_error_event(error, last):
            self.end_response()
        else:  # so that the client does not take the body for complete
            self.active = request.listener = None
            self.transport.abort()

    # From one request to the next.

    def _begin(self, request: ClientRequest) -> None:
        """Begin a request: all earlier ones on this connection have been answered."""
        if self.transport.is_closing() or self._last is None:  # refused in the meantime
            return
        self.active = request
        self._active_is_read = False
        if not self.write_paused:  # it is no longer the client that is waited for
            self.deadline = NEVER
        if self.read_paused and not self._has_backlog():
            self.resume_reading()
        head = request.head
        self.response.begin(
            head.method,
            is_http_1_0=head.is_http_1_0,
            closes=self._closes_next or not request.keep_alive,
        )
        self._handler.on_request(self, request)
        self._report_body(request)

    def _report_body(self, request: ClientRequest) -> None:
        listener = request.listener
        if listener is None:  # it was answered from its head alone
            return
        if request.is_complete:
            self._active_is_read = True
            if not self.write_paused:  # it is no longer the client that is waited for
                self.deadline = NEVER
            listener.on_body_complete()
            return
        listener.on_body_progress(request.size)
        if self.active is request and self.deadline == NEVER:
            self._await(BODY, self._handler.body_seconds)
            if request.head.expects_continue:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _wait_its_turn(self, request: ClientRequest) -> None:
        if self._waiting is None:
            self._waiting = WaitingRequests()
        self._waiting.add(request)  # httptools turns its ValueError into a parser error
        if self._has_backlog():
            self.pause_reading()

    def _has_backlog(self) -> bool:
        return self._waiting is not None and self._waiting.is_backlog

    def _go_on(self) -> None:
        """Begin the next request, if there is one, once the client has read the previous answers.
        Otherwise unread answers would accumulate without limit."""
        if self.read_paused and not self._has_backlog():
            self.resume_reading()
        if self.write_paused:  # continued by `resume_writing`
            return
        if self._waiting:
            self.loop.call_soon(self._begin, self._waiting.pop())
        elif self._parser.in_head:
            self._await_request()
        else:
            self._await(NEXT_REQUEST, self._handler.keep_alive_seconds)

    def _await_request(self) -> None:
        if self.transport.is_closing():
            self._await_reading()
        elif self._discards_input:  # no request will follow: `_hang_up`
            self._await(LINGER, LINGER_SECONDS)
        elif self._parser.in_head:
            self._await(HEAD, HEAD_SECONDS)
        else:
            self._await(NEXT_REQUEST, self._handler.keep_alive_seconds)

    def _await(self, what: int, seconds: float) -> None:
        self._awaited = what
        self.deadline = self.loop.time() + seconds

    def _await_reading(self) -> None:
        """Time out if the client reads nothing for `stall_seconds`."""
        self._unread = self.transport.get_write_buffer_size()
        self._await(LINGER, self._handler.stall_seconds)

    def _report_end(self) -> None:
        request, self.active = self.active, None
        if request is not None and request.listener is not None:
            listener, request.listener = request.listener, None
            listener.on_disconnect()

    # Parsing.

    def _parse(self, data: bytes) -> ClientRequest | None:
        """Parse a read. Begins and returns a request that arrived in it; otherwise reports to the
        active request's listener how much of the body has arrived."""
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
                self._report_body(self.active)
        elif parser.in_head and self._awaited == NEXT_REQUEST:
            self._await(HEAD, HEAD_SECONDS)
        if parser.unparsed > MAX_HEAD_BYTES and not self._discards_input:
            # An endless line, which the parser would buffer completely.
            self._refuse(HeadersTooLarge(f"A line is longer than {MAX_HEAD_BYTES} bytes."))
        return arrived

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
        """Discard all further input, answer with an error unless another answer is in progress, and
        close."""
        self._discards_input = True
        last = self._last
        if last is not None and last.is_complete:  # the invalid data follows a valid request
            self.shutdown()
        elif last is not None and (self._waiting or (self.active and self.response.is_started)):
            self.transport.abort()  # an error response would become part of the answer in progress
        else:
            self._arrived = self._last = None
            self._report_end()
            body = error_body(error, self._parser.target)
            self.transport.write(
                b"%bcontent-type: application/json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%b" % (STATUS_LINES[error.status], len(body), body)
            )
            self._hang_up()

    def _hang_up(self) -> None:
        """Close the sending side, then discard what the client still sends until LINGER_SECONDS
        after it has read what was sent. A close would reset the connection while the client sends,
        and what it has not read would be lost."""
        self._discards_input = True
        self._waiting = None  # not answered: the last answer says that the connection closes
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        if self.write_paused:  # continued by `resume_writing`
            self._await_reading()
        else:
            self._await(LINGER, LINGER_SECONDS)

    def _close(self) -> None:
        """Close once the client has read everything, or after a time-out. A TLS connection is
        closed once the client has sent its close_notify too, or after LINGER_SECONDS."""
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._await_reading()
        else:
            self._await(LINGER, LINGER_SECONDS)
