"""Usage of API keys, in memory that the worker processes of one host may share. Each name has a
row, with one number of each kind for each process.

Each process writes only its own numbers and reads all of them, so no lock is needed (`key_limits`
says how they are combined). A name keeps its row; only the leader assigns rows.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from router.core.limits.shared_record import SharedRecord

__all__ = ["MAX_NAMES", "NAMES_BYTES", "KeyCells", "KeyRows", "KeyUsageTable", "own_cells"]

BYTES: Final = 8

MAX_NAMES: Final = 1024
"""Names with limits that get a row while the router runs. For further names each process applies
its share of the limits."""

NAMES_BYTES: Final = 256 << 10
"""Size of the record of names: two lists of `MAX_NAMES`, up to 64 characters each."""


class KeyCells(NamedTuple):
    """A row: the numbers of all processes, of which this one writes those at `mine`."""

    mine: int
    requests: "memoryview[float]"
    """What was taken, in seconds of inflow."""
    requests_peak: "memoryview[float]"
    tokens: "memoryview[float]"
    tokens_peak: "memoryview[float]"
    streams: "memoryview[float]"
    """Open streams."""


class KeyUsageTable:
    """The table. `memory` holds at least `KeyUsageTable.size` bytes, all zero at first."""

    def __init__(self, memory: memoryview, columns: int, rows: int = MAX_NAMES) -> None:
        self.columns = columns
        self.rows = rows
        self._numbers = memory[: self.size(columns, rows)].cast("d")

    @staticmethod
    def size(columns: int, rows: int = MAX_NAMES) -> int:
        """The table's size in bytes."""
        return columns * rows * (len(KeyCells._fields) - 1) * BYTES

    def cells(self, row: int, number: int) -> KeyCells:
        """A row, for the process that writes column `number`, from 0 on."""
        columns, kinds = self.columns, len(KeyCells._fields) - 1
        first = row * kinds * columns
        parts = (
            self._numbers[place : place + columns]
            for place in range(first, first + kinds * columns, columns)
        )
        return KeyCells(number, *parts)

    def clear_streams(self, number: int) -> None:
        """Forget the streams of a process that has ended; what it took per minute stays counted."""
        for row in range(self.rows):
            streams = self.cells(row, number).streams
            if streams[number]:
                streams[number] = 0.0


def own_cells() -> KeyCells:
    """A row for a process that shares it with no other."""
    return KeyUsageTable(memoryview(bytearray(KeyUsageTable.size(1, 1))), 1, 1).cells(0, 0)


class KeyRows:
    """Finds and assigns rows, for the process that writes column `number` (0: the leader).
    `names` holds the names in the order of the rows, one per line."""

    def __init__(self, table: KeyUsageTable, names: SharedRecord, number: int) -> None:
        self._table = table
        self._names = names
        self._number = number

    @property
    def processes(self) -> int:
        """How many share the table."""
        return self._table.columns

    def find(self, wanted: Iterable[str]) -> dict[str, KeyCells]:
        """The cells of those names that have a row. The leader assigns rows to the others, as long
        as any are free."""
        found = self._names.read()
        if found is None:  # it is being written
            return {}
        names = found[1].decode().splitlines()
        rows = {name: row for row, name in enumerate(names)}
        if self._number == 0:
            new = [name for name in wanted if name not in rows][: self._table.rows - len(rows)]
            if new:
                rows.update({name: len(rows) + place for place, name in enumerate(new)})
                self._names.write("\n".join(rows).encode())
        cells, number = self._table.cells, self._number
        return {name: cells(rows[name], number) for name in wanted if name in rows}
