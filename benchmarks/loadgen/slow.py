"""A client with a limited read rate: it keeps a stream open and lets it back up.

Its connection has the segment size of a network (1460) and a small receive buffer, so unread
data stay in the router after some 100 kB, not in the loopback's megabytes.
"""

import asyncio
import os
import socket
from typing import Protocol

from benchmarks.loadgen.crowd import Record
from benchmarks.streaming.sse import EventReader

PERIOD_S = 0.25
SEGMENT_BYTES = 1460
RECEIVE_BYTES = 8192
OK = b"HTTP/1.1 200"


class Load(Protocol):
    """The load to which the client belongs."""

    record: Record
    active: int


class SlowClient:
    """One stream, read at `bytes_per_s` until the load ends."""

    def __init__(
        self, load: Load, target: tuple[str, int], request: bytes, bytes_per_s: int
    ) -> None:
        self._load, self._target, self._request = load, target, request
        self._take = max(int(bytes_per_s * PERIOD_S), 1)
        self._socket: socket.socket | None = None
        self._begun = False
        self._reader = EventReader()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Connect, send the request, and read at the given rate."""
        self._loop = loop
        mine = self._socket = socket.socket()
        mine.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        mine.setblocking(False)
        mine.connect_ex(self._target)
        self._load.active += 1
        self._load.record.connects += 1
        loop.add_writer(mine.fileno(), self._connected, mine)

    def _connected(self, mine: socket.socket) -> None:
        self._loop.remove_writer(mine.fileno())
        if number := mine.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._fail(f"cannot connect: {os.strerror(number)}")
            return
        mine.send(self._request)
        self._loop.call_later(PERIOD_S, self._read)

    def _read(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(self._take)
        except BlockingIOError:
            data = None
        except OSError as error:
            self._fail(f"slow client: {error.strerror}")
            return
        if data == b"":
            self._fail("slow client: connection closed")
            return
        if data:
            self._arrived(data)
        self._loop.call_later(PERIOD_S, self._read)

    def _arrived(self, data: bytes) -> None:
        if not self._begun and not data.startswith(OK):
            self._fail(f"slow client: {data[:20]!r}")
            return
        self._begun = True
        # In the raw bytes: chunk sizes contain no empty line, and the head's end is no event.
        if events := sum(b"data:" in each for each in self._reader.feed(data)):
            self._load.record.events += events
            self._load.record.reads += 1

    def _fail(self, reason: str) -> None:
        self._load.record.failures[reason] += 1
        self.hang_up()

    def hang_up(self) -> None:
        """Close, in any state."""
        if self._socket is not None:
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None
            self._load.active -= 1
