"""Index of which engines hold which blocks of token ids, with one bit per source of KV-cache
events.

A block's key is the same for all engines: a hash of its token ids and of the previous block's key.
A prompt's keys can thus be computed without knowing how an engine hashes, and one walk along a
prompt finds how much of it each of a hundred engines holds.

A growing dictionary copies all its entries at once: 20 ms for half a million, during which no
stream continues. Large mappings therefore consist of many small dictionaries.
"""

from collections.abc import Hashable
from typing import Any, Final, Generic, TypeVar

from router.core.request_facts import PromptTokens

__all__ = ["SHARDS", "SHARD_BITS", "BlockIndex", "Shards"]

SHARDS: Final = 256
"""Number of dictionaries. With a million entries each has 4,000, which are copied in 0.1 ms, at
different times."""

SHARD_BITS: Final = SHARDS - 1
"""Mask for the bits of a hash that select the dictionary."""

Key = TypeVar("Key", bound=Hashable)


class Shards(Generic[Key]):
    """A large mapping without long pauses: numbers by key, in small dictionaries, each in the order
    of insertion."""

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


SWEEP: Final = 256
"""Keys that one call of `sweep` processes, in about 50 us."""


class BlockIndex:
    """All blocks by key, each with the sources that hold it."""

    def __init__(self) -> None:
        self._holders: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        """Sources by key, sharded by the lowest bits of the key."""
        self._bits = 0
        """Bits in use, including those that `sweep` has not finished with."""
        self._sizes: dict[int, int] = {}
        """The sources with each block size, as bits."""
        self._dropped: list[tuple[int, list[dict[Any, int]]]] = []
        """Bits without a source, with mappings whose values are the keys that still have the
        bit."""

    def __len__(self) -> int:
        """Number of distinct blocks."""
        return sum(map(len, self._holders))

    def match(self, prompt: PromptTokens) -> dict[int, int]:
        """How many of the prompt's tokens each source holds, by its bit: those before the first
        block that it lacks. Sources that hold none are not included."""
        found: dict[int, int] = {}
        holders, bits = self._holders, SHARD_BITS
        for size, sources in self._sizes.items():
            left, depth = sources, 0
            for key in prompt.keys(size):
                still = left & holders[key & bits].get(key, 0)
                if still != left:
                    _note(found, left ^ still, depth)
                    if not still:
                        break
                    left = still
                depth += size
            else:
                _note(found, left, depth)
        return found

    def new_bit(self) -> int:
        """Allocate the lowest free bit."""
        bit = ~self._bits & (self._bits + 1)
        self._bits |= bit
        return bit

    def set_size(self, bit: int, size: int) -> None:
        """Set a source's block size in tokens."""
        self._sizes[size] = self._sizes.get(size, 0) | bit

    def drop(self, bit: int, size: int | None, keys: list[dict[Any, int]]) -> None:
        """Free the bit of a source that has left or was cleared. The values of `keys` are the keys
        of its blocks, from which calls of `sweep` remove it."""
        if size is not None:
            self._sizes[size] &= ~bit
            if not self._sizes[size]:
                del self._sizes[size]
        self._dropped.append((bit, keys))

    def sweep(self) -> bool:
        """Do part of the work that `drop` left. Returns whether there is more."""
        if not self._dropped:
            return False
        bit, left = self._dropped[-1]
        for _ in range(SWEEP):
            while left and not left[-1]:
                left.pop()
            if not left:
                self._dropped.pop()
                self._bits &= ~bit
                break
            self.unset(left[-1].popitem()[1], bit)
        return bool(self._dropped)

    def is_set(self, key: int, bit: int) -> bool:
        """Whether the source holds the block."""
        return bool(self._holders[key & SHARD_BITS].get(key, 0) & bit)

    def set(self, key: int, bit: int) -> None:
        """Add a source to a block."""
        shard = self._holders[key & SHARD_BITS]
        shard[key] = shard.get(key, 0) | bit

    def unset(self, key: int, bit: int) -> None:
        """Remove a source from a block."""
        shard = self._holders[key & SHARD_BITS]
        left = shard.get(key, 0) & ~bit
        if left:
            shard[key] = left
        else:
            shard.pop(key, None)


def _note(found: dict[int, int], sources: int, tokens: int) -> None:
    while sources and tokens:
        bit = sources & -sources
        found[bit] = max(tokens, found.get(bit, 0))
        sources ^= bit
