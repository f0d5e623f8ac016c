"""What the worker processes of one host share: the board, and news of the engines.

Made by the parent before it forks, so that a worker that is started anew finds the same. News go
through sockets that have no name: only these processes can write to them. A worker too busy to
listen misses some, which the next probe makes good.
"""

import asyncio
import contextlib
import logging
import mmap
import socket
from collections.abc import Callable, Sequence

from router.core.board import Board, Column
from router.core.events import Event, LegFailed, News, Probed, Scraped
from router.core.fleet import is_absence
from router.core.values import Endpoint
from router.net.event_codec import decode, encode

__all__ = ["Crew", "Gossip", "Mate"]

log = logging.getLogger(__name__)

BUFFER_BYTES = 512 << 10
"""For news that wait; the kernel's limit (net.core.wmem_max) may leave less of it."""


class Crew:
    """All workers' common ground."""

    def __init__(self, workers: int, endpoints: Sequence[Endpoint]) -> None:
        self.workers = workers
        # Anonymous and shared: forked processes see the same pages.
        self._memory = mmap.mmap(-1, Board.size(workers, len(endpoints)))
        self.board = Board(memoryview(self._memory), workers, endpoints)
        self._pairs = [
            socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(workers)
        ]
        for inbox, outbox in self._pairs:
            inbox.setblocking(False)
            outbox.setblocking(False)
            outbox.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)

    def join(self, number: int, pid: int) -> "Mate":
        """A worker's part, from 0 on; called in that worker."""
        self.board.came(number, pid)
        others = [outbox for place, (_, outbox) in enumerate(self._pairs) if place != number]
        return Mate(number, self.board.column(number), Gossip(self._pairs[number][0], others))

    def left(self, number: int) -> None:
        """A worker is gone, and its requests with it."""
        self.board.clear(number)

    def close(self) -> None:
        """Nobody will be told anything any more."""
        for inbox, outbox in self._pairs:
            inbox.close()
            outbox.close()


class Mate:
    """One worker's part of the crew."""

    def __init__(self, number: int, column: Column, gossip: "Gossip") -> None:
        self.number = number
        self.column = column
        self.gossip = gossip

    @property
    def is_leader(self) -> bool:
        """Whether this is the one that probes engines, for all of them."""
        return self.number == 0


class Gossip:
    """Tells the other workers what this one learned, and hears them."""

    def __init__(self, inbox: socket.socket, others: Sequence[socket.socket]) -> None:
        self._inbox = inbox
        self._others = others

    def observe(self, event: Event) -> None:
        """Pass on what the others want to know of what happened."""
        match event:
            case Probed() | Scraped():
                self.tell(event)
            case LegFailed() if is_absence(event):
                self.tell(event)

    def tell(self, news: News) -> None:
        """Tell all others; who cannot listen now misses it."""
        data = encode(news)
        for other in self._others:
            with contextlib.suppress(OSError):
                other.send(data)

    def listen(self, hear: Callable[[News], None]) -> None:
        """Hand to `hear` what the others tell, until `close`. Needs a running event loop."""

        def readable() -> None:
            with contextlib.suppress(BlockingIOError):
                while data := self._inbox.recv(BUFFER_BYTES):
                    hear(decode(data))

        asyncio.get_running_loop().add_reader(self._inbox.fileno(), readable)

    def close(self) -> None:
        """Listen no more."""
        asyncio.get_running_loop().remove_reader(self._inbox.fileno())
