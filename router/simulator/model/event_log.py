"""Changes of an engine's cached blocks, for its KV-cache events."""

from collections.abc import Sequence
from typing import NamedTuple


class Stored(NamedTuple):
    """A chain of blocks was added to the prefix cache."""

    hashes: list[int]
    parent: int | None
    tokens: list[int]
    owner: str
    """The model's name, a NUL and the cache salt; blocks are not shared between owners."""


class Removed(NamedTuple):
    """A block was allocated to another sequence."""

    block: int


class Cleared(NamedTuple):
    """The prefix cache was cleared."""


Change = Stored | Removed | Cleared


def block_hash(place: int, content: int) -> int:
    """A block's 64-bit hash in events."""
    return place << 32 | content


class EventLog:
    """Changes since the last `take`. If it is off it keeps none."""

    def __init__(self, *, is_on: bool = False) -> None:
        self.is_on = is_on
        self._changes: list[Change] = []

    def add(self, change: Change) -> None:
        if self.is_on:
            self._changes.append(change)

    def stored(
        self, places: Sequence[int], contents: Sequence[int], tokens: list[int], owner: str
    ) -> None:
        """Note the blocks at these consecutive positions of a sequence with these contents."""
        first = places[0]
        parent = block_hash(first - 1, contents[first - 1]) if first else None
        hashes = [block_hash(place, contents[place]) for place in places]
        self.add(Stored(hashes, parent, tokens, owner))

    def take(self) -> list[Change]:
        """Return and remove all changes, oldest first."""
        changes, self._changes = self._changes, []
        return changes
