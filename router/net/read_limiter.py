"""Limits how much is read from clients between two beats of the router's clock.

The event loop reads up to 256 kB from each socket that has something, in one turn: of a thousand
clients that send large bodies at once, that would be a quarter of a gigabyte before any stream
goes on.
"""

from collections import deque
from typing import Final, Protocol

__all__ = ["ReadLimiter", "Reading"]

READ_BYTES: Final = 256_000
"""uvloop's buffer."""


class Reading(Protocol):
    """A client's connection."""

    def wait_for_turn(self) -> None:
        """Read no more for now."""

    def read_on(self) -> None:
        """Go on; nothing happens if the connection is gone."""


class ReadLimiter:
    """Up to `limit` bytes per beat and, of each connection that is read then, one read more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit
        self._waiting: deque[Reading] = deque()

    def took(self, size: int, connection: Reading) -> None:
        """So much has been read. When that was enough, the connection waits for its turn."""
        self._left -= size
        if self._left <= 0:
            connection.wait_for_turn()
            self._waiting.append(connection)

    def refill(self) -> None:
        """A beat: as many connections go on as can read something."""
        self._left = self._limit
        for _ in range(min(len(self._waiting), 1 + self._limit // READ_BYTES)):
            self._waiting.popleft().read_on()
