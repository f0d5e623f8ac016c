"""An engine's KV cache: blocks of sequences, blocks kept for other engines, and blocks loaded from
elsewhere."""

from typing import Any, Final

from router.core.fleet.pairs import release
from router.simulator.config import EngineConfig
from router.simulator.model.blocks import BlockPool, blocks_for, link
from router.simulator.model.event_log import EventLog
from router.simulator.model.external import ExternalCache
from router.simulator.model.references import References
from router.simulator.model.sequence import Sequence

TELLS_CACHED_FROM: Final = (0, 32)
"""The first vLLM whose prefill engines tell decode engines how much of a prompt was cached."""


class KvCache:
    """Allocates blocks for sequences and frees them. Pure; time is an argument."""

    def __init__(self, config: EngineConfig, engine_id: str) -> None:
        self._size = config.block_size
        self._extra = config.kv_params_extra
        self._tells_cached = release(config.version) >= TELLS_CACHED_FROM
        self.events = EventLog(is_on=config.kv_events)
        self.pool = BlockPool(
            config.total_blocks, keep_prefixes=config.prefix_caching, events=self.events
        )
        self.references = References(self.pool, engine_id, config.kv_lease_s)
        self.external = ExternalCache()

    def place(self, sequence: Sequence) -> bool:
        """Allocate blocks for all tokens of a sequence, including its cached prefix.

        Returns False, without changes, if there are too few blocks.
        """
        most = (len(sequence.tokens) - 1) // self._size  # the last token is always computed
        shared = self.pool.cached(sequence.contents[:most])
        fresh = blocks_for(len(sequence.tokens), self._size) - len(shared)
        if fresh > self.pool.available(shared):
            return False
        self.pool.hold(shared)
        sequence.blocks = shared + self.pool.take(fresh)
        sequence.filled, sequence.computed = len(shared), len(shared) * self._size
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Allocate blocks for new tokens. Returns False if no block is free."""
        needed = blocks_for(len(sequence.tokens), self._size) - len(sequence.blocks)
        if needed > self.pool.free:
            return False
        if needed > 0:
            sequence.blocks += self.pool.take(needed)
        return True

    def fill(self, sequence: Sequence, computed: int) -> None:
        """Note that `computed` tokens are computed. Full blocks can be shared with other prompts
        from now on."""
        full = computed // self._size
        if not sequence.sound or full <= sequence.filled:
            return
        first, is_known = sequence.filled, False
        for place in range(sequence.filled, full):
            if place == len(sequence.contents):
                before = sequence.contents[-1] if place else sequence.prompt.salt
                block = sequence.tokens[place * self._size : (place + 1) * self._size]
                sequence.contents.append(link(block, before))
            is_known = self.pool.fill(sequence.blocks[place], place, sequence.contents[place])
        sequence.filled = full
        if is_known and self.events.is_on:
            tokens = sequence.tokens[first * self._size : full * self._size]
            places = range(first, full)
            self.events.stored(places, sequence.contents, tokens, sequence.prompt.owner)

    def drop(self, sequence: Sequence) -> None:
        """Free all blocks of a sequence."""
        self.pool.release(sequence.blocks)
        sequence.blocks, sequence.computed, sequence.filled = [], 0, 0

    def keep(self, sequence: Sequence, now: float) -> None:
        """Keep the prompt's blocks for the decode engine that will get the reference."""
        prompt = sequence.prompt
        blocks = sequence.blocks[: len(prompt.contents)]
        self.pool.release(sequence.blocks[len(blocks) :])
        sequence.blocks = []
        for block, content in zip(blocks, prompt.contents, strict=True):
            self.pool.write(block, content)
        told: dict[str, Any] = {"remote_num_tokens": len(prompt)}
        if self._tells_cached:
            told["remote_prefill_cached_tokens"] = sequence.cached
        told |= self._extra
        sequence.kv_params = self.references.issue(sequence.request_id, blocks, told, now)

    def lacking(self, sequence: Sequence) -> list[int]:
        """Contents of the prompt's blocks that are not computed here."""
        return sequence.prompt.contents[sequence.cached // self._size :]

    def take_external(self, sequence: Sequence) -> None:
        """Use the part of the prompt that other engines have pushed."""
        found = self.external.longest(sequence.prompt) - sequence.computed
        if found > 0:
            sequence.external = found
            sequence.computed += found
