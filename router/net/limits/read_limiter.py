"""Limits how many bytes of large reads are parsed between two refills, which come every 10 ms.

In one turn the event loop reads up to 256 kB from each socket that is readable: with a thousand
clients that send large bodies at once, that is a quarter of a gigabyte before any stream goes on. A
read beyond the limit is held unparsed, and reading from its connection is paused until its turn.
"""

from collections import deque
from typing import Final, Protocol

__all__ = [
    "LARGE_READ_BYTES",
    "MAX_HELD_BYTES",
    "PIECE_BYTES",
    "READ_PER_REFILL",
    "ReadLimiter",
    "Reading",
]

LARGE_READ_BYTES: Final = 16 << 10
"""Only reads above this size, in bytes, are limited. The limit is for all connections together."""

MAX_HELD_BYTES: Final = 64 << 20
"""Bytes of reads that are held. Beyond it reads are parsed at once, so that the request can be
refused rather than kept."""

LEAST_COST: Final = 16 << 10
"""Bytes that a read counts for at least: reading it and passing it on takes 50 us."""

PIECE_BYTES: Final = 512
"""Bytes that a chunk of a body counts for in addition: parsing it takes half a microsecond."""

READ_PER_REFILL: Final = 2 << 20
"""Bytes of large reads that are parsed between two refills, from clients, and as many from engines:
200 MB a second. A read of 256 kB takes 0.7 ms, most of it in the kernel and for its memory."""


class Reading(Protocol):
    """A connection."""

    def wait_for_turn(self) -> None:
        """Read no more for now."""

    def read_on(self, data: bytes) -> None:
        """Take what was read, and go on; nothing happens if the connection is gone."""


class ReadLimiter:
    """Takes up to `limit` bytes between two calls of `refill`, and the rest of the read that
    exceeds it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit
        self._held = 0
        self._waiting: deque[tuple[Reading, bytes]] = deque()

    def may_take(self, data: bytes, connection: Reading) -> bool:
        """Whether a read may be taken now. If not, the connection gets it back in its turn."""
        if self._left > 0 or self._held + len(data) > MAX_HELD_BYTES:
            self._left -= max(LEAST_COST, len(data))
            return True
        self._held += len(data)
        self._waiting.append((connection, data))
        connection.wait_for_turn()
        return False

    def took_pieces(self, number: int) -> None:
        """Charge a read for its chunks: `number` of them take longer than its size tells."""
        self._left -= PIECE_BYTES * number

    def refill(self) -> None:
        """Restore the limit, less what was taken beyond it; held reads are taken in their order."""
        self._left = min(self._limit, self._left + self._limit)
        while self._waiting and self._left > 0:
            connection, data = self._waiting.popleft()
            self._held -= len(data)
            self._left -= max(LEAST_COST, len(data))
            connection.read_on(data)
