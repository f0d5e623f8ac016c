"""A client's request as its connection read it, and who is told what becomes of it."""

from collections.abc import Mapping
from typing import Final, Protocol

from router.core.wire.headers import HeaderPairs

__all__ = ["NO_HEAD", "ClientRequest", "RequestHead", "RequestListener"]


SMALL_BYTES: Final = 4096
"""Pieces of a body below this are joined: one may be a single byte, and takes fifty."""


class RequestListener(Protocol):
    """Answers one request. Each method is called by the client's connection."""

    def on_body_progress(self, size: int) -> None:
        """`size` bytes of the body have arrived, and it goes on."""

    def on_body_complete(self) -> None:
        """The whole body has arrived. Called once, if at all."""

    def on_body_timeout(self) -> None:
        """The body was not complete in time."""

    def on_disconnect(self) -> None:
        """The client is gone, or cannot be told anything more. Nothing is called after it."""

    def on_write_paused(self) -> None:
        """The client does not read: its connection's write buffer is full."""

    def on_write_resumed(self) -> None:
        """The client has read; more can be written."""


class RequestHead:
    """A request's head. It does not change: requests with the same one share it.

    `target` is the request target as it was sent, `headers` have lower-case names. `keep_alive`
    says whether the connection may serve another request after this one.
    """

    __slots__ = (
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
        """Headers by name; of those that come twice the last one."""
        self.is_accepted = False
        """Whether an engine may be asked what has this head."""
        self.engine_lines: bytes | None = None
        """The header lines that go on to an engine, once they are known."""

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body."""
        return not self.is_http_1_0 and any(
            n == b"expect" and v.lower() == b"100-continue" for n, v in self.headers
        )


NO_HEAD: Final = RequestHead(b"", b"", [], is_http_1_0=False, keep_alive=False)
"""Of a request whose head is needed no more."""


class ClientRequest:
    """A request's head, and its body as far as it has arrived."""

    __slots__ = ("_parts", "head", "is_complete", "keep_alive", "listener", "size")

    def __init__(self, head: RequestHead, body: bytes | None = None) -> None:
        """With `body` the request is complete."""
        self.head = head
        self.keep_alive = head.keep_alive
        self.is_complete = body is not None
        """Whether the whole body has arrived."""
        self.size = 0 if body is None else len(body)
        """Bytes of body that have arrived."""
        self.listener: RequestListener | None = None
        """Who answers it; None before its turn, and once it is answered."""
        self._parts: list[bytes] = [] if body is None else [body]

    def add(self, data: bytes) -> None:
        """Keep a piece of the body."""
        parts = self._parts
        if parts and len(data) < SMALL_BYTES and len(parts[-1]) < SMALL_BYTES:
            parts[-1] += data
        else:
            parts.append(data)
        self.size += len(data)

    def take_body(self) -> bytes:
        """The body that has arrived; it is kept here no longer."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def take_pieces(self) -> list[bytes]:
        """The same as it arrived; joining megabytes would hold up the event loop."""
        parts, self._parts = self._parts, []
        return parts
