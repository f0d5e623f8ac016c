"""Clients that watch streams, and find the cause of each delay: the engine, the router, or the
clients themselves.

The engine writes into each event when it sends it (`engine.py`), and the kernel records its arrival
at the client's socket, however late the client reads it. While an event is in the router, the
router computes or waits for a processor: the latter is for the machine that all of this runs on.
"""

import asyncio
import contextlib
import re
import socket
import struct
import time
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

__all__ = ["Event", "Observers", "Watched"]

OBSERVERS = 16
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 40\r\n\r\n"
BODY = b'{"model":"m","stream":true,"prompt":"x"}'

SENT = re.compile(rb'"text":"(\d+)"')
"""Nanoseconds of the system's clock at which an event was sent."""

READ_BYTES = 1 << 16

SO_TIMESTAMPNS = 35
"""Linux's, on x86 and ARM; Python does not name it."""

TIMESPEC = struct.Struct("@qq")


class Event(NamedTuple):
    """What came in one read, in seconds."""

    gap: float
    """Since the read before."""
    step: float
    """Between the engine's writes of its first event and of the last one before."""
    held: float
    """From the engine's write of the first event to the arrival of the last one at the client's
    socket."""
    computed: float
    """Upper bound of the router's computation in that time: all of it until the read."""
    unread: float
    """From there to the read."""


class Watched:
    """One stream."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.sock.sendall(HEAD + BODY)
        self.sock.setblocking(False)
        self.sent = self.read = 0.0
        """The last event's."""


class Observers:
    """Watches streams of the router at `port`, whose process is `pid`, from `start` to `stop`."""

    def __init__(self, port: int, pid: int) -> None:
        self.events: list[Event] = []
        self.ended = 0
        """Streams that the router ended."""
        self._port = port
        self._statistics = Path(f"/proc/{pid}/schedstat")
        self._times: list[float] = []
        self._computed: list[float] = []
        """Seconds of processor time that the router had used at these times."""
        self._streams: list[Watched] = []

    def start(self) -> None:
        """Begin. Needs a running event loop."""
        loop = asyncio.get_running_loop()
        self._streams = [Watched(self._port) for _ in range(OBSERVERS)]
        for each in self._streams:
            loop.add_reader(each.sock, self._on_readable, each)

    def stop(self) -> None:
        """End all streams."""
        for each in self._streams:
            self._close(each)

    def _close(self, stream: Watched) -> None:
        if stream.sock.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(stream.sock)
            stream.sock.close()

    def _on_readable(self, stream: Watched) -> None:
        data = b""
        with contextlib.suppress(ConnectionResetError):
            data, ancillary, *_ = stream.sock.recvmsg(READ_BYTES, socket.CMSG_SPACE(TIMESPEC.size))
        read = time.time()
        used = self._sample(read)
        if not data:
            self.ended += 1
            self._close(stream)
            return
        sent = [int(each) / 1e9 for each in SENT.findall(data)]
        # The head alone; or the kernel does not yet note when data comes: it begins to a moment
        # after it was asked to.
        if not sent or not ancillary:
            return
        if stream.read:
            seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
            arrived = seconds + nanoseconds / 1e9
            computed = min(arrived - sent[0], used - self._used_at(sent[0]))
            self.events.append(
                Event(
                    read - stream.read,
                    sent[0] - stream.sent,
                    arrived - sent[0],
                    computed,
                    read - arrived,
                )
            )
        stream.sent, stream.read = sent[-1], read

    def _sample(self, now: float) -> float:
        used = int(self._statistics.read_text().split()[0]) / 1e9
        self._times.append(now)
        self._computed.append(used)
        return used

    def _used_at(self, then: float) -> float:
        return self._computed[max(0, bisect_right(self._times, then) - 1)]
