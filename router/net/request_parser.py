"""Parses what a client sends: heads and bodies of one request after the other.

Requests whose head is known go around it (`known_heads.py`).
"""

from typing import Any, Final, Protocol

import httptools

from router.net.client_request import RequestHead

__all__ = ["MAX_HEAD_BYTES", "ParserListener", "RequestParser"]

MAX_HEAD_BYTES: Final = 64 << 10
"""Request line and headers together; nginx and Node.js allow 32 and 16 KiB, tokens are long."""


class ParserListener(Protocol):
    """Takes what was found. `is_idle` says whether every request is answered."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is there that is not answered."""

    def on_head(self, head: RequestHead) -> None:
        """A request's head is whole."""

    def on_body(self, body: bytes) -> None:
        """A piece of the body of the request that came last."""

    def on_message_complete(self) -> None:
        """That body is whole."""


class RequestParser:
    """Of one connection."""

    __slots__ = (
        "_declined",
        "_headers",
        "_listener",
        "_parser",
        "_target",
        "head_bytes",
        "in_head",
        "unparsed",
    )

    def __init__(self, listener: ParserListener) -> None:
        self._listener = listener
        self._parser: Any = None
        """Made when it is needed: most connections bring known heads only."""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self.head_bytes = 0
        """Of the head that is being parsed."""
        self.unparsed = 0
        """Bytes read since something was found in them."""
        self.in_head = False
        """Whether a head has begun and is not whole."""
        self._declined: bytes | None = None
        """The head of a request that offered to upgrade, without the offer."""

    def feed(self, data: bytes) -> None:
        """Parse. Raises HttpParserError for what is not HTTP."""
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
            # A client may send its last requests together, each with `Connection: close`.
            self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.unparsed += len(data)
        self._feed(data)

    def close(self) -> None:
        """It is needed no more: its parser refers to it, and so to everything in it."""
        self._parser = None

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Java's HTTP client offers h2c with its requests. The offer is declined by answering as
            # usual; httptools ends such a request at its head, so it is parsed again without it.
            rest = data[upgrade.args[0] :]
            head, self._declined = self._declined or b"", None
            self._parser = httptools.HttpRequestParser(self)
            self._feed(head + rest)

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._target = b""
        self._headers = []
        self.in_head = True
        self.head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Keep and count the request target."""
        self._count(len(url))
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep and count a header; one that follows the body is counted only."""
        self._count(len(name) + len(value))
        if self.in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self.in_head = False
        self.unparsed = 0
        parser = self._parser
        method: bytes = parser.get_method()
        if parser.should_upgrade() and method != b"CONNECT":
            self._decline_upgrade(method)
            return
        is_old = parser.get_http_version() == "1.0"
        keep_alive = not is_old and parser.should_keep_alive()
        head = RequestHead(
            method, self._target, self._headers, is_http_1_0=is_old, keep_alive=keep_alive
        )
        self._listener.on_head(head)

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of body."""
        self.unparsed = 0
        self._listener.on_body(body)

    def on_message_complete(self) -> None:
        """The body is whole, unless the request is to be parsed again."""
        if self._declined is None:
            self._listener.on_message_complete()

    def _count(self, size: int) -> None:
        self.unparsed = 0
        self.head_bytes += size
        if self.head_bytes > MAX_HEAD_BYTES:
            raise ValueError("request head too large")  # httptools turns it into a parser error

    def _decline_upgrade(self, method: bytes) -> None:
        if not self._listener.is_idle:
            raise ValueError("an upgrade behind another request")  # becomes a parser error
        lines = [b"%b %b HTTP/1.1" % (method, self._target)]
        for name, value in self._headers:
            if name == b"connection":
                tokens = [token.strip().lower() for token in value.split(b",")]
                kept = b", ".join(token for token in tokens if token != b"upgrade")
                lines.append(b"connection: %b" % kept)
            elif name != b"upgrade":
                lines.append(b"%b: %b" % (name, value))
        self._declined = b"\r\n".join(lines) + b"\r\n\r\n"
