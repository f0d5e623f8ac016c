"""How many requests may wait in one worker process; each has its own queue.

All queues together hold `--queue-size` requests. Each process is guaranteed an equal share, so that
a tenant that fills one queue leaves room in the others, and may also use what the others leave
free. When they need it, it shrinks to its share; until then more than `--queue-size` may wait.
"""

__all__ = ["QueueShare"]

BYTES = 8


class QueueShare:
    """`cells`: how many requests wait, by process; this one writes `cells[mine]`. None: it is the
    only process."""

    __slots__ = ("_cells", "_mine")

    def __init__(self, cells: "memoryview[int] | None" = None, mine: int = 0) -> None:
        self._cells = memoryview(bytearray(BYTES)).cast("q") if cells is None else cells
        self._mine = mine

    def publish(self, waiting: int) -> None:
        """Publish how many requests wait in this process."""
        self._cells[self._mine] = waiting

    def limit(self, size: int) -> int:
        """How many may wait in this process, if `size` may in all."""
        cells = self._cells
        others = sum(cells) - cells[self._mine]
        return max(size // len(cells), size - others)
