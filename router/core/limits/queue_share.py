"""How many requests may wait in one of a router's processes, each of which has a queue of its own.

All together keep as many as the operator says. A process has its share of them for itself, so that
a tenant that fills one queue leaves room in the others, and may fill what those leave free. It
gives that back when they come to need it: for so long there are more.
"""

__all__ = ["QueueShare"]

BYTES = 8


class QueueShare:
    """`cells`: how many wait, by process; this one writes the cell at `mine`. None: it is alone."""

    __slots__ = ("_cells", "_mine")

    def __init__(self, cells: "memoryview[int] | None" = None, mine: int = 0) -> None:
        self._cells = memoryview(bytearray(BYTES)).cast("q") if cells is None else cells
        self._mine = mine

    def tell(self, waiting: int) -> None:
        """So many wait in this process."""
        self._cells[self._mine] = waiting

    def most(self, size: int) -> int:
        """How many may, if all together may be `size`."""
        cells = self._cells
        others = sum(cells) - cells[self._mine]
        return max(size // len(cells), size - others)
