"""What the worker processes of one host share in memory, without a lock: each number has one
writer, and all processes read it."""

import zlib
from typing import Final, NamedTuple

__all__ = [
    "WAIT_SECONDS",
    "Count",
    "CountCells",
    "QueueShare",
    "SharedRecord",
]

BYTES: Final = 8
WAIT_SECONDS: Final = 0.1
"""Seconds for which a process counts as waiting unless it says so again; it may hang."""

MICROSECONDS: Final = 1_000_000

NEVER: Final = 1 << 62


class CountCells(NamedTuple):
    """The cells of a `Count`, one of each kind for each process."""

    admitted: "memoryview[int]"
    """Number of requests."""
    since: "memoryview[int]"
    """Since when a process has waited for a place, in microseconds."""
    until: "memoryview[int]"
    """Until when it counts as waiting, in microseconds."""


class Count:
    """The admitted requests of all processes, on one engine or in all. This process writes the
    cells at index `mine`; without cells there are no other processes. Times are monotonic, in
    seconds.

    Two processes that admit a request at the same moment may exceed a limit, by one for each
    further process. A process leaves so many places free that the waiting processes can reach its
    own number of requests, and one more for each that has waited for longer; otherwise the process
    in which a place becomes free would always take it.
    """

    __slots__ = ("_cells", "_mine", "_since", "is_shared")

    def __init__(self, cells: CountCells | None = None, mine: int = 0) -> None:
        self._cells = cells or CountCells(own_cell(), own_cell(), own_cell())
        self._mine = mine
        self._since = NEVER
        self.is_shared = cells is not None
        """Whether there may be other processes."""

    @property
    def own(self) -> int:
        """Number of this process's requests."""
        return self._cells.admitted[self._mine]

    def add(self, number: int) -> None:
        """Add to this process's requests (negative: subtract). A process that got a place starts to
        wait anew."""
        self._cells.admitted[self._mine] += number
        if number > 0:
            self.stop_waiting()

    def room(self, limit: int, now: float) -> int:
        """How many more requests this process may admit: the rest of a limit for all processes,
        minus the places that are left to the others."""
        admitted, since, until = self._cells
        time, own, began = now * MICROSECONDS, admitted[self._mine], (self._since, self._mine)
        left = limit - sum(admitted)
        for other, is_believed_until in enumerate(until):
            if is_believed_until > time:
                left -= max(0, own - admitted[other] + ((since[other], other) < began))
        return left

    def wait(self, now: float) -> None:
        """Show other processes that a request is waiting here. Call it repeatedly while one is."""
        time, cells, mine = int(now * MICROSECONDS), self._cells, self._mine
        self._since = min(self._since, time)
        cells.since[mine] = self._since
        cells.until[mine] = time + int(WAIT_SECONDS * MICROSECONDS)

    def stop_waiting(self) -> None:
        """Show that no request is waiting here."""
        self._since = NEVER
        self._cells.until[self._mine] = 0


def own_cell() -> "memoryview[int]":
    """A cell that is shared with no other process."""
    return memoryview(bytearray(BYTES)).cast("q")


class QueueShare:
    """How many requests may wait in this process; each process has its own queue.

    All queues together hold `--queue-size` requests. Each process is guaranteed an equal share, so
    that a tenant that fills one queue leaves room in the others, and may also use what the others
    leave free. When they need it, it shrinks to its share; until then more than `--queue-size` may
    wait. `cells`: how many requests wait, by process; this one writes `cells[mine]`. None: it is
    the only process.
    """

    __slots__ = ("_cells", "_mine")

    def __init__(self, cells: "memoryview[int] | None" = None, mine: int = 0) -> None:
        self._cells = own_cell() if cells is None else cells
        self._mine = mine

    def publish(self, waiting: int) -> None:
        """Publish how many requests wait in this process."""
        self._cells[self._mine] = waiting

    def limit(self, size: int) -> int:
        """How many may wait in this process, if `size` may in all."""
        cells = self._cells
        others = sum(cells) - cells[self._mine]
        return max(size // len(cells), size - others)


HEAD: Final = 5 * BYTES
"""The version, and for each buffer the length of what is in it and its checksum."""

TRIES: Final = 3


class SharedRecord:
    """What one process last wrote: the roster, by the leader; the settings, by the parent.

    Two buffers take turns, and the version is written last. A reader that was overtaken by two
    writes, or that sees the writes in another order (a checksum tells), reads again; a writer that
    is killed in between leaves the version before. `memory` is all zero at first: version 0, which
    is empty.
    """

    def __init__(self, memory: memoryview) -> None:
        self._numbers = memory[:HEAD].cast("q")
        self._capacity = (len(memory) - HEAD) // 2
        self._buffers = [
            memory[HEAD + half * self._capacity : HEAD + (half + 1) * self._capacity]
            for half in range(2)
        ]

    @property
    def version(self) -> int:
        """How often it was written."""
        return self._numbers[0]

    def write(self, data: bytes) -> None:
        """Replace what is there. Raises ValueError if it is too large."""
        if len(data) > self._capacity:
            raise ValueError(f"{len(data)} bytes, and there is room for {self._capacity}")
        version = self._numbers[0] + 1
        half = version % 2
        self._buffers[half][: len(data)] = data
        self._numbers[1 + half] = len(data)
        self._numbers[3 + half] = zlib.crc32(data)
        self._numbers[0] = version

    def read(self) -> tuple[int, bytes] | None:
        """The version and what it holds; None when it changes faster than it can be read."""
        for _ in range(TRIES):
            version = self._numbers[0]
            half = version % 2
            data = bytes(self._buffers[half][: self._numbers[1 + half]])
            is_whole = zlib.crc32(data) == self._numbers[3 + half]
            if is_whole and self._numbers[0] == version:
                return version, data
        return None
