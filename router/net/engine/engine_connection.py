"""One keep-alive HTTP/1.1 connection to an engine, as an asyncio protocol.

It parses answers and passes them to a sink: the head, then the body data of each read, then the
end. Retries are decided elsewhere.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

import httptools

from router.core.values import Failure, FailureKind
from router.core.wire.headers import HeaderPairs
from router.net.engine.answer import AnswerHead, Sink
from router.net.known_heads import Key, KnownHeads, split
from router.net.limits.read_limiter import LimitedReader, ReadLimiter
from router.net.limits.read_rotation import ReadRotation

__all__ = ["CountingConnection", "EngineConnection", "Owner"]


MAX_OVERHEAD_BYTES: Final = 64 << 10
"""Most bytes in a row without body data: heads, interim responses, chunk extensions, trailers. The
parser buffers a line until it ends."""

MAX_HEADERS: Final = 256
"""Most headers of an answer."""

BODY_HEADERS: Final = frozenset({b"content-length", b"transfer-encoding"})
"""Headers that an interim response (1xx) must not have."""

MAX_WHOLE_CHUNK: Final = 4096
"""Reads shorter than this, in bytes, are tried as one whole chunk; the event of a token has about
250. Longer ones go through the read limiter, because with 1,024 or more readable connections libuv
reads from them up to 49,000 times before it does anything else."""


def _chunk_heads() -> list[bytes]:
    """A table of chunk-size lines by the length in bytes of a whole framed chunk. Lengths that no
    chunk can have map to a line longer than any read, which never matches. A table, because most
    tokens pass through here."""
    heads = [b"?" * MAX_WHOLE_CHUNK] * MAX_WHOLE_CHUNK
    for size in range(1, MAX_WHOLE_CHUNK):
        head = b"%x\r\n" % size
        length = len(head) + size + len(b"\r\n")
        if length < MAX_WHOLE_CHUNK:
            heads[length] = head
    return heads


CHUNK_HEADS: Final = _chunk_heads()

CHUNKED: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
"""Fed to the parser in place of a known head, so that it expects chunks."""


class Owner(Protocol):
    """The pool that a connection returns to."""

    known_heads: KnownHeads[AnswerHead]
    """Shared by all connections to the engine."""

    read_limiter: ReadLimiter
    """Shared by all connections to engines."""

    def put(self, connection: "EngineConnection") -> None:
        """The connection is idle and can be reused."""

    def forget(self, connection: "EngineConnection") -> None:
        """The connection has been closed."""


class EngineConnection(LimitedReader):
    """Sends one request at a time and passes its answer to the request's sink."""

    __slots__ = (
        "_between_chunks",
        "_broken",
        "_complete",
        "_excess",
        "_has_head",
        "_head",
        "_headers",
        "_is_asked",
        "_keep_alive",
        "_known",
        "_known_heads",
        "_length",
        "_on_made",
        "_overhead",
        "_owner",
        "_parser",
        "_parts",
        "_sink",
        "_status",
        "_until_close",
        "idle_since",
    )

    def __init__(
        self, owner: Owner, on_made: "Callable[[EngineConnection], None] | None" = None
    ) -> None:
        """`on_made` is called when the connection is made and can be written to."""
        super().__init__(owner.read_limiter)
        self._sink: Sink | None = None
        self._between_chunks = False
        self._is_asked = False
        """Whether a request was sent and none of its answer has arrived."""
        self._owner = owner
        self._on_made = on_made
        self._known_heads = owner.known_heads
        self._parser: Any = httptools.HttpResponseParser(self)
        self._headers: HeaderPairs = []
        self._parts: list[bytes] = []
        self._status = 0
        self._head: AnswerHead | None = None
        """A parsed head that has not been passed to the sink yet."""
        self._known: AnswerHead | None = None
        """The known head of an answer of which only the chunks are parsed."""
        self._length: int | None = None
        self._has_head = False
        self._until_close = False
        self._complete = False
        self._keep_alive = False
        self._excess = False
        self._broken: str | None = None
        self._overhead = 0
        """Bytes read in a row without body data."""
        self.idle_since = 0.0
        """When it was returned to the pool, in seconds on the pool's clock."""

    # Called by the run of a request.

    def start(
        self, head: bytes, body: bytes, sink: Sink, lead: tuple[bytes | memoryview, ...] = ()
    ) -> None:
        """Send a request. Its answer, or the failure of a connection that was closed, goes to
        `sink`.

        `lead`: for a large body, the parts that precede `body`.
        """
        self._sink = sink
        self._has_head = self._complete = self._excess = self._between_chunks = False
        self._broken = None
        self._overhead = 0
        self._is_asked = True
        if self.transport.is_closing():
            self._fail(FailureKind.RESET, "closed the connection before it was asked")
        else:
            self.transport.writelines((head, *lead, body) if lead else (head, body))

    def abort(self) -> None:
        """Close immediately, which makes the engine stop working on the request. The sink gets no
        further calls."""
        self._sink = None
        self.transport.abort()

    @property
    def is_answering(self) -> bool:
        """Whether it is between two chunks of an answer. A head alone means no token yet: vLLM
        sends it at once."""
        return self._sink is not None and self._between_chunks

    def is_closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return self.transport.is_closing()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and report that the connection is made."""
        self.transport = transport  # type: ignore[assignment]
        on_made, self._on_made = self._on_made, None
        if on_made is not None:
            on_made(self)

    def data_received(self, data: bytes) -> None:
        """Parse a read and pass on what it contains."""
        sink = self._sink
        if sink is None:  # data without a request
            self.transport.abort()
            return
        # Most reads of a stream are exactly one chunk. If its size is written the way uvicorn does,
        # it bypasses the parser (which is between two chunks) and goes to the client unchanged.
        length = len(data)
        if self._between_chunks and length < MAX_WHOLE_CHUNK:
            head = CHUNK_HEADS[length]
            if data.startswith(head) and sink.on_chunk(data, length - len(head) - 2):
                return
        elif length >= MAX_WHOLE_CHUNK and not self.may_take(data):
            return
        elif self._is_asked:
            self._is_asked = False
            self._take_first(data, sink)
            return
        self._parse(data, sink)

    def eof_received(self) -> None:
        """Nothing to do: the transport closes."""

    def pause_writing(self) -> None:
        """Nothing to do: the transport has been given the whole request."""

    def resume_writing(self) -> None:
        """Nothing to do."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end or the failure of an answer that has not ended."""
        self._owner.forget(self)
        self._parser = None  # breaks a reference cycle, so that no garbage collection is needed
        if self._sink is None:
            return
        if self._has_head and self._until_close and exc is None:
            sink, self._sink = self._sink, None
            sink.on_end()
        elif self._has_head:
            self._fail(FailureKind.BROKEN, "closed the connection in the middle of its answer")
        else:
            self._fail(FailureKind.RESET, "closed the connection before it answered")

    # Called by httptools.

    def on_message_begin(self) -> None:
        """Note whether a second answer follows that no request asked for; it is ignored."""
        self._excess = self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header, unless it is a trailer."""
        if not self._has_head:
            self._headers.append((name.lower(), value))
            if len(self._headers) > MAX_HEADERS:
                raise ValueError("too many headers")  # httptools turns it into a parser error

    def on_headers_complete(self) -> None:
        """Keep the head, unless it is an interim response (100 Continue, 103 Early Hints)."""
        if self._excess:
            return
        self._status = self._parser.get_status_code()
        if self._status < 200:
            if self._status < 100 or not BODY_HEADERS.isdisjoint(dict(self._headers)):
                # The parser would expect a body. httptools turns this into a parser error.
                raise ValueError("an interim answer with a body")
            return
        self._has_head = True
        known, self._known = self._known, None
        if known is not None:
            self._headers = []
            self._head, self._length, self._until_close = known, None, False
            return
        headers, self._headers = self._headers, []
        self._head = head = AnswerHead(self._status, headers)
        length = head.fields.get(b"content-length")
        self._length = None if length is None else int(length)
        self._until_close = length is None and b"transfer-encoding" not in head.fields

    def on_chunk_header(self) -> None:
        """Note that the parser is inside a chunk."""
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        """Note that the parser is between two chunks."""
        self._between_chunks = True

    def on_body(self, body: bytes) -> None:
        """Collect data of the body."""
        if not self._excess:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """Note that the answer is complete."""
        if self._excess:
            return
        if self._status < 200:
            self._headers = []
            return
        self._complete = True
        self._keep_alive = self._parser.should_keep_alive()

    # Parsing.

    def _take_first(self, data: bytes, sink: Sink) -> None:
        """Process the first read of an answer. If it is a complete answer with a known head, the
        parser (which is between two answers) is bypassed."""
        key, body = split(data)
        known = self._known_heads.find(key)
        if known is None:
            self._take_parsed(data, sink, key, body)
            return
        self._has_head = self._complete = True
        sink.on_head(known, len(body), has_body=True)
        if self._sink is sink:
            sink.on_data(body, is_last=True)
        if self._sink is sink:
            self._finish(sink, is_reusable=True)

    def _take_parsed(self, data: bytes, sink: Sink, key: Key, body: bytes) -> None:
        """Process the first read of any other answer. If its head is known and the body is chunked,
        only the chunks are parsed. The head is added to the known ones if some of the body came
        with it, because the body shows how such a head is to be parsed."""
        end = data.find(b"\r\n\r\n") + 4
        block = data[:end]
        self._known = self._known_heads.find((block, b""))
        head = self._parse(data if self._known is None else CHUNKED + data[end:], sink)
        if head is None:
            return
        if body and self._length == len(body) and self._has_ended_well():
            self._known_heads.add(key, head)
        elif self._is_chunked_only(block, head):
            self._known_heads.add((block, b""), head)

    def _is_chunked_only(self, block: bytes, head: AnswerHead) -> bool:
        """Whether `block` is exactly the bytes of `head`, and the body is chunked with nothing else
        that affects parsing. (The parser also accepts other line ends and leading blank lines.)"""
        lines = len(head.headers) + 2
        return (
            block.startswith(b"HTTP/1.1 200 ")
            and block.count(b"\r\n") == block.count(b"\n") == lines
            and head.fields.get(b"transfer-encoding") == b"chunked"
            and self._length is None
            and not self._excess
            and self._broken is None
            and bool(self._parser.should_keep_alive())
        )

    def _parse(self, data: bytes, sink: Sink) -> AnswerHead | None:
        """Parse a read and pass on what it contains. Returns the head if the read contained one and
        body data with it."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._broken = str(error)  # the data before the error may be valid
        self._overhead = 0 if self._parts else self._overhead + len(data)
        if self._overhead > MAX_OVERHEAD_BYTES and self._broken is None:
            self._broken = f"more than {MAX_OVERHEAD_BYTES} bytes without a body"
        head, self._head = self._head, None
        if head is not None:
            sink.on_head(head, self._length, has_body=bool(self._parts))
        if self._parts and self._sink is sink:
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()
            sink.on_data(body, is_last=self._complete)
        else:
            head = None
        if self._sink is not sink:
            return None
        # The read may have ended within a chunk-size line, which the parser then holds.
        self._between_chunks = self._between_chunks and data.endswith(b"\r\n")
        if self._complete:
            self._finish(sink, is_reusable=self._has_ended_well())
        elif self._broken is not None:
            cause = f"it sent what is not HTTP: {self._broken}"
            self._fail(FailureKind.BROKEN, "sent what is not HTTP", cause)
        return head

    def _has_ended_well(self) -> bool:
        """Whether the answer is complete and the connection can be reused."""
        is_clean = not self._excess and self._broken is None
        return self._complete and self._keep_alive and is_clean

    # End of an answer.

    def _finish(self, sink: Sink, *, is_reusable: bool) -> None:
        self._sink = None
        if self.is_set_aside:  # it was read nevertheless, when it had its turn at the read limiter
            self.put_back()
        all_sent = self.transport.get_write_buffer_size() == 0
        if is_reusable and all_sent and not self.transport.is_closing():
            self._owner.put(self)
        else:
            self.transport.abort()
        try:
            sink.on_end()
        except Exception:
            sink.on_lost(Failure(FailureKind.BROKEN, "The router failed at the answer's end."))
            raise

    def _fail(self, kind: FailureKind, what: str, cause: str = "") -> None:
        sink, self._sink = self._sink, None
        self.transport.abort()
        if sink is not None:
            sink.on_lost(Failure(kind, f"The engine {what}.", cause))


class CountingConnection(EngineConnection):
    """Counts its reads for the read rotation. One in so many connections does: in all of them it
    would cost a twentieth of what a token costs."""

    __slots__ = ("_rotation",)

    def __init__(
        self,
        owner: Owner,
        on_made: Callable[[EngineConnection], None],
        rotation: ReadRotation,
    ) -> None:
        super().__init__(owner, on_made)
        self._rotation = rotation
        self.counts_reads = True

    def data_received(self, data: bytes) -> None:
        """Process a read, and count it."""
        EngineConnection.data_received(self, data)
        self._rotation.count_read()
