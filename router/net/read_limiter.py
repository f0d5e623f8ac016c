"""Limits how much of what is read is taken between two beats of the router's clock.

The event loop reads up to 256 kB from each socket that has something, in one turn: of a thousand
clients that send large bodies at once, that would be a quarter of a gigabyte before any stream
goes on. A read that comes too early waits as it is, and its connection is not read on until then.
"""

from collections import deque
from typing import Final, Protocol

__all__ = ["LARGE_READ_BYTES", "MAX_HELD_BYTES", "PIECE_BYTES", "ReadLimiter", "Reading"]

LARGE_READ_BYTES: Final = 16 << 10
"""Reads from clients above this are limited, all connections together."""

MAX_HELD_BYTES: Final = 64 << 20
"""Of reads that wait. What is beyond is taken at once: it is better refused than kept."""

LEAST_COST: Final = 16 << 10
"""As many bytes as a read counts for at least: reading it and passing it on takes 50 us."""

PIECE_BYTES: Final = 512
"""As many bytes as a chunk of a body counts for: parsing it takes half a microsecond."""


class Reading(Protocol):
    """A connection."""

    def wait_for_turn(self) -> None:
        """Read no more for now."""

    def read_on(self, data: bytes) -> None:
        """Take what was read, and go on; nothing happens if the connection is gone."""


class ReadLimiter:
    """Up to `limit` bytes per beat, and the rest of the read that exceeds it."""

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
        """What was taken had so many pieces: it took longer than its size tells."""
        self._left -= PIECE_BYTES * number

    def refill(self) -> None:
        """A beat: those that wait longest take what they have read. What was too much before is
        made up for."""
        self._left = min(self._limit, self._left + self._limit)
        while self._waiting and self._left > 0:
            connection, data = self._waiting.popleft()
            self._held -= len(data)
            self._left -= max(LEAST_COST, len(data))
            connection.read_on(data)
