"""Loads and speeds shared by the worker processes of one host: a table in shared memory.

A row is an endpoint, a column a process. Each process writes only its own column and reads all, so
no lock is needed. A number is eight aligned bytes, which are written atomically.
"""

from collections.abc import Mapping

from router.core.candidate import OwnLoad
from router.core.shared_memory import Count, CountCells, QueueShare
from router.core.speed.speed_totals import SpeedTotals
from router.core.values import Endpoint

__all__ = ["SharedLoad", "SharedTable", "WorkerColumn"]

BYTES = 8
INTEGER_FIELDS = ("requests", "admitted", "tokens", "pending", "open", "idle", "since", "until")
"""Integer fields of a row: the load, connections to the engine, and the `CountCells` of requests
admitted on it."""
HELD_FIELDS = 2
"""Number of leading fields that are zero in an idle row."""
FLOAT_FIELDS = len(SpeedTotals._fields)
"""Float fields of a row: the process's `SpeedTotals`."""
PROCESS_FIELDS = 8
"""Integer fields of a process: its id, number of starts, the version of the roster that it follows,
heartbeat, queued requests, and the `CountCells` of all admitted requests."""


class SharedTable:
    """The table. `memory` has at least `SharedTable.size` bytes, initially zero. `rows` is the
    number of rows; `WorkerColumn.place` assigns them to endpoints."""

    def __init__(self, memory: memoryview, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows: Mapping[Endpoint, int] = {}
        """The row of each endpoint, as known to this process."""
        half = columns * rows * len(INTEGER_FIELDS) * BYTES
        end = half + columns * rows * FLOAT_FIELDS * BYTES
        self._integers = memory[:half].cast("q")
        self._floats = memory[half:end].cast("d")
        self._pids, self._starts, self._seen, self._beats, self._queued, *admitted = (
            memory[end + place * columns * BYTES : end + (place + 1) * columns * BYTES].cast("q")
            for place in range(PROCESS_FIELDS)
        )
        self._admitted = CountCells(*admitted)
        end += PROCESS_FIELDS * columns * BYTES
        self.reloads = memory[end : end + 3 * BYTES].cast("q")
        """Counts of configuration reloads, written by the parent: applied, rejected, and whether
        the last one was applied (0 or 1)."""
        end += 3 * BYTES
        self.ended_cpu_seconds = memory[end : end + BYTES].cast("d")
        """CPU seconds of all processes that have ended, written by the parent."""

    @staticmethod
    def size(columns: int, rows: int) -> int:
        """The table's size in bytes."""
        fields = rows * (len(INTEGER_FIELDS) + FLOAT_FIELDS) + PROCESS_FIELDS
        return (columns * fields + 4) * BYTES

    def column(self, number: int) -> "WorkerColumn":
        """The view of the process that writes column `number`, from 0 on."""
        return WorkerColumn(self, number)

    def clear(self, number: int) -> None:
        """Zero the column of a process that has ended, and with it its requests."""
        of_process = (self._pids, self._seen, self._beats, self._queued, *self._admitted)
        for numbers in (self._integers, self._floats, *of_process):
            for place in range(number, len(numbers), self.columns):
                numbers[place] = 0

    def pids(self) -> list[int]:
        """The process ids of the registered workers."""
        return [pid for pid in self._pids if pid]

    def pid(self, number: int) -> int:
        """The id of the process that writes column `number`; 0 if there is none."""
        return self._pids[number]

    def register(self, number: int, pid: int) -> None:
        """Register the process that writes column `number`."""
        self._pids[number] = pid
        self._starts[number] += 1

    def heartbeat(self, number: int) -> int:
        """A number that changes while the process that writes column `number` runs its event loop;
        0 before it runs."""
        return self._beats[number]

    def is_idle(self, row: int, version: int) -> bool:
        """Whether all workers have seen this version of the roster and have no requests in the row.
        Columns without a process do not count."""
        first = row * len(INTEGER_FIELDS) * self.columns
        return not any(self._integers[first : first + HELD_FIELDS * self.columns]) and all(
            seen >= version for seen, pid in zip(self._seen, self._pids, strict=True) if pid
        )

    def beat(self, number: int) -> None:
        """Note that the event loop of the process that writes column `number` runs."""
        self._beats[number] += 1

    def saw(self, number: int, version: int) -> None:
        """Note that the process that writes column `number` follows this version of the roster."""
        self._seen[number] = version

    def empty(self, row: int, number: int) -> None:
        """Zero the values in a row of the process that writes column `number`."""
        size = len(INTEGER_FIELDS) * self.columns
        for place in range(row * size + number, (row + 1) * size, self.columns):
            self._integers[place] = 0
        size = FLOAT_FIELDS * self.columns
        for place in range(row * size + number, (row + 1) * size, self.columns):
            self._floats[place] = 0.0

    def ended_cpu(self) -> float:
        """Seconds of CPU time of processes that have ended."""
        return self.ended_cpu_seconds[0]

    def restarts(self) -> int:
        """How often a process was started in place of one that had ended."""
        return sum(max(0, starts - 1) for starts in self._starts)

    def begun(self) -> int:
        """A number that changes with the first heartbeat of each process that is started, and when
        a process ends or is registered."""
        pairs = zip(self._starts, self._beats, strict=True)
        return sum(starts if beats else max(0, starts - 1) for starts, beats in pairs)

    def admitted(self, number: int) -> Count:
        """The count of all admitted requests, for the process that writes column `number`."""
        return Count(self._admitted, number)

    def queue_share(self, number: int) -> QueueShare:
        """The share of the queue of the process that writes column `number`."""
        return QueueShare(self._queued, number)

    def integers(self, endpoint: Endpoint, field: str) -> "memoryview[int]":
        """An integer field of a row, one entry per column."""
        first = (
            self.rows[endpoint] * len(INTEGER_FIELDS) + INTEGER_FIELDS.index(field)
        ) * self.columns
        return self._integers[first : first + self.columns]

    def floats(self, endpoint: Endpoint) -> "memoryview[float]":
        """The speed totals of a row, field by field, each with one entry per column."""
        first = self.rows[endpoint] * FLOAT_FIELDS * self.columns
        return self._floats[first : first + FLOAT_FIELDS * self.columns]


class WorkerColumn:
    """One process's view of the table."""

    def __init__(self, table: SharedTable, number: int) -> None:
        self.table = table
        self.number = number

    def place(self, rows: Mapping[Endpoint, int]) -> None:
        """Set the rows of endpoints. This process's values of new endpoints start at zero."""
        table = self.table
        before, table.rows = table.rows, dict(rows)
        for endpoint, row in rows.items():
            if before.get(endpoint) != row:
                table.empty(row, self.number)

    def beat(self) -> None:
        """Note that this process's event loop runs."""
        self.table.beat(self.number)

    def load(self, endpoint: Endpoint) -> "SharedLoad":
        """The load of an endpoint, over all processes."""
        return SharedLoad(self.table, endpoint, self.number)

    @property
    def admitted(self) -> Count:
        """The count of all admitted requests."""
        return self.table.admitted(self.number)

    @property
    def queue_share(self) -> QueueShare:
        """This process's share of the queue."""
        return self.table.queue_share(self.number)

    def speed(self, endpoint: Endpoint) -> "SharedSpeedTotals":
        """Publishes this process's speed totals of an endpoint, and reads the others'."""
        return SharedSpeedTotals(self.table.floats(endpoint), self.table.columns, self.number)

    def set_connections(self, endpoint: Endpoint, is_open: int, idle: int) -> None:
        """Publish this process's connections to an endpoint."""
        self.table.integers(endpoint, "open")[self.number] = is_open
        self.table.integers(endpoint, "idle")[self.number] = idle

    def connections(self, endpoint: Endpoint) -> tuple[int, int]:
        """All processes' connections to an endpoint: open ones, and idle ones among them."""
        table = self.table
        return sum(table.integers(endpoint, "open")), sum(table.integers(endpoint, "idle"))


class SharedLoad:
    """A `Load` over all processes; this one changes only its own column."""

    __slots__ = ("_mine", "_pending", "_requests", "_tokens", "admitted")

    def __init__(self, table: SharedTable, endpoint: Endpoint, mine: int) -> None:
        self._mine = mine
        self._requests = table.integers(endpoint, "requests")
        self._tokens = table.integers(endpoint, "tokens")
        self._pending = table.integers(endpoint, "pending")
        cells = (table.integers(endpoint, field) for field in CountCells._fields)
        self.admitted = Count(CountCells(*cells), mine)

    @property
    def own(self) -> OwnLoad:
        """Itself: the processes are one router."""
        return self

    @property
    def requests(self) -> int:
        """Number of requests."""
        return sum(self._requests)

    @property
    def tokens(self) -> int:
        """Their estimated input tokens."""
        return sum(self._tokens)

    @property
    def pending(self) -> int:
        """Those of the input tokens that the engine still has to compute."""
        return sum(self._pending)

    def add(self, requests: int, tokens: int, pending: int) -> None:
        """Add to this process's part (negative: subtract)."""
        mine = self._mine
        if requests:
            self._requests[mine] += requests
            self._tokens[mine] += tokens
        self._pending[mine] += pending


class SharedSpeedTotals:
    """One process's speed totals of an endpoint, and those of the other processes."""

    def __init__(self, cells: "memoryview[float]", columns: int, mine: int) -> None:
        self._cells = cells
        self._columns = columns
        self._mine = mine
        self._seen = {n: self._of(n) for n in range(columns) if n != mine}

    def publish(self, totals: SpeedTotals) -> None:
        """Publish the totals since the start; see `SpeedTotals`."""
        for place, number in enumerate(totals):
            self._cells[place * self._columns + self._mine] = number

    def others(self) -> SpeedTotals:
        """The increase of the other processes' totals since the last call, and their current
        values."""
        total = SpeedTotals()
        for number, before in self._seen.items():
            now = self._of(number)
            self._seen[number] = now
            total = total.plus(now.since(before))
        return total

    def _of(self, number: int) -> SpeedTotals:
        return SpeedTotals(*self._cells[number :: self._columns].tolist())
