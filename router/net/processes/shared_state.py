"""The state that the worker processes of one host share: tables, records, and events about engines.

The parent creates it before it forks, so that a restarted worker has the same state, including the
latest fleet. Events are sent through unnamed sockets, which only these processes can write to. A
worker that is too busy to read loses some, and learns of the change from the next probe.
"""

import asyncio
import contextlib
import errno
import io
import logging
import mmap
import os
import pickle
import socket
import time
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from router.core.count_rows import CountRows
from router.core.events import Event, Ordered, SharedEvent
from router.core.fleet.worker_events import for_workers
from router.core.limits.key_limits import NAMES_BYTES, KeyRows, KeyUsageTable
from router.core.membership.roster import Roster
from router.core.replicas import PeerHistory, PeerReport
from router.core.shared_memory import SharedRecord
from router.core.shared_table import SharedTable, WorkerColumn
from router.net.replicas import SendStatus

__all__ = [
    "SharedState",
    "WorkerBus",
    "WorkerContext",
    "WorkerEvent",
    "decode_event",
    "encode_event",
]


log = logging.getLogger(__name__)

WorkerEvent = SharedEvent | Ordered | PeerReport | PeerHistory | SendStatus
"""Events that workers send to each other."""

ROSTER_BYTES = 32 << 20
"""Bytes for two rosters: with the longest names, a thousand engines of three sources take 13 MB."""

SETTINGS_BYTES = 4 << 20
"""Bytes for two sets of settings: a registry of a thousand engines takes about 200 kB."""

BUFFER_BYTES = 512 << 10
"""Size in bytes of a socket's send buffer; the kernel may limit it (net.core.wmem_max)."""


class SharedState:
    """The state shared by all workers; the parent owns it."""

    def __init__(self, workers: int, roster: Roster) -> None:
        self.workers = workers
        self.began = time.monotonic()
        """When the router was started, in monotonic seconds, which all processes of a host
        share."""
        self.replica = uuid.uuid4().hex
        """The name of all workers together among sibling replicas."""
        # Anonymous shared memory: forked processes see the same pages, which take memory only when
        # they are first written.
        sizes = (
            SharedTable.size(workers, roster.rows),
            ROSTER_BYTES,
            SETTINGS_BYTES,
            KeyUsageTable.size(workers),
            NAMES_BYTES,
            *([CountRows.size(roster.rows)] * workers),
        )
        self._memory = mmap.mmap(-1, sum(sizes))
        ends = list(accumulate(sizes))
        memory = memoryview(self._memory)
        table, record, settings, usage, names, *counts = (
            memory[end - size : end] for end, size in zip(ends, sizes, strict=True)
        )
        self.table = SharedTable(table, workers, roster.rows)
        self.roster = SharedRecord(record)
        self.settings = SharedRecord(settings)
        """The reloaded settings, encoded by the parent."""
        self._key_usage = KeyUsageTable(usage, workers)
        self._key_names = SharedRecord(names)
        self.counts = counts
        """The memory in which each worker counts; see `CountRows`."""
        self.roster.write(roster.encode())
        self._pairs = [
            socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(workers)
        ]
        for inbox, outbox in self._pairs:
            inbox.setblocking(False)
            outbox.setblocking(False)
            outbox.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)

    def join(self, number: int, pid: int) -> "WorkerContext":
        """The context of worker `number`, from 0 on. Call it in that worker."""
        self.table.register(number, pid)
        others = [outbox for place, (_, outbox) in enumerate(self._pairs) if place != number]
        return WorkerContext(
            number,
            self.table.column(number),
            WorkerBus(self._pairs[number][0], others),
            self.roster,
            self.settings,
            self.began,
            self.key_rows(number),
            self.replica,
            self.counts,
        )

    def key_rows(self, number: int) -> KeyRows:
        """The shared rows in which worker `number` counts the usage of API keys."""
        return KeyRows(self._key_usage, self._key_names, number)

    def worker_left(self, number: int) -> None:
        """Clear the state of a worker that has ended, and so has its requests. Call it before the
        process is waited for."""
        used = _cpu_seconds(self.table.pid(number))
        self.table.clear(number)
        self.table.ended_cpu_seconds[0] += used  # at once: a scrape must not miss it
        self._key_usage.clear_streams(number)

    def close(self) -> None:
        """Close the sockets."""
        for inbox, outbox in self._pairs:
            inbox.close()
            outbox.close()


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """One worker's access to the shared state."""

    number: int
    column: WorkerColumn
    bus: "WorkerBus"
    roster: SharedRecord
    settings: SharedRecord
    began: float
    """When the first workers were started, in monotonic seconds."""
    key_rows: KeyRows
    replica: str = ""
    counts: Sequence[memoryview] = ()
    """The memory in which each worker counts. Counts stay when a worker ends."""

    @property
    def is_leader(self) -> bool:
        """Whether this worker probes engines and runs discovery for all workers."""
        return self.number == 0


class WorkerBus:
    """Sends events to the other workers, and receives theirs."""

    def __init__(self, inbox: socket.socket, others: Sequence[socket.socket]) -> None:
        self._inbox = inbox
        self._others = others
        self._too_large: set[str] = set()
        """Kinds of events that did not fit."""

    def observe(self, event: Event) -> None:
        """Send an event if other workers need it."""
        shared = for_workers(event)
        if shared is not None:
            self.publish(shared)

    def publish(self, event: WorkerEvent) -> None:
        """Send an event to all other workers. Those whose buffers are full lose it; one that is too
        large for any buffer is logged."""
        data = encode_event(event)
        if len(data) > BUFFER_BYTES:
            self._complain(event, len(data))
            return
        for other in self._others:
            try:
                other.send(data)
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    self._complain(event, len(data))

    def _complain(self, event: WorkerEvent, size: int) -> None:
        kind = type(event).__name__
        if kind not in self._too_large:
            self._too_large.add(kind)
            log.error(
                "%s: %d bytes do not fit a socket, so that other workers do not learn of it: let "
                "engines list fewer models, or raise net.core.wmem_max",
                kind,
                size,
            )

    def subscribe(self, handler: Callable[[WorkerEvent], None]) -> None:
        """Pass the other workers' events to `handler`, until `close`. Needs a running event
        loop."""

        def readable() -> None:
            with contextlib.suppress(BlockingIOError):
                while data := self._inbox.recv(BUFFER_BYTES):
                    handler(decode_event(data))

        asyncio.get_running_loop().add_reader(self._inbox.fileno(), readable)

    def close(self) -> None:
        """Stop receiving."""
        asyncio.get_running_loop().remove_reader(self._inbox.fileno())


def _cpu_seconds(pid: int) -> float:
    """CPU seconds of a process, also if it has ended and was not waited for; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class _Pickler(pickle.Pickler):
    """Rebuilds dataclasses by calling their classes, because attributes of compiled frozen ones
    cannot be set."""

    def reducer_override(self, value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return type(value), tuple(getattr(value, field.name) for field in fields(value))
        return NotImplemented


def encode_event(event: object) -> bytes:
    """Serialise an event for the other workers; the inverse of `decode_event`."""
    out = io.BytesIO()
    _Pickler(out, pickle.HIGHEST_PROTOCOL).dump(event)
    return zlib.compress(out.getvalue(), 1)


def decode_event(data: bytes) -> Any:
    """Deserialise an event of another process of this program. Never use it for data from
    elsewhere, because it is based on pickle."""
    return pickle.loads(zlib.decompress(data))
