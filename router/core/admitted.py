"""The number of admitted requests, on one engine or in all, of each process of a router.

Processes share no lock. Each writes its own cells and reads all, so two processes that admit a
request at the same moment may exceed a limit, by one for each further process. A process leaves so
many places free that the waiting processes can reach its own number of requests, and one more for
each that has waited for longer; otherwise the process in which a place becomes free would always
take it.
"""

from typing import Final, NamedTuple, Protocol

__all__ = ["WAIT_SECONDS", "Count", "LocalCount", "SharedCount", "SharedCounts"]

WAIT_SECONDS: Final = 0.1
"""Seconds for which a process counts as waiting unless it says so again; it may hang."""

MICROSECONDS: Final = 1_000_000

NEVER: Final = 1 << 62


class Count(Protocol):
    """Counts the requests of all processes; this process changes only its own number. Times are
    monotonic, in seconds."""

    @property
    def is_shared(self) -> bool:
        """Whether there are other processes."""

    @property
    def own(self) -> int:
        """Number of this process's requests."""

    def add(self, number: int) -> None:
        """Add to this process's requests (negative: subtract)."""

    def room(self, limit: int, now: float) -> int:
        """How many more requests this process may admit under a limit for all processes."""

    def wait(self, now: float) -> None:
        """Show other processes that a request is waiting here. Call it repeatedly while one is."""

    def stop_waiting(self) -> None:
        """Show that no request is waiting here."""


class LocalCount:
    """The `Count` of a router with a single process."""

    __slots__ = ("own",)

    is_shared: Final = False

    def __init__(self) -> None:
        self.own = 0

    def add(self, number: int) -> None:
        """Add to the requests (negative: subtract)."""
        self.own += number

    def room(self, limit: int, now: float) -> int:
        """The rest of the limit."""
        return limit - self.own

    def wait(self, now: float) -> None:
        """No effect: there are no other processes."""

    def stop_waiting(self) -> None:
        """No effect: there are no other processes."""


class SharedCounts(NamedTuple):
    """The shared cells of all processes."""

    admitted: "memoryview[int]"
    """Number of requests."""
    since: "memoryview[int]"
    """Since when a process has waited for a place, in microseconds."""
    until: "memoryview[int]"
    """Until when it counts as waiting, in microseconds."""


class SharedCount:
    """The count of several processes; this one writes the cells at index `mine`."""

    __slots__ = ("_cells", "_mine", "_since")

    is_shared: Final = True

    def __init__(self, cells: SharedCounts, mine: int) -> None:
        self._cells = cells
        self._mine = mine
        self._since = NEVER

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
        """The rest of the limit, minus the places that are left to other processes."""
        admitted, since, until = self._cells
        time, own, began = now * MICROSECONDS, admitted[self._mine], (self._since, self._mine)
        left = limit - sum(admitted)
        for other, is_believed_until in enumerate(until):
            if is_believed_until > time:
                left -= max(0, own - admitted[other] + ((since[other], other) < began))
        return left

    def wait(self, now: float) -> None:
        """See `Count`."""
        time, cells, mine = int(now * MICROSECONDS), self._cells, self._mine
        self._since = min(self._since, time)
        cells.since[mine] = self._since
        cells.until[mine] = time + int(WAIT_SECONDS * MICROSECONDS)

    def stop_waiting(self) -> None:
        """See `Count`."""
        self._since = NEVER
        self._cells.until[self._mine] = 0
