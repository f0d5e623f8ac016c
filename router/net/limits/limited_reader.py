"""What clients' and engines' connections have in common: when they read from their sockets."""

import asyncio
from typing import Final

from router.net.limits.read_limiter import ReadLimiter

__all__ = ["LimitedReader"]


class LimitedReader:
    """A connection that reads unless its owner has paused it, it waits for its turn at the read
    limiter, or the read rotation has set it aside.

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
        """Whether it tells the read rotation of each read."""
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
