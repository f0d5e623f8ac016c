"""KV blocks: their holders and contents, cached prefixes, and the log of changes.

A block's content is a single number for all tokens up to its end, because keys and values of a
token depend on all tokens before it: a hash of these, or an id in a trace. (A pool compares it only
with blocks at the same position of other sequences.) A freed block keeps its content until it is
allocated again, so a late read of a freed block can still be correct.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from router.simulator.model.language import pack


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


def blocks_for(tokens: int, block_size: int) -> int:
    """Number of blocks for so many tokens."""
    return -(-tokens // block_size)


def link(tokens: Sequence[int], content: int) -> int:
    """The content of a block, from its tokens and the content of the block before it."""
    return crc32(pack(tokens), content)


def chain(tokens: Sequence[int], block_size: int, salt: int) -> list[int]:
    """The content of each block of a prompt; the last one may be partly filled."""
    content, contents = salt, []
    data = pack(tokens)
    for start in range(0, len(data), 4 * block_size):
        content = crc32(data[start : start + 4 * block_size], content)
        contents.append(content)
    return contents


class BlockPool:
    """A fixed number of blocks, numbered from 1 on, because vLLM reserves 0 as the null block."""

    def __init__(
        self, total: int, *, keep_prefixes: bool = True, events: EventLog | None = None
    ) -> None:
        self.total = total
        self.events = events or EventLog()
        self._keep_prefixes = keep_prefixes
        self._holders = [0] * (total + 1)
        self._contents = [0] * (total + 1)
        self._blank = list(range(total, 0, -1))
        """Free blocks that no prompt can find; the last one is taken first."""
        self._free: dict[int, None] = {}
        """The other free blocks, least recently used first."""
        # A content alone is a 32-bit hash. Together with the block's position, collisions are
        # practically impossible.
        self._prefixes: dict[tuple[int, int], int] = {}
        self._copies: dict[tuple[int, int], list[int]] = {}
        """Further blocks with the same key, oldest first."""
        self._keys: dict[int, tuple[int, int]] = {}
        self._writes = 0

    @property
    def free(self) -> int:
        return len(self._blank) + len(self._free)

    @property
    def usage(self) -> float:
        """The share of blocks in use, 0 to 1."""
        return 1 - self.free / self.total

    def cached(self, contents: Iterable[int]) -> list[int]:
        """The blocks of the longest cached prefix; they are not held yet."""
        found: list[int] = []
        for place, content in enumerate(contents):
            block = self._prefixes.get((place, content))
            if block is None:
                break
            found.append(block)
        return found

    def hold(self, blocks: Iterable[int]) -> None:
        """Hold blocks that were returned by `cached`."""
        for block in blocks:
            self._holders[block] += 1
            self._free.pop(block, None)

    def available(self, shared: Sequence[int] = ()) -> int:
        """Number of blocks that can be taken after `shared` are held."""
        return self.free - sum(not self._holders[block] for block in shared)

    def take(self, count: int) -> list[int]:
        """Take free blocks: those that cannot be found, then the least recently used. Their
        contents are lost."""
        taken = []
        for _ in range(count):
            block = self._blank.pop() if self._blank else self._evict()
            self._writes += 1
            self._contents[block] = crc32(self._writes.to_bytes(8, "big"))
            self._holders[block] = 1
            taken.append(block)
        return taken

    def _evict(self) -> int:
        block = next(iter(self._free))
        del self._free[block]
        self._forget(block)
        return block

    def fill(self, block: int, place: int, content: int) -> bool:
        """Note that a block is full, so that it can be found as part of a prefix. An equal block is
        kept beside it, as in vLLM. Returns whether it can be found."""
        self._contents[block] = content
        if not self._keep_prefixes:
            return False
        self._forget(block)
        key = self._keys[block] = (place, content)
        if self._prefixes.setdefault(key, block) != block:
            self._copies.setdefault(key, []).append(block)
        return True

    def write(self, block: int, content: int) -> None:
        """Set the content of a block that is not full."""
        self._contents[block] = content

    def read(self, blocks: Iterable[int]) -> list[int]:
        """The current contents of these blocks, whatever sequence holds them. Raises IndexError for
        an unknown block."""
        return [self._contents[block] for block in blocks]

    def release(self, blocks: Sequence[int]) -> None:
        """Release blocks. The tail of a sequence is reused before its head, as in vLLM, and what
        cannot be found before all others."""
        blank = []
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._keys:
                self._free[block] = None
            else:
                blank.append(block)
        self._blank += reversed(blank)

    def forget_prefixes(self) -> None:
        self._prefixes.clear()
        self._copies.clear()
        self._keys.clear()
        self.events.add(Cleared())

    def _forget(self, block: int) -> None:
        key = self._keys.pop(block, None)
        if key is None:
            return
        copies = self._copies.get(key)
        if copies is None:
            del self._prefixes[key]
        elif self._prefixes[key] == block:
            self._prefixes[key] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            self._copies.pop(key, None)
        self.events.add(Removed(block_hash(*key)))
