"""Limits of an API key: requests and tokens per minute, and concurrent streams.

Rates are token buckets that hold a minute's worth. A request is admitted while each bucket holds at
least one request or token. It may leave the bucket in debt, which delays the next request; so no
request is too large to be ever admitted.

Usage is counted in memory that the worker processes of one host may share. Each name has a row,
with one number of each kind for each process. Each process writes only its own numbers and reads
all of them, so no lock is needed (`_Bucket` says how they are combined). A name keeps its row; only
the leader assigns rows.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from router.core.errors import LimitReached
from router.core.shared_memory import SharedRecord

__all__ = [
    "MAX_NAMES",
    "NAMES_BYTES",
    "NO_LIMITS",
    "KeyCells",
    "KeyLimits",
    "KeyRows",
    "KeyUsage",
    "KeyUsageTable",
    "own_cells",
]

BYTES: Final = 8

MAX_NAMES: Final = 1024
"""Names with limits that get a row while the router runs. For further names each process applies
its share of the limits."""

NAMES_BYTES: Final = 256 << 10
"""Size of the record of names: two lists of `MAX_NAMES`, up to 64 characters each."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of one name; None: unlimited."""

    requests: float | None = None
    """Per minute."""
    tokens: float | None = None
    """Prompt tokens (estimated) and answer tokens per minute."""
    streams: int | None = None
    """Concurrent streams."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the limits that are set: requests, tokens, streams."""
        of = {"requests": self.requests, "tokens": self.tokens, "streams": self.streams}
        return tuple(kind for kind, limit in of.items() if limit is not None)

    def share(self, processes: int) -> "KeyLimits":
        """The share of one process out of `processes`."""
        return KeyLimits(
            None if self.requests is None else self.requests / processes,
            None if self.tokens is None else self.tokens / processes,
            None if self.streams is None else -(-self.streams // processes),
        )


NO_LIMITS: Final = KeyLimits()


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


MINUTE: Final = 60.0
"""Seconds."""

ROUNDING: Final = 1e-6
"""Tolerance, in seconds, for rounding in the sums of what was taken."""

LINES: Final = (
    b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %ds\r\n"
)
"""Response headers as OpenAI sends them; `reset`: seconds until the bucket is full again."""


class _Bucket:
    """A token bucket of `per_minute` that refills within a minute, shared by all processes. Times
    are seconds of one clock; amounts are converted to the seconds in which they flow in.

    The level at `now` is `MINUTE + now - taken - peak`, at most MINUTE, where `peak` is the
    maximum of `now - taken` over the moments before each take. Each process writes what it took and
    its own peak; the sum and the maximum over all processes are what a single process would have.
    """

    __slots__ = ("_mine", "_peaks", "_per_minute", "_taken", "_unit")

    def __init__(self, taken: "memoryview[float]", peaks: "memoryview[float]", mine: int) -> None:
        self._taken = taken
        self._peaks = peaks
        self._mine = mine
        self._per_minute = math.inf
        self._unit = 0.0
        """Seconds in which one unit flows in; 0: unlimited."""

    def configure(self, per_minute: float | None) -> None:
        """Change the size; the share of it that is taken, or the debt, is kept."""
        self._per_minute = math.inf if per_minute is None else per_minute
        self._unit = MINUTE / self._per_minute

    def _level(self, now: float) -> float:
        """Content, in seconds of inflow; below 0: debt."""
        return min(MINUTE, MINUTE + now - sum(self._taken) - max(self._peaks))

    def wait(self, now: float) -> float:
        """Seconds until something may be taken; 0 or less if it may be now."""
        if self._unit == 0.0:
            return 0.0
        # A process's share of a minute may be less than one.
        return min(self._unit, MINUTE) - self._level(now) - ROUNDING

    def take(self, amount: int, now: float) -> None:
        """Take `amount` units, even if that leaves a debt."""
        if self._unit == 0.0:
            return
        mine = self._mine
        # The peak first: a process that reads in between sees the same level as before.
        self._peaks[mine] = max(self._peaks[mine], now - sum(self._taken))
        self._taken[mine] += amount * self._unit

    def header_lines(self, what: bytes, now: float) -> bytes:
        """Response headers for this limit; empty if unlimited."""
        if self._unit == 0.0:
            return b""
        level = self._level(now) + ROUNDING
        left = min(self._per_minute, max(0, math.floor(level / self._unit)))
        reset = max(0, math.ceil(MINUTE - level))
        return LINES % (what, self._per_minute, what, left, what, reset)


class KeyUsage:
    """Usage of all keys of one name, by all processes that share `cells`."""

    __slots__ = ("_cells", "_limits", "_requests", "_tokens", "is_shared")

    def __init__(self, limits: KeyLimits, cells: KeyCells | None = None) -> None:
        self._cells = own_cells()
        self._use(cells or self._cells)
        self.is_shared = cells is not None
        """Whether other processes may write to the cells too."""
        self.configure(limits)

    def share(self, limits: KeyLimits, cells: KeyCells) -> None:
        """Apply these limits together with the processes that share `cells`. Usage per minute up to
        now is forgotten; open streams are still counted."""
        cells.streams[cells.mine] += self._cells.streams[self._cells.mine]
        self._use(cells)
        self.is_shared = True
        self.configure(limits)

    def _use(self, cells: KeyCells) -> None:
        self._cells = cells
        self._requests = _Bucket(cells.requests, cells.requests_peak, cells.mine)
        self._tokens = _Bucket(cells.tokens, cells.tokens_peak, cells.mine)

    def configure(self, limits: KeyLimits) -> None:
        """Apply these limits from the next request on."""
        self._limits = limits
        self._requests.configure(limits.requests)
        self._tokens.configure(limits.tokens)

    @property
    def streams(self) -> int:
        """Open streams, of all processes."""
        return int(sum(self._cells.streams))

    def enter(self, tokens: int, now: float, *, is_stream: bool) -> None:
        """Count a request with so many estimated prompt tokens; call `leave` when it ends. Raises
        LimitReached, and then counts nothing."""
        limits = self._limits
        if is_stream and limits.streams is not None and self.streams >= limits.streams:
            raise LimitReached(
                "This API key has as many streams as it may have at a time.", "streams"
            )
        for bucket, what in ((self._requests, "requests"), (self._tokens, "tokens")):
            wait = bucket.wait(now)
            if wait > 0.0:
                raise LimitReached(
                    f"This API key has used up its {what} per minute.",
                    what,
                    retry_after=max(1, math.ceil(wait)),
                )
        self._requests.take(1, now)
        self._tokens.take(tokens, now)
        if is_stream:
            self._cells.streams[self._cells.mine] += 1.0

    def header_lines(self, now: float) -> bytes:
        """Response headers for the limits per minute."""
        requests = self._requests.header_lines(b"requests", now)
        return requests + self._tokens.header_lines(b"tokens", now)

    def leave(self, answer_tokens: int, now: float, *, is_stream: bool) -> None:
        """Count the end of a request and the tokens of its answer."""
        self._tokens.take(answer_tokens, now)
        if is_stream:
            self._cells.streams[self._cells.mine] -= 1.0
