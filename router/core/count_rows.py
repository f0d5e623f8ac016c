"""Rows of numbers that one process writes and all processes of the router read: what is counted.

A row has a name and some numbers. Only the process that owns the memory adds, changes and drops
rows, so no lock is needed. Rows outlive their process: its successor continues them.

The memory is an array of 8-byte words: the end of the rows and the last serial number, then the
rows. A row: its serial number (0: free), its size in words, the length of its name in bytes, the
name, the numbers. A word is written atomically. A row's serial number is written last and differs
for each use of the row, so that a reader notices a row that was replaced while it was read.
"""

from collections.abc import Iterator
from typing import Final

__all__ = ["CountRows", "read_rows"]

BYTES: Final = 8
"""Bytes of a word."""

FIRST: Final = 2
"""The word at which the rows begin."""

HEAD: Final = 3
"""Words of a row before its name."""

NAME_WORDS: Final = 8
"""Names are padded to multiples of so many words, so that a dropped row fits a new name."""

ENGINE_BYTES: Final = 12 << 10
"""Bytes of an engine's thirty rows, with a URL of 300 characters."""

OTHER_BYTES: Final = 4 << 20
"""Bytes of other rows: thousands of models and hundreds of API keys, by outcome."""


class CountRows:
    """The rows in `memory`, which is zero for the first owner. For their owner only."""

    def __init__(self, memory: memoryview) -> None:
        self._bytes = memory
        self._words = memory.cast("q")
        self._numbers = memory.cast("d")
        self._places: dict[bytes, int] = {}
        """The first word of each row, by name."""
        self._free: dict[int, list[int]] = {}
        """The first words of dropped rows, by size in words."""
        self._words[0] = max(self._words[0], FIRST)
        for place in _places(self._words):
            if self._words[place]:
                self._places[_name(memory, self._words, place)] = place
            else:
                self._free.setdefault(self._words[place + 1], []).append(place)

    @staticmethod
    def size(engines: int) -> int:
        """Bytes for the rows of so many engines, and for those of requests, models and API keys."""
        return OTHER_BYTES + engines * ENGINE_BYTES

    def __contains__(self, name: bytes) -> bool:
        """Whether there is a row of this name."""
        return name in self._places

    def names(self) -> list[bytes]:
        """The names of all rows."""
        return list(self._places)

    def row(self, name: bytes, size: int) -> "memoryview[float] | None":
        """The `size` numbers of this name, zero if the row is new. None if there is no room."""
        place = self._places.get(name)
        if place is None:
            words = HEAD + _name_words(len(name)) + size
            place = self._place(words)
            if place is None:
                return None
            self._write(place, words, name, size)
        end = place + self._words[place + 1]
        return self._numbers[end - size : end]

    def drop(self, name: bytes) -> None:
        """Remove a row. Raises KeyError if there is none of this name."""
        place = self._places.pop(name)
        self._words[place] = 0
        self._free.setdefault(self._words[place + 1], []).append(place)

    def _place(self, words: int) -> int | None:
        """Where a row of this size can be written."""
        if free := self._free.get(words):
            return free.pop()
        end = self._words[0]
        return end if end + words <= len(self._words) else None

    def _write(self, place: int, words: int, name: bytes, size: int) -> None:
        self._words[place + 1] = words
        self._words[place + 2] = len(name)
        first = (place + HEAD) * BYTES
        self._bytes[first : first + len(name)] = name
        for number in range(place + words - size, place + words):
            self._numbers[number] = 0.0
        self._words[1] += 1
        self._words[place] = self._words[1]
        self._words[0] = max(self._words[0], place + words)
        self._places[name] = place


def read_rows(memory: memoryview) -> Iterator[tuple[bytes, list[float]]]:
    """Yields the name and the numbers of each row. Any process may call this."""
    words, numbers = memory.cast("q"), memory.cast("d")
    for place in _places(words):
        serial, size = words[place], words[place + 1]
        if serial:
            name = _name(memory, words, place)
            found = list(numbers[place + HEAD + _name_words(len(name)) : place + size])
            if words[place] == serial:
                yield name, found


def _places(words: "memoryview[int]") -> Iterator[int]:
    """Yields the first word of each row, also of free ones."""
    place = FIRST
    while place < words[0]:
        yield place
        place += max(HEAD, words[place + 1])


def _name(memory: memoryview, words: "memoryview[int]", place: int) -> bytes:
    first = (place + HEAD) * BYTES
    return bytes(memory[first : first + words[place + 2]])


def _name_words(length: int) -> int:
    """The words that a name of so many bytes takes."""
    step = NAME_WORDS * BYTES
    return -(-length // step) * NAME_WORDS
