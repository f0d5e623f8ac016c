"""Parses a client connection's input into request heads and body chunks (HTTP/1.1 by httptools).

Requests with a known head bypass it (`known_heads.py`).
"""

from typing import Any, Final, Protocol, cast

import httptools

from router.core.wire.headers import HeaderPairs
from router.net.client.client_request import RequestHead

__all__ = ["MAX_HEADERS", "MAX_HEAD_BYTES", "ParserListener", "RequestParser"]

MAX_HEAD_BYTES: Final = 64 << 10
"""Limit in bytes for the request line and headers together. nginx allows 32 KiB and Node.js 16;
bearer tokens can be long."""

MAX_HEADERS: Final = 256
"""Most headers of a request; Apache and Envoy allow 100. Each costs far more memory and time than
its bytes alone."""

FIELD_BYTES: Final = len(b": \r\n")
"""Bytes of a header line besides its name and value."""

VERSIONS: Final = frozenset({"1.0", "1.1"})
"""Accepted HTTP versions; the parser accepts 0.9 and 2.0 as well."""


class ParserListener(Protocol):
    """Receives what was parsed."""

    @property
    def is_idle(self) -> bool:
        """Whether all requests have been answered."""

    def on_head(self, head: RequestHead) -> None:
        """A request's head is complete."""

    def on_body(self, body: bytes) -> None:
        """A chunk of the latest request's body."""

    def on_message_complete(self) -> None:
        """The latest request's body is complete."""


class RequestParser:
    """The parser of one connection. `path_prefix` is removed from request targets that have it."""

    __slots__ = (
        "_declined",
        "_headers",
        "_is_over",
        "_listener",
        "_parser",
        "_path_prefix",
        "head_bytes",
        "in_head",
        "target",
        "unparsed",
    )

    def __init__(self, listener: ParserListener, path_prefix: bytes = b"") -> None:
        self._listener = listener
        self._path_prefix = path_prefix
        self._parser: Any = None
        """Created when needed: most connections only send known heads."""
        self.target = b""
        """The latest request's target, as far as it has arrived."""
        self._headers: list[tuple[bytes, bytes]] = []
        self.head_bytes = 0
        """Bytes so far of the head that is being parsed."""
        self.unparsed = 0
        """Bytes read since the parser last reported anything."""
        self.in_head = False
        """Whether a head has begun and is not complete."""
        self._declined: bytes | None = None
        """The head of a request that offered an upgrade, with the offer removed."""
        self._is_over = False
        """Whether all further input is ignored: after CONNECT it is not HTTP."""

    def feed(self, data: bytes) -> None:
        """Parse data. Raises HttpParserError if it is not valid HTTP."""
        if self._is_over:
            return
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
            # A client may send its last requests together, each with `Connection: close`.
            self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.unparsed += len(data)
        self._feed(data)

    def close(self) -> None:
        """Stop parsing. Breaks the reference cycle of parser and connection, which would otherwise
        be left to the garbage collector."""
        self._parser = None
        self._is_over = True
        self._listener = cast("ParserListener", None)

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            head, self._declined = self._declined, None
            if head is None:  # it was a CONNECT request
                self._is_over = True
                return
            # Java's HTTP client offers h2c with its requests. The offer is declined by answering as
            # usual. httptools ends such a request after its head, so it is parsed again without the
            # offer.
            rest = data[upgrade.args[0] :]
            self._parser = httptools.HttpRequestParser(self)
            self._feed(head + rest)

    # Called by httptools.

    def on_message_begin(self) -> None:
        """Reset the state for a new request."""
        self.target = b""
        self._headers = []
        self.in_head = True
        self.head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Add to the request target, and count its bytes."""
        self._count(len(url))
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header's bytes, and keep the header unless it is a trailer."""
        self._count(len(name) + len(value) + FIELD_BYTES)
        if self.in_head:
            self._headers.append((name.lower(), value))
            if len(self._headers) > MAX_HEADERS:
                raise ValueError("too many headers")  # httptools turns it into a parser error

    def on_headers_complete(self) -> None:
        """Check the head and pass it to the listener."""
        self.in_head = False
        self.unparsed = 0
        parser = self._parser
        method: bytes = parser.get_method()
        version: str = parser.get_http_version()
        if version not in VERSIONS:
            raise ValueError("another version of HTTP")
        is_tunnel = method == b"CONNECT"
        if parser.should_upgrade() and not is_tunnel:
            self._decline_upgrade(method, version)
            return
        is_old = version == "1.0"
        keep_alive = not (is_old or is_tunnel) and parser.should_keep_alive()
        if self._path_prefix:
            self.target = without_prefix(self.target, self._path_prefix)
        head = RequestHead(
            method, self.target, self._headers, is_http_1_0=is_old, keep_alive=keep_alive
        )
        if len(head.fields) < len(self._headers) and _has_two_types(self._headers):
            raise ValueError("an engine may read the body by the other content type")
        if b"transfer-encoding" in head.fields and (is_old or not _is_chunked(head.headers)):
            raise ValueError("a transfer coding that nobody decodes")
        self._listener.on_head(head)

    def on_body(self, body: bytes) -> None:
        """Pass a chunk of the body to the listener."""
        self.unparsed = 0
        self._listener.on_body(body)

    def on_message_complete(self) -> None:
        """Tell the listener that the body is complete, unless the request will be parsed again."""
        if self._declined is None:
            self._listener.on_message_complete()

    @property
    def has_too_many_headers(self) -> bool:
        """Whether the head was refused for its number of headers."""
        return len(self._headers) > MAX_HEADERS

    def _count(self, size: int) -> None:
        self.unparsed = 0
        self.head_bytes += size
        if self.head_bytes > MAX_HEAD_BYTES:
            raise ValueError("request head too large")  # httptools turns it into a parser error

    def _decline_upgrade(self, method: bytes, version: str) -> None:
        if not self._listener.is_idle:
            raise ValueError("an upgrade behind another request")  # becomes a parser error
        lines = [b"%b %b HTTP/%b" % (method, self.target, version.encode())]
        for name, value in self._headers:
            if name == b"connection":
                tokens = [token.strip().lower() for token in value.split(b",")]
                kept = b", ".join(token for token in tokens if token != b"upgrade")
                lines.append(b"connection: %b" % kept)
            elif name != b"upgrade":
                lines.append(b"%b: %b" % (name, value))
        self._declined = b"\r\n".join(lines) + b"\r\n\r\n"


def without_prefix(target: bytes, prefix: bytes) -> bytes:
    """The target below a path prefix; the target itself if it is not there."""
    rest = target[len(prefix) :]
    if not target.startswith(prefix) or rest[:1] not in (b"", b"/", b"?"):
        return target
    return rest if rest[:1] == b"/" else b"/" + rest


def _has_two_types(headers: HeaderPairs) -> bool:
    return sum(name == b"content-type" for name, _ in headers) > 1


def _is_chunked(headers: HeaderPairs) -> bool:
    """Whether chunked is the only transfer coding. The parser accepts others before it."""
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    return codings == [b"chunked"]
