"""What becomes of an engine's cached blocks, for those who follow its KV-cache events."""

from collections.abc import Sequence
from typing import NamedTuple


class Stored(NamedTuple):
    """A chain of blocks can be found as a prefix from now on."""

    hashes: list[int]
    parent: int | None
    tokens: list[int]
    owner: str
    """The model's name, a NUL and the cache salt: what blocks are not shared across."""


class Removed(NamedTuple):
    """A block has been given to another sequence."""

    block: int


class Cleared(NamedTuple):
    """No prefix can be found any more."""


Change = Stored | Removed | Cleared


def block_hash(place: int, content: int) -> int:
    """A block's name in events, of 64 bits."""
    return place << 32 | content


class EventLog:
    """Changes since they were last taken. One that is off keeps none."""

    def __init__(self, *, is_on: bool = False) -> None:
        self.is_on = is_on
        self._changes: list[Change] = []

    def add(self, change: Change) -> None:
        if self.is_on:
            self._changes.append(change)

    def stored(
        self, places: Sequence[int], contents: Sequence[int], tokens: list[int], owner: str
    ) -> None:
        """Blocks at these places, one behind the other, of a sequence with these contents."""
        first = places[0]
        parent = block_hash(first - 1, contents[first - 1]) if first else None
        hashes = [block_hash(place, contents[place]) for place in places]
        self.add(Stored(hashes, parent, tokens, owner))

    def take(self) -> list[Change]:
        """All changes, oldest first."""
        changes, self._changes = self._changes, []
        return changes
