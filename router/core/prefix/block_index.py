"""Which engines hold which blocks of token ids, one bit per source of KV-cache events.

A block's key is the same for all engines: a hash of its token ids and of the key of the block
before it, so that a prompt's keys can be computed without knowing how an engine hashes. One walk
along a prompt then finds how much of it each of a hundred engines holds.
"""

from typing import Any, Final

from router.core.prefix.prompt_tokens import PromptTokens
from router.core.prefix.shards import SHARD_BITS, SHARDS

__all__ = ["BlockIndex"]

SWEEP: Final = 256
"""Keys that one call of `sweep` looks at: some 50 us."""


class BlockIndex:
    """The keys of all blocks, with the sources that hold each, one bit per source."""

    def __init__(self) -> None:
        self._holders: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        """By the lowest bits of the key."""
        self._bits = 0
        """The bits in use, and those that `sweep` has not finished with."""
        self._sizes: dict[int, int] = {}
        """Bits of sources, by the size of their blocks."""
        self._dropped: list[tuple[int, list[dict[Any, int]]]] = []
        """Bits without a source, and the keys that still have them, as values."""

    def __len__(self) -> int:
        """Number of distinct blocks."""
        return sum(map(len, self._holders))

    def match(self, prompt: PromptTokens) -> dict[int, int]:
        """How many of the prompt's tokens each source holds, by its bit: from the first token to
        the first block that it lacks. Sources that hold nothing are not named."""
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
        """The lowest that is free."""
        bit = ~self._bits & (self._bits + 1)
        self._bits |= bit
        return bit

    def set_size(self, bit: int, size: int) -> None:
        """The source's blocks have this many tokens."""
        self._sizes[size] = self._sizes.get(size, 0) | bit

    def drop(self, bit: int, size: int | None, keys: list[dict[Any, int]]) -> None:
        """The source has gone, or holds nothing any more. Its keys, the values of these, go in
        calls of `sweep`."""
        if size is not None:
            self._sizes[size] &= ~bit
            if not self._sizes[size]:
                del self._sizes[size]
        self._dropped.append((bit, keys))

    def sweep(self) -> bool:
        """Do some of what `drop` left to be done. Returns whether there is more."""
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
        """The source holds the block."""
        shard = self._holders[key & SHARD_BITS]
        shard[key] = shard.get(key, 0) | bit

    def unset(self, key: int, bit: int) -> None:
        """The source does not hold the block any more."""
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
