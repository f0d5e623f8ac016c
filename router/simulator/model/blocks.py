"""KV blocks: who holds which, what is in them, and which prefixes are still there.

A block's content is one number for all tokens up to the end of the block, as attention makes the
keys and values of a token depend on all tokens before it: a hash of them, or a trace's id. (A pool
compares it only with those at the same place of other sequences.) A freed block keeps its content
until it is allocated again, which is why a late read of a lost block can still be right.
"""

from collections.abc import Iterable, Sequence
from zlib import crc32

from router.simulator.model.event_log import Cleared, EventLog, Removed, block_hash
from router.simulator.model.tokenizer import pack


def blocks_for(tokens: int, block_size: int) -> int:
    """How many blocks hold this number of tokens."""
    return -(-tokens // block_size)


def link(tokens: Sequence[int], content: int) -> int:
    """The content of a block, given that of the block before it."""
    return crc32(pack(tokens), content)


def chain(tokens: Sequence[int], block_size: int, salt: int) -> list[int]:
    """The content of each block of a prompt, the last one perhaps partly filled."""
    content, contents = salt, []
    data = pack(tokens)
    for start in range(0, len(data), 4 * block_size):
        content = crc32(data[start : start + 4 * block_size], content)
        contents.append(content)
    return contents


class BlockPool:
    """A fixed number of blocks, numbered from 1: vLLM keeps 0 as the null block."""

    def __init__(
        self, total: int, *, keep_prefixes: bool = True, events: EventLog | None = None
    ) -> None:
        self.total = total
        self.events = events or EventLog()
        self._keep_prefixes = keep_prefixes
        self._holders = [0] * (total + 1)
        self._contents = [0] * (total + 1)
        self._free = dict.fromkeys(range(1, total + 1))  # oldest first
        # A content alone is a 32-bit hash; with the block's place in its sequence a chance
        # collision is out of the question.
        self._prefixes: dict[tuple[int, int], int] = {}
        self._keys: dict[int, tuple[int, int]] = {}
        self._writes = 0

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """The share of blocks in use, 0 to 1."""
        return 1 - len(self._free) / self.total

    def cached(self, contents: Iterable[int]) -> list[int]:
        """The blocks of the longest known prefix; they are not held yet."""
        found: list[int] = []
        for place, content in enumerate(contents):
            block = self._prefixes.get((place, content))
            if block is None:
                break
            found.append(block)
        return found

    def hold(self, blocks: Iterable[int]) -> None:
        """Hold blocks that `cached` found."""
        for block in blocks:
            self._holders[block] += 1
            self._free.pop(block, None)

    def available(self, shared: Sequence[int] = ()) -> int:
        """Blocks that can be taken once `shared` are held."""
        return len(self._free) - sum(not self._holders[block] for block in shared)

    def take(self, count: int) -> list[int]:
        """Take free blocks, the longest unused first. Their contents are gone from now on."""
        taken = []
        for _ in range(count):
            block = next(iter(self._free))
            del self._free[block]
            self._forget(block)
            self._writes += 1
            self._contents[block] = crc32(self._writes.to_bytes(8, "big"))
            self._holders[block] = 1
            taken.append(block)
        return taken

    def fill(self, block: int, place: int, content: int) -> bool:
        """A block is full: it can be found as the prefix of another prompt, unless there is one
        like it. Returns whether it can."""
        self._contents[block] = content
        if not self._keep_prefixes or (place, content) in self._prefixes:
            return False
        self._forget(block)
        self._prefixes[place, content] = block
        self._keys[block] = (place, content)
        return True

    def write(self, block: int, content: int) -> None:
        """Note what is in a block that is not full."""
        self._contents[block] = content

    def read(self, blocks: Iterable[int]) -> list[int]:
        """The current contents of these blocks, whichever sequence holds them. IndexError for an
        unknown block."""
        return [self._contents[block] for block in blocks]

    def release(self, blocks: Sequence[int]) -> None:
        """Stop holding; the tail of a sequence is reused before its head, as in vLLM."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None

    def forget_prefixes(self) -> None:
        self._prefixes.clear()
        self._keys.clear()
        self.events.add(Cleared())

    def _forget(self, block: int) -> None:
        key = self._keys.pop(block, None)
        if key is not None:
            del self._prefixes[key]
            self.events.add(Removed(block_hash(*key)))
