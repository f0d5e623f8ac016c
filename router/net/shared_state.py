"""What the worker processes of one host share: the board, and news of the engines.

Made by the parent before it forks, so that a worker that is started anew finds the same. News go
through sockets that have no name: only these processes can write to them. A worker too busy to
listen misses some, which the next probe makes good.
"""

import asyncio
import contextlib
import logging
import mmap
import pickle
import socket
import zlib
from collections.abc import Callable, Sequence

from router.core.events import Event, LegFailed, Probed, Scraped, SharedEvent
from router.core.fleet import is_unreachable
from router.core.shared_table import SharedTable, WorkerColumn
from router.core.values import Endpoint

__all__ = ["SharedState", "WorkerBus", "WorkerContext"]

log = logging.getLogger(__name__)

BUFFER_BYTES = 512 << 10
"""For news that wait; the kernel's limit (net.core.wmem_max) may leave less of it."""


class SharedState:
    """All workers' common ground."""

    def __init__(self, workers: int, endpoints: Sequence[Endpoint]) -> None:
        self.workers = workers
        # Anonymous and shared: forked processes see the same pages.
        self._memory = mmap.mmap(-1, SharedTable.size(workers, len(endpoints)))
        self.table = SharedTable(memoryview(self._memory), workers, endpoints)
        self._pairs = [
            socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(workers)
        ]
        for inbox, outbox in self._pairs:
            inbox.setblocking(False)
            outbox.setblocking(False)
            outbox.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)

    def join(self, number: int, pid: int) -> "WorkerContext":
        """A worker's part, from 0 on; called in that worker."""
        self.table.register(number, pid)
        others = [outbox for place, (_, outbox) in enumerate(self._pairs) if place != number]
        return WorkerContext(
            number, self.table.column(number), WorkerBus(self._pairs[number][0], others)
        )

    def worker_left(self, number: int) -> None:
        """A worker is gone, and its requests with it."""
        self.table.clear(number)

    def close(self) -> None:
        """Nobody will be told anything any more."""
        for inbox, outbox in self._pairs:
            inbox.close()
            outbox.close()


class WorkerContext:
    """One worker's part of the crew."""

    def __init__(self, number: int, column: WorkerColumn, bus: "WorkerBus") -> None:
        self.number = number
        self.column = column
        self.bus = bus

    @property
    def is_leader(self) -> bool:
        """Whether this is the one that probes engines, for all of them."""
        return self.number == 0


class WorkerBus:
    """Tells the other workers what this one learned, and hears them."""

    def __init__(self, inbox: socket.socket, others: Sequence[socket.socket]) -> None:
        self._inbox = inbox
        self._others = others

    def observe(self, event: Event) -> None:
        """Pass on what the others want to know of what happened."""
        match event:
            case Probed() | Scraped():
                self.publish(event)
            case LegFailed() if is_unreachable(event):
                self.publish(event)

    def publish(self, event: SharedEvent) -> None:
        """Tell all others; who cannot listen now misses it."""
        data = zlib.compress(pickle.dumps(event), 1)
        for other in self._others:
            with contextlib.suppress(OSError):
                other.send(data)

    def subscribe(self, handler: Callable[[SharedEvent], None]) -> None:
        """Hand to `handler` what the others tell, until `close`. Needs a running event loop."""

        def readable() -> None:
            with contextlib.suppress(BlockingIOError):
                while data := self._inbox.recv(BUFFER_BYTES):
                    handler(pickle.loads(zlib.decompress(data)))

        asyncio.get_running_loop().add_reader(self._inbox.fileno(), readable)

    def close(self) -> None:
        """Listen no more."""
        asyncio.get_running_loop().remove_reader(self._inbox.fileno())
