"""What one process last wrote, in memory that the worker processes of a host share: the roster, by
the leader; the settings, by the parent.

One process writes, all read, without a lock: two buffers take turns, and the version is written
last. A reader that was overtaken by two writes, or that sees the writes in another order (a
checksum tells), reads again; a writer that is killed in between leaves the version before.
"""

import zlib
from typing import Final

__all__ = ["SharedRecord"]

BYTES: Final = 8
HEAD: Final = 5 * BYTES
"""The version, and for each buffer the length of what is in it and its checksum."""

TRIES: Final = 3


class SharedRecord:
    """`memory` is all zero at first: version 0, in which there is nothing."""

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
