"""One keep-alive HTTP/1.1 connection to an engine, as an asyncio protocol.

It parses answers and hands them to a sink: the head, then one piece of body per read, then the
end. Retries are decided elsewhere.
"""

import asyncio
from typing import Any, Final, Protocol

import httptools

from router.core.values import Failure, FailureKind
from router.core.wire.headers import HeaderPairs
from router.net.client.known_heads import Key, KnownHeads, split
from router.net.engine.answer_head import AnswerHead
from router.net.limits.read_limiter import ReadLimiter

__all__ = ["EngineConnection", "Owner", "Sink"]


MAX_OVERHEAD_BYTES: Final = 64 << 10
"""That come in a row without a byte of body: heads, interim answers, chunk extensions, trailers.
The parser keeps a line until it ends."""

MAX_HEADERS: Final = 256
"""Of one answer."""

BODY_HEADERS: Final = frozenset({b"content-length", b"transfer-encoding"})
"""Which no interim answer has."""

MAX_WHOLE_CHUNK: Final = 4096
"""Reads below this may be recognised as one whole chunk; an event of a token has some 250 bytes.
Others have turns: when 1,024 connections or more have something, libuv reads from them again and
again before it does anything else, up to 49,000 times."""


def _chunk_heads() -> list[bytes]:
    """By the length of a whole chunk in its framing: the size line that it must begin with; for a
    length that no chunk has, more than the read holds. A table, because most tokens pass here."""
    heads = [b"?" * MAX_WHOLE_CHUNK] * MAX_WHOLE_CHUNK
    for size in range(1, MAX_WHOLE_CHUNK):
        head = b"%x\r\n" % size
        length = len(head) + size + len(b"\r\n")
        if length < MAX_WHOLE_CHUNK:
            heads[length] = head
    return heads


CHUNK_HEADS: Final = _chunk_heads()

CHUNKED: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
"""By which the parser learns that chunks follow, where the head that they follow is known."""


class Sink(Protocol):
    """Takes one answer. `on_end` or `on_lost` comes last, exactly once, unless it is aborted."""

    def on_head(self, head: AnswerHead, length: int | None, *, has_body: bool) -> None:
        """The status and headers have arrived. `length`: of the body, if it is stated.
        `has_body`: its first bytes follow at once."""

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        """The body bytes of one read have arrived; after the last ones `on_end` follows at once."""

    def on_chunk(self, chunk: bytes, size: int) -> bool:
        """One whole chunk of a chunked body has arrived if `chunk` ends with its line end: `size`
        bytes in their framing.

        True: it was, and was taken as it is. False: it is passed to `on_data` instead.
        """

    def on_end(self) -> None:
        """The answer is complete."""

    def on_lost(self, failure: Failure) -> None:
        """The answer will not be completed."""


class Owner(Protocol):
    """The pool that a connection returns to."""

    known_heads: KnownHeads[AnswerHead]
    """Those of all connections to the engine."""

    read_limiter: ReadLimiter
    """For all engines' connections."""

    def put(self, connection: "EngineConnection") -> None:
        """The connection is idle and may be used again."""

    def forget(self, connection: "EngineConnection") -> None:
        """The connection is closed."""


class EngineConnection(asyncio.Protocol):
    """Sends one request at a time and feeds its answer to the request's sink."""

    __slots__ = (
        "_between_chunks",
        "_broken",
        "_complete",
        "_excess",
        "_has_head",
        "_has_turn",
        "_head",
        "_headers",
        "_is_asked",
        "_is_paused",
        "_keep_alive",
        "_known",
        "_known_heads",
        "_length",
        "_overhead",
        "_owner",
        "_parser",
        "_parts",
        "_sink",
        "_status",
        "_transport",
        "_until_close",
        "_waits_for_turn",
        "idle_since",
    )

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._known_heads = owner.known_heads
        self._transport: asyncio.Transport
        self._parser: Any = httptools.HttpResponseParser(self)
        self._sink: Sink | None = None
        self._headers: HeaderPairs = []
        self._parts: list[bytes] = []
        self._status = 0
        self._head: AnswerHead | None = None
        """A head that the sink does not have yet."""
        self._known: AnswerHead | None = None
        """The head of an answer of which only the chunks are parsed."""
        self._length: int | None = None
        self._is_asked = False
        """Whether a request was sent and nothing of its answer has come."""
        self._is_paused = self._waits_for_turn = self._has_turn = False
        self._has_head = False
        self._until_close = False
        self._complete = False
        self._between_chunks = False
        self._keep_alive = False
        self._excess = False
        self._broken: str | None = None
        self._overhead = 0
        """Bytes that were read since there was body among them."""
        self.idle_since = 0.0
        """When the pool got it back; the pool's clock."""

    # What the relay calls.

    def start(self, head: bytes, body: bytes, sink: Sink, lead: tuple[bytes, ...] = ()) -> None:
        """Send a request; its answer, or the loss of a closed connection, goes to `sink`.

        `lead`: of a large body, the pieces that come before `body`.
        """
        self._sink = sink
        self._has_head = self._complete = self._excess = self._between_chunks = False
        self._broken = None
        self._overhead = 0
        self._is_asked = True
        if self._transport.is_closing():
            self._fail(FailureKind.RESET, "closed the connection before it was asked")
        else:
            self._transport.writelines((head, *lead, body) if lead else (head, body))

    def abort(self) -> None:
        """Close at once, which makes the engine stop; the sink gets no further calls."""
        self._sink = None
        self._transport.abort()

    def pause_reading(self) -> None:
        """Stop reading: the kernel's buffers fill up, and the engine waits for a slow client."""
        self._is_paused = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._is_paused = False
        if not self._waits_for_turn and not self._transport.is_closing():
            self._transport.resume_reading()

    # What the limiter of reads calls.

    def wait_for_turn(self) -> None:
        """Read no more for now."""
        self._waits_for_turn = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def read_on(self, data: bytes) -> None:
        """Take what was read, and read on, unless its answer is not wanted any more."""
        self._waits_for_turn = False
        if self._sink is None:
            return
        self._has_turn = True
        self.data_received(data)
        if not self._is_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def is_closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return self._transport.is_closing()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Parse one read and pass on what it held."""
        sink = self._sink
        if sink is None:  # data without a request
            self._transport.abort()
            return
        # Most reads of a stream are one whole chunk. With its size written as uvicorn does, it can
        # bypass the parser, which is between two chunks, and go to the client as it is.
        length = len(data)
        if self._between_chunks and length < MAX_WHOLE_CHUNK:
            head = CHUNK_HEADS[length]
            if data.startswith(head) and sink.on_chunk(data, length - len(head) - 2):
                return
        elif length >= MAX_WHOLE_CHUNK and not self._may_take(data):
            return
        elif self._is_asked:
            self._is_asked = False
            self._take_first(data, sink)
            return
        self._parse(data, sink)

    def _may_take(self, data: bytes) -> bool:
        """Whether a large read may be parsed now. If not, it comes back by `read_on`."""
        has_turn, self._has_turn = self._has_turn, False
        return has_turn or self._owner.read_limiter.may_take(data, self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the sink, if it still waits."""
        self._owner.forget(self)
        self._parser = None  # a reference cycle, which would wait for the garbage collector
        if self._sink is None:
            return
        if self._has_head and self._until_close and exc is None:
            sink, self._sink = self._sink, None
            sink.on_end()
        elif self._has_head:
            self._fail(FailureKind.BROKEN, "closed the connection in the middle of its answer")
        else:
            self._fail(FailureKind.RESET, "closed the connection before it answered")

    # What the parser calls.

    def on_message_begin(self) -> None:
        """An answer begins; one without a request is not read."""
        self._excess = self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header, unless it follows the body."""
        if not self._has_head:
            self._headers.append((name.lower(), value))
            if len(self._headers) > MAX_HEADERS:
                raise ValueError("too many headers")  # httptools turns it into a parser error

    def on_headers_complete(self) -> None:
        """The head is there, unless it is an interim answer (100 Continue, 103)."""
        if self._excess:
            return
        self._status = self._parser.get_status_code()
        if self._status < 200:
            if self._status < 100 or not BODY_HEADERS.isdisjoint(dict(self._headers)):
                # The parser would read a body. httptools turns this into a parser error.
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
        """The size of a chunk is there."""
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        """A chunk is whole."""
        self._between_chunks = True

    def on_body(self, body: bytes) -> None:
        """Collect a piece of body."""
        if not self._excess:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._excess:
            return
        if self._status < 200:
            self._headers = []
            return
        self._complete = True
        self._keep_alive = self._parser.should_keep_alive()

    # Reading.

    def _take_first(self, data: bytes, sink: Sink) -> None:
        """The first read of an answer: if that is the whole of it and its head is known, it goes
        around the parser, which is between two answers."""
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
        """The first read of any other answer. Of one in chunks whose head is known only those are
        parsed. Heads are kept that came with some of their body, and decide how it is parsed."""
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
        """Whether these bytes are this head, and say that chunks follow and nothing else of how to
        parse them. (The parser takes other line ends too, and what stands before a head.)"""
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
        """Pass on what a read holds; returns the head that was in it, if a body was as well."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._broken = str(error)  # what came before it may be good
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
        # Behind a chunk the parser may have the beginning of a size, which has no line end yet.
        self._between_chunks = self._between_chunks and data.endswith(b"\r\n")
        if self._complete:
            self._finish(sink, is_reusable=self._has_ended_well())
        elif self._broken is not None:
            cause = f"it sent what is not HTTP: {self._broken}"
            self._fail(FailureKind.BROKEN, "sent what is not HTTP", cause)
        return head

    def _has_ended_well(self) -> bool:
        """Whether the answer is whole, and another one may come behind it."""
        is_clean = not self._excess and self._broken is None
        return self._complete and self._keep_alive and is_clean

    # What follows from it.

    def _finish(self, sink: Sink, *, is_reusable: bool) -> None:
        self._sink = None
        all_sent = self._transport.get_write_buffer_size() == 0
        if is_reusable and all_sent and not self._transport.is_closing():
            self._owner.put(self)
        else:
            self._transport.abort()
        try:
            sink.on_end()
        except Exception:
            sink.on_lost(Failure(FailureKind.BROKEN, "The router failed at the answer's end."))
            raise

    def _fail(self, kind: FailureKind, what: str, cause: str = "") -> None:
        sink, self._sink = self._sink, None
        self._transport.abort()
        if sink is not None:
            sink.on_lost(Failure(kind, f"The engine {what}.", cause))
