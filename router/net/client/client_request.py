"""A client's request as received on its connection, those pipelined behind it, and the interface of
the listener that answers it."""

from collections.abc import Mapping
from typing import Final, Protocol

from router.core.wire.headers import HeaderPairs

__all__ = [
    "MAX_WAITING",
    "NO_HEAD",
    "UNREAD_BYTES",
    "ClientRequest",
    "RequestHead",
    "RequestListener",
    "WaitingRequests",
]

SMALL_BYTES: Final = 4096
"""Chunks of a body below this size in bytes are joined: a chunk of one byte would take fifty bytes
of memory."""


class RequestListener(Protocol):
    """Answers one request. Its methods are called by the client's connection."""

    def on_body_progress(self, size: int) -> None:
        """`size` bytes of the body have arrived so far, and more will follow."""

    def on_body_complete(self) -> None:
        """The whole body has arrived. Called at most once."""

    def on_body_timeout(self) -> None:
        """The body was not complete within the time-out."""

    def on_disconnect(self) -> None:
        """The client has disconnected, or nothing more can be sent to it. No other method is called
        after this."""

    def on_write_paused(self) -> None:
        """The client is not reading: the connection's write buffer is full."""

    def on_write_resumed(self) -> None:
        """The client has read; writing may continue."""


class RequestHead:
    """The head of a request. It is immutable and shared by all requests with the same head.

    `target` is the request target as sent, `headers` have lower-case names, `keep_alive`:
    whether the connection may serve another request after this one.
    """

    __slots__ = (
        "coding",
        "engine_lines",
        "fields",
        "headers",
        "is_accepted",
        "is_http_1_0",
        "keep_alive",
        "method",
        "target",
    )

    def __init__(
        self,
        method: bytes,
        target: bytes,
        headers: HeaderPairs,
        *,
        is_http_1_0: bool,
        keep_alive: bool,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.is_http_1_0 = is_http_1_0
        self.keep_alive = keep_alive
        self.fields: Mapping[bytes, bytes] = dict(headers)
        """Headers by name; the last one where a name is repeated."""
        self.is_accepted = False
        """Whether requests with this head are passed to engines."""
        self.coding = b""
        """The content coding of accepted bodies; empty for plain ones."""
        self.engine_lines: bytes | None = None
        """The header lines that are sent to engines, once they have been computed."""

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body."""
        return not self.is_http_1_0 and any(
            n == b"expect" and v.lower() == b"100-continue" for n, v in self.headers
        )


NO_HEAD: Final = RequestHead(b"", b"", [], is_http_1_0=False, keep_alive=False)
"""Placeholder for a request whose head is no longer needed."""


class ClientRequest:
    """A request: its head, and the part of its body that has arrived."""

    __slots__ = ("_parts", "head", "is_complete", "keep_alive", "listener", "size")

    def __init__(self, head: RequestHead, body: bytes | memoryview | None = None) -> None:
        """A request whose `body` is given is complete."""
        self.head = head
        self.keep_alive = head.keep_alive
        self.is_complete = body is not None
        """Whether the whole body has arrived."""
        self.size = 0 if body is None else len(body)
        """Bytes of body that have arrived."""
        self.listener: RequestListener | None = None
        """The listener that answers it. None before the request begins and after it has been
        answered."""
        self._parts: list[bytes | memoryview] = [] if body is None else [body]

    def add(self, data: bytes) -> None:
        """Add a chunk to the body."""
        parts = self._parts
        if parts and len(data) < SMALL_BYTES and len(parts[-1]) < SMALL_BYTES:
            parts[-1] = b"".join((parts[-1], data))
        else:
            parts.append(data)
        self.size += len(data)

    def take_body(self) -> bytes | memoryview:
        """Return and release the body that has arrived; a view of the read if it was large and came
        with a known head."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def take_pieces(self) -> list[bytes]:
        """Return and release the body as a list of chunks: joining megabytes would block the event
        loop."""
        parts, self._parts = self._parts, []
        return list(map(bytes, parts))


# Pipelining.

MAX_PIPELINED: Final = 8
"""Pipelined requests that may wait while the connection is still read from, which is how a
disconnect is noticed."""

MAX_WAITING: Final = 512
"""Most requests that may wait on a connection, since one read can contain many. If a client sends
more, these are answered and the connection is closed. A read of 256 kB could hold thousands of tiny
requests, parsed in one turn of the event loop and ten times as large in memory."""

UNREAD_BYTES: Final = 64 << 10
"""Bytes of bodies of waiting requests, beyond which nothing is read until it is their turn."""


class WaitingRequests:
    """The queue, oldest first. False if empty, by `__bool__`: mypyc does not ask `__len__`."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: list[ClientRequest] = []

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def is_backlog(self) -> bool:
        """Whether enough requests are queued that reading should pause."""
        return len(self._requests) > MAX_PIPELINED or self.size > UNREAD_BYTES

    @property
    def size(self) -> int:
        """Bytes of their bodies that have arrived."""
        return sum(each.size for each in self._requests)

    def add(self, request: ClientRequest) -> None:
        """Queue a request. Raises ValueError if too many wait."""
        if len(self._requests) >= MAX_WAITING:
            raise ValueError("too many requests at once")
        self._requests.append(request)

    def pop(self) -> ClientRequest:
        """Remove and return the oldest one."""
        return self._requests.pop(0)
