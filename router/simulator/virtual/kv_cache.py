"""A modelled engine's KV cache: room for sequences and, if it has blocks, cached prefixes.

Room for a whole sequence, prompt and answer, is reserved when it is admitted, so nothing is
preempted.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from router.simulator.model.blocks import BlockPool, blocks_for
from router.simulator.virtual.requests import Attempt
from router.simulator.virtual.values import EngineModel


class KvCache(Protocol):
    """The KV cache as an engine uses it."""

    queries: int
    """Prompt tokens that were looked up, as vllm:prefix_cache_queries counts them."""
    hits: int
    """Prompt tokens that were found, as vllm:prefix_cache_hits counts them."""

    @property
    def usage(self) -> float:
        """The share that sequences hold, 0 to 1."""

    def cached(self, prompt: int, contents: tuple[int, ...]) -> int:
        """Tokens of such a prompt that are cached now."""

    def whole_blocks(self, prompt: int, blocks: int) -> int:
        """Tokens in so many blocks of a prompt; the last token is always computed."""

    def place(self, attempt: Attempt) -> bool:
        """Reserve room for a sequence and set what is cached. Returns False, without changes, if it
        is full."""

    def fill(self, attempt: Attempt, computed: int) -> None:
        """Note that `computed` tokens of a sequence are computed; its full blocks can be shared."""

    def free(self, attempt: Attempt) -> None:
        """Free a sequence's room."""

    def clear(self) -> None:
        """Remove everything; the counters continue."""


def common_blocks(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of blocks that two sequences have in common. If blocks are equal, all before them are
    too."""
    shorter = min(len(one), len(other))
    return bisect_left(range(shorter), 1, key=lambda place: one[place] != other[place])


def make_kv_cache(model: EngineModel) -> KvCache:
    """Create the KV cache of such an engine."""
    return BlockCache(model.kv_tokens, model.block_size) if model.block_size else TokenCount(model)


class TokenCount:
    """Counts tokens, without blocks or sharing."""

    def __init__(self, model: EngineModel) -> None:
        self.queries = self.hits = 0
        self._total = model.kv_tokens
        self._held = 0

    @property
    def usage(self) -> float:
        return self._held / self._total

    def cached(self, _prompt: int, _contents: tuple[int, ...]) -> int:
        return 0

    def whole_blocks(self, _prompt: int, _blocks: int) -> int:
        return 0

    def place(self, attempt: Attempt) -> bool:
        tokens = attempt.prompt + attempt.output
        if self._held + tokens > self._total:
            return False
        self._held += tokens
        return True

    def fill(self, attempt: Attempt, computed: int) -> None:
        """Nothing is cached."""

    def free(self, attempt: Attempt) -> None:
        self._held -= attempt.prompt + attempt.output

    def clear(self) -> None:
        self._held = 0


class BlockCache:
    """Blocks with vLLM's prefix cache: the least recently used are evicted first, the tail of a
    sequence before its head."""

    def __init__(self, tokens: int, block_size: int) -> None:
        self.queries = self.hits = 0
        self._size = block_size
        self._total = tokens // block_size
        self._pool = BlockPool(self._total)
        self._reserved = 0
        """Free blocks for answers."""

    @property
    def usage(self) -> float:
        return self._pool.usage + self._reserved / self._total

    def cached(self, prompt: int, contents: tuple[int, ...]) -> int:
        return len(self._prefix(prompt, contents)) * self._size

    def _prefix(self, prompt: int, contents: tuple[int, ...]) -> list[int]:
        return self._pool.cached(contents[: (prompt - 1) // self._size])

    def whole_blocks(self, prompt: int, blocks: int) -> int:
        return min(blocks, (prompt - 1) // self._size) * self._size

    def place(self, attempt: Attempt) -> bool:
        """Hold the cached prefix, take blocks for the rest of the prompt, reserve the others."""
        shared = self._prefix(attempt.prompt, attempt.contents)
        fresh = blocks_for(attempt.prompt, self._size) - len(shared)
        later = self._blocks(attempt) - len(shared) - fresh
        if fresh + later > self._pool.available(shared) - self._reserved:
            return False
        self._pool.hold(shared)
        attempt.blocks = shared + self._pool.take(fresh)
        self._reserved += later
        attempt.filled = len(shared)
        attempt.cached = len(shared) * self._size
        self.queries += attempt.prompt
        self.hits += attempt.cached
        return True

    def fill(self, attempt: Attempt, computed: int) -> None:
        """Take blocks for what is computed of the answer, and set the contents of full ones."""
        if (more := blocks_for(computed, self._size) - len(attempt.blocks)) > 0:
            attempt.blocks += self._pool.take(more)
            self._reserved -= more
        full = min(computed // self._size, len(attempt.contents))
        for place in range(attempt.filled, full):
            self._pool.fill(attempt.blocks[place], place, attempt.contents[place])
        attempt.filled = max(attempt.filled, full)

    def free(self, attempt: Attempt) -> None:
        # Their contents stay until they are reused.
        self._reserved -= self._blocks(attempt) - len(attempt.blocks)
        self._pool.release(attempt.blocks)
        attempt.blocks = []

    def _blocks(self, attempt: Attempt) -> int:
        """Blocks for a whole sequence but its last token, which is never computed."""
        return blocks_for(attempt.prompt + attempt.output - 1, self._size)

    def clear(self) -> None:
        self._pool = BlockPool(self._total)
        self._reserved = 0
