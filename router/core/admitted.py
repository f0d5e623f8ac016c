"""How many requests admission has let in, on one engine or in all, by which process of a router.

Processes share no lock. Each writes its own cells and reads all of them, so two that let somebody
in at the same moment may pass a limit, by one for each further process. A process leaves free what
brings others that wait up to as many as it has, and one place more for those that have waited for
longer: else the one in which a place gets free would always have it.
"""

from typing import Final, NamedTuple, Protocol

__all__ = ["WAIT_SECONDS", "Count", "LocalCount", "SharedCount", "SharedCounts"]

WAIT_SECONDS: Final = 0.1
"""For so long others believe that a process waits which says no more: it may hang."""

MICROSECONDS: Final = 1_000_000

NEVER: Final = 1 << 62


class Count(Protocol):
    """The requests of all processes; this one adds to its own. Times are monotonic, in seconds."""

    @property
    def is_shared(self) -> bool:
        """Whether there are other processes."""

    @property
    def own(self) -> int:
        """This process's requests."""

    def add(self, number: int) -> None:
        """Change them."""

    def room(self, limit: int, now: float) -> int:
        """How many more this process may let in, of a limit for all."""

    def wait(self, now: float) -> None:
        """Tell the others that a request waits here; again and again, while it does."""

    def stop_waiting(self) -> None:
        """Tell them that none does."""


class LocalCount:
    """The `Count` of a router that is one process."""

    __slots__ = ("own",)

    is_shared: Final = False

    def __init__(self) -> None:
        self.own = 0

    def add(self, number: int) -> None:
        """Change it."""
        self.own += number

    def room(self, limit: int, now: float) -> int:
        """What is left of the limit."""
        return limit - self.own

    def wait(self, now: float) -> None:
        """Nobody needs to know."""

    def stop_waiting(self) -> None:
        """Nobody needs to know."""


class SharedCounts(NamedTuple):
    """The cells of all processes."""

    admitted: "memoryview[int]"
    """Requests."""
    since: "memoryview[int]"
    """From when a process has waited and got no place, in microseconds."""
    until: "memoryview[int]"
    """When it is believed no longer that it waits."""


class SharedCount:
    """Of several processes; this one writes the cells at `mine`."""

    __slots__ = ("_cells", "_mine", "_since")

    is_shared: Final = True

    def __init__(self, cells: SharedCounts, mine: int) -> None:
        self._cells = cells
        self._mine = mine
        self._since = NEVER

    @property
    def own(self) -> int:
        """This process's requests."""
        return self._cells.admitted[self._mine]

    def add(self, number: int) -> None:
        """Change them. Who has got a place begins to wait anew."""
        self._cells.admitted[self._mine] += number
        if number > 0:
            self.stop_waiting()

    def room(self, limit: int, now: float) -> int:
        """What is left, but for the places whose turn is another one's."""
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
