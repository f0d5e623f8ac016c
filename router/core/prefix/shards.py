"""A large mapping without long pauses.

A dictionary that grows copies all its entries at once: 20 ms for half a million, in which no stream
gets a token. Here they lie in many small ones.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

__all__ = ["SHARDS", "SHARD_BITS", "Shards"]

SHARDS: Final = 256
"""Of a million entries each then has 4,000: copied in 0.1 ms, at different moments."""

SHARD_BITS: Final = SHARDS - 1
"""The bits of a hash by which it is found."""

Key = TypeVar("Key", bound=Hashable)


class Shards(Generic[Key]):
    """Numbers by keys, in small dictionaries; each has those stored longest ago first."""

    __slots__ = ("_next", "dicts")

    def __init__(self) -> None:
        self.dicts: list[dict[Key, int]] = [{} for _ in range(SHARDS)]
        self._next = 0
        """The one that `pop_old` looks at first."""

    def of(self, key: Key) -> dict[Key, int]:
        """The dictionary that has the key, or may get it."""
        return self.dicts[hash(key) & SHARD_BITS]

    def pop_old(self) -> tuple[Key, int]:
        """Take one of those stored longest ago: the oldest of one dictionary after the other.
        Raises KeyError where there is none."""
        for _ in range(SHARDS):
            shard = self.dicts[self._next]
            self._next = (self._next + 1) & SHARD_BITS
            if shard:
                key = next(iter(shard))
                return key, shard.pop(key)
        raise KeyError("no entries")
