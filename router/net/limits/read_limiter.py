"""Limits how many bytes of large reads are parsed between two refills, which happen every 10 ms.

In one turn the event loop reads up to 256 kB from each readable socket. If a thousand clients send
large bodies at once, that is 250 MB before any stream continues. A read beyond the limit is kept
unparsed, and its connection is not read from until its turn.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

__all__ = [
    "LARGE_READ_BYTES",
    "MAX_HELD_BYTES",
    "PIECE_BYTES",
    "READ_PER_REFILL",
    "LimitedReader",
    "PausableReader",
    "ReadLimiter",
]

LARGE_READ_BYTES: Final = 16 << 10
"""Only reads larger than this, in bytes, are limited. All connections share one limit."""

MAX_HELD_BYTES: Final = 64 << 20
"""Most bytes of reads that are kept. Beyond that, reads are parsed at once, so that their requests
can be refused."""

LEAST_COST: Final = 16 << 10
"""Least cost of a read, in bytes: reading and passing on takes 50 us."""

PIECE_BYTES: Final = 512
"""Additional cost of a chunk of a body, in bytes: parsing takes 0.5 us."""

READ_PER_REFILL: Final = 2 << 20
"""Bytes of large reads that are parsed between two refills, for clients and for engines each: 200
MB/s. A read of 256 kB takes 0.7 ms, most of it in the kernel and for memory allocation."""


class PausableReader(Protocol):
    """A connection whose reads are limited."""

    def wait_for_turn(self) -> None:
        """Stop reading."""

    def read_on(self, data: bytes) -> None:
        """Process the data and continue reading. No effect if the connection is closed."""


class ReadLimiter:
    """Admits up to `limit` bytes between two calls of `refill`; the read that exceeds it is
    admitted whole."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit
        self._held = 0
        self._waiting: deque[tuple[PausableReader, bytes]] = deque()

    def may_take(self, data: bytes, connection: PausableReader) -> bool:
        """Whether a read may be parsed now. If not, it is passed to the connection's `read_on`
        later."""
        if self._left > 0 or self._held + len(data) > MAX_HELD_BYTES:
            self._left -= max(LEAST_COST, len(data))
            return True
        self._held += len(data)
        self._waiting.append((connection, data))
        connection.wait_for_turn()
        return False

    def took_pieces(self, number: int) -> None:
        """Charge the chunks of a read that has many: they take longer to parse than its size
        suggests."""
        self._left -= PIECE_BYTES * number

    def refill(self) -> None:
        """Restore the limit, minus what was used beyond it, and pass on held reads in their
        order."""
        self._left = min(self._limit, self._left + self._limit)
        while self._waiting and self._left > 0:
            connection, data = self._waiting.popleft()
            self._held -= len(data)
            self._left -= max(LEAST_COST, len(data))
            connection.read_on(data)


class LimitedReader:
    """A connection, of a client or an engine, that reads unless its owner has paused it, it waits
    for its turn at the read limiter, or the read rotation has set it aside.

    It has methods of `asyncio.Protocol`, without being derived from it, because it is compiled
    (CONTRIBUTING.md, "Compiled modules").
    """

    __slots__ = (
        "_has_turn",
        "_read_limiter",
        "_waits_for_turn",
        "counts_reads",
        "is_set_aside",
        "read_paused",
        "transport",
    )

    def __init__(self, read_limiter: ReadLimiter) -> None:
        self.transport: asyncio.Transport
        self._read_limiter: Final = read_limiter
        self.read_paused = False
        """Whether the owner has paused it."""
        self.is_set_aside = False
        """Whether the read rotation reads from others now."""
        self.counts_reads = False
        """Whether the read rotation counts each read."""
        self._waits_for_turn = self._has_turn = False

    def data_received(self, data: bytes) -> None:
        """Process a read."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        """Stop reading, so that the kernel's buffers fill up and TCP flow control slows down the
        peer."""
        if self._reads():
            self.transport.pause_reading()
        self.read_paused = True

    def resume_reading(self) -> None:
        """Continue reading, once it is its turn. No effect on a closed connection."""
        self.read_paused = False
        if self._reads():
            self.transport.resume_reading()

    def may_take(self, data: bytes) -> bool:
        """Whether a large read may be processed now. If not, the limiter passes it to `read_on`."""
        has_turn, self._has_turn = self._has_turn, False
        return has_turn or self._read_limiter.may_take(data, self)

    def _reads(self) -> bool:
        return not (self.read_paused or self._waits_for_turn or self.is_set_aside)

    # Called by the read limiter.

    def wait_for_turn(self) -> None:
        """Stop reading until `read_on` is called."""
        if self._reads():
            self.transport.pause_reading()
        self._waits_for_turn = True

    def read_on(self, data: bytes) -> None:
        """Process data that was held back, and continue reading unless there is another reason not
        to. No effect on a closed connection."""
        self._waits_for_turn = False
        if self.transport.is_closing():
            return
        self._has_turn = True
        self.data_received(data)
        if self._reads():
            self.transport.resume_reading()

    # Called by the read rotation.

    def set_aside(self) -> None:
        """Stop reading until `put_back` is called."""
        if self._reads():
            self.transport.pause_reading()
        self.is_set_aside = True

    def put_back(self) -> None:
        """Continue reading, unless there is another reason not to. No effect on a closed
        connection."""
        self.is_set_aside = False
        if self._reads():
            self.transport.resume_reading()
