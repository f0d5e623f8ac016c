"""Writes one HTTP/1.1 response at a time to a client's transport, and charges its unread bytes."""

import asyncio
from http import HTTPStatus
from typing import Final

from router.core.errors import RouterError
from router.core.limits.budgets import ByteBudget
from router.core.values import RouteKind
from router.core.wire.api_errors import error_event

__all__ = ["FREE_UNREAD_BYTES", "STATUS_LINES", "ResponseWriter", "UnreadAnswer"]

STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}

BODILESS: Final = frozenset({204, 304})


class ResponseWriter:
    """Writes the current response. The head is sent together with the first bytes of the body.

    While `is_corked`, written data is kept until `end`, so that both are sent in one system call.
    """

    __slots__ = (
        "_has_body",
        "_head",
        "_is_chunked",
        "_is_http_1_0",
        "_stream_of",
        "closes",
        "extra",
        "is_corked",
        "is_started",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._head = b""
        self._has_body = True
        self._is_chunked = self._is_http_1_0 = False
        self._stream_of: RouteKind | None = None
        self.is_corked = False
        self.is_started = False
        """Whether the head has been set; it may not have been sent yet."""
        self.closes = False
        """Whether the connection closes after this response."""
        self.extra = b""
        """Header lines that are added to this response, also if it is an error."""

    def begin(self, method: bytes, *, is_http_1_0: bool, closes: bool) -> None:
        """Prepare for the response to a request. A response to HEAD has no body, whatever is
        written."""
        self._head = b""
        self._has_body = method != b"HEAD"
        self._is_http_1_0 = is_http_1_0
        self._is_chunked = self.is_corked = self.is_started = False
        self.closes = closes
        self.extra = b""

    def start(
        self,
        status: int,
        block: bytes,
        length: int | None,
        stream_of: RouteKind | None = None,
    ) -> None:
        """Set the head. `block` is its header lines; without a `length` the body is sent in chunks.

        `stream_of` is the kind of route if the body is an event stream. Nothing is sent before the
        first `write`, `flush` or `end`.
        """
        self.is_started = True
        if self.extra:
            block += self.extra
        self._stream_of = stream_of
        line = STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        if status in BODILESS:
            framing = b""
        elif length is not None:
            framing = b"content-length: %d\r\n" % length
        elif not self._is_http_1_0:
            self._is_chunked = self._has_body
            framing = b"transfer-encoding: chunked\r\n"
        else:  # closing the connection ends the body
            self.closes = True
            framing = b""
        end = b"connection: close\r\n\r\n" if self.closes else b"\r\n"
        self._head = line + block + framing + end

    def write(self, data: bytes) -> None:
        """Send data of the body."""
        if not (data and self._has_body):
            return
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data = self._head + data
            self._head = b""
        if self.is_corked:
            self._head = data
        else:
            self.transport.write(data)

    def chunk_transport(self) -> asyncio.Transport | None:
        """Where already framed chunks can be written. None before the head is sent, and for a body
        that is not chunked."""
        return self.transport if self._is_chunked and not self._head else None

    def flush(self) -> None:
        """Send the head if it has not been sent yet."""
        if self._head:
            self.transport.write(self._head)
            self._head = b""

    def end(self) -> None:
        """End the body."""
        rest = self._head + b"0\r\n\r\n" if self._is_chunked else self._head
        if rest:
            self.transport.write(rest)
            self._head = b""

    def write_error_event(self, error: RouterError, last: bytes = b"") -> bool:
        """End an event stream with an error event. Returns False if the response is not an event
        stream. `last`: the stream's last events, where known."""
        if self._stream_of is None:
            return False
        self.write(error_event(error, self._stream_of, last))
        return True


FREE_UNREAD_BYTES: Final = 512 << 10
"""Unread bytes of an answer that are not charged to the answer budget. A stream has at most 320 KiB
(the mark at which reading from the engine is paused, and one read); an answer that is sent as a
whole has up to 32 MiB."""


class UnreadAnswer:
    """The charge of one connection."""

    __slots__ = ("_budget", "_charged")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._charged = 0

    def charge(self, size: int) -> None:
        """Charge the unread bytes beyond `FREE_UNREAD_BYTES`, in place of the last charge."""
        charged = max(0, size - FREE_UNREAD_BYTES)
        if charged != self._charged:
            self._budget.add(charged - self._charged)
            self._charged = charged
