"""A large mapping without long pauses.

A growing dictionary copies all its entries at once: 20 ms for half a million, during which no
stream continues. This mapping consists of many small dictionaries.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

__all__ = ["SHARDS", "SHARD_BITS", "Shards"]

SHARDS: Final = 256
"""Number of dictionaries. With a million entries each has 4,000, which are copied in 0.1 ms, at
different times."""

SHARD_BITS: Final = SHARDS - 1
"""Mask for the bits of a hash that select the dictionary."""

Key = TypeVar("Key", bound=Hashable)


class Shards(Generic[Key]):
    """Numbers by key, in small dictionaries, each ordered by the time of insertion."""

    __slots__ = ("_next", "dicts")

    def __init__(self) -> None:
        self.dicts: list[dict[Key, int]] = [{} for _ in range(SHARDS)]
        self._next = 0
        """Index of the dictionary that `pop_old` tries first."""

    def of(self, key: Key) -> dict[Key, int]:
        """The dictionary for a key."""
        return self.dicts[hash(key) & SHARD_BITS]

    def pop_old(self) -> tuple[Key, int]:
        """Remove one of the oldest entries: the oldest of each dictionary in turn. Raises KeyError
        if the mapping is empty."""
        for _ in range(SHARDS):
            shard = self.dicts[self._next]
            self._next = (self._next + 1) & SHARD_BITS
            if shard:
                key = next(iter(shard))
                return key, shard.pop(key)
        raise KeyError("no entries")
