"""The blocks announced by one source of KV-cache events: an engine, or one data-parallel rank.

Engines identify blocks by hashes of their own, which are only compared here. A block's key follows
from its token ids and the previous block. Copies are counted, because vLLM announces the removal of
each copy.
"""

from itertools import chain, repeat
from struct import iter_unpack
from typing import Final

from router.core.kv_events.block_index import BlockIndex, Shards
from router.core.kv_events.parsing import GPU, BlockHash, BlocksRemoved, BlocksStored, KVEvent
from router.core.request_facts import ID_BYTES, root_key

__all__ = ["MAX_BLOCKS", "SourceBlocks"]

MAX_BLOCKS: Final = 1 << 18
"""Most blocks of a source that are kept per tier, whatever cache size it reports: 4 million tokens
in blocks of 16, which take about 60 MB."""

EVICTIONS: Final = 512
"""Most blocks that are evicted at a time: at most twice as many as are added."""

MAX_COPIES: Final = 4
"""Most copies of a block that are counted. Engines may announce a block again each time it is used
(kv_cache_report_mode "full") but its removal only once."""

MAIN_KINDS: Final = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV-cache groups of a hybrid model whose blocks hold all tokens of a prefix; other groups
hold only some."""

TIERS: Final = (GPU, "CPU")
"""Tiers whose blocks are as good as computed. Blocks in STORAGE can be loaded by other engines too,
and take longer, so they say nothing about one engine."""


CopyId = BlockHash | tuple[int, BlockHash]
"""An engine's hash of a block; with the group if there are several."""


class _Tier:
    """The blocks in one tier of memory."""

    __slots__ = ("blocks", "keys", "more")

    def __init__(self) -> None:
        self.keys: Shards[CopyId] = Shards()
        self.more: Shards[CopyId] = Shards()
        """Number of copies beyond the first."""
        self.blocks = 0
        """Number of keys."""


class SourceBlocks:
    """The blocks of one source: an engine, or one data-parallel rank."""

    def __init__(self, index: BlockIndex) -> None:
        self._index = index
        self.bit = index.new_bit()
        self.block_size: int | None = None
        """Tokens per block; None before the first event."""
        self.limit = MAX_BLOCKS
        """Number of blocks that fit into its GPU memory. Engines do not report the size of their
        CPU cache."""
        self.held = 0
        """Number of distinct blocks."""
        self.orphans = 0
        """Blocks that could not be placed because their predecessor is unknown."""
        self.ignored = 0
        """Blocks of other tiers, groups and sizes, and of adapters without a name."""
        self._tiers = {tier: _Tier() for tier in TIERS}
        self._again: Shards[int] = Shards()
        """For keys that have several hashes, in one tier or several: the number beyond one."""

    def apply(self, event: KVEvent) -> None:
        """Update from an event."""
        if isinstance(event, BlocksStored):
            self._stored(event)
        elif isinstance(event, BlocksRemoved):
            self._removed(event)
        else:
            self.clear()

    def clear(self) -> None:
        """Remove all blocks. A new bit makes this immediate; the old bit is swept later."""
        if self.block_size is None:
            return
        old = chain.from_iterable(tier.keys.dicts for tier in self._tiers.values())
        self._index.drop(self.bit, self.block_size, list(old))
        self.bit, self.block_size, self.held = self._index.new_bit(), None, 0
        self._tiers = {tier: _Tier() for tier in TIERS}
        self._again = Shards()

    def leave(self) -> None:
        """Remove all blocks and free the bit: the source has left."""
        self.clear()
        self._index.drop(self.bit, None, [])

    def resize(self, tokens: int) -> None:
        """Set the size of the engine's GPU cache in tokens."""
        if self.block_size is not None:
            self.limit = max(0, min(MAX_BLOCKS, tokens // self.block_size))

    def _stored(self, event: BlocksStored) -> None:
        tier = self._tiers.get(event.tier)
        if tier is None or event.is_nameless_lora or not _is_main(event):
            self.ignored += len(event.hashes)
        elif not event.tokens:
            self._copied(event, tier)
        elif self._fits(event):
            self._add_chain(event, self._tiers[event.tier])  # `_fits` may have replaced them
        else:
            self.ignored += len(event.hashes)

    def _fits(self, event: BlocksStored) -> bool:
        """Whether an event is about whole blocks, whose size the GPU's events determine. Smaller
        ones are parts that vLLM caches for some hybrid models; if larger ones arrive, the previous
        ones were such parts, and are dropped."""
        if len(event.tokens) != ID_BYTES * event.block_size * len(event.hashes):
            return False
        if event.tier == GPU and event.block_size > (self.block_size or 0):
            self.clear()
            self.block_size = event.block_size
            self._index.set_size(self.bit, event.block_size)
        return event.block_size == self.block_size

    def _add_chain(self, event: BlocksStored, tier: _Tier) -> None:
        if event.parent is None:
            key: int | None = root_key(event.lora)
        else:
            key = self._key_of(event.parent, event.group, tier)
        if key is None:
            self.orphans += len(event.hashes)
            return
        extra = event.extra_keys or repeat(None)
        pieces = iter_unpack(f"{ID_BYTES * event.block_size}s", event.tokens)
        for each, (ids,), keys in zip(event.hashes, pieces, extra, strict=False):
            # Events of other tiers may lack the extra keys of a block.
            known = None if event.tier == GPU else self._key_of(each, event.group, tier)
            if known is not None:
                key = known
            else:
                key = hash((key, ids)) if keys is None else hash((key, ids, keys))
            self._add(tier, _copy_id(each, event.group), key)
        self._evict(tier)

    def _copied(self, event: BlocksStored, tier: _Tier) -> None:
        """Add blocks without token ids, which are copies of blocks in another tier."""
        for each in event.hashes:
            key = self._key_of(each, event.group, tier)
            if key is None:
                self.orphans += 1
            else:
                self._add(tier, _copy_id(each, event.group), key)
        self._evict(tier)

    def _key_of(self, each: BlockHash, group: int | None, tier: _Tier) -> int | None:
        copy = _copy_id(each, group)
        for place in (tier, *self._tiers.values()):
            key = place.keys.of(copy).get(copy)
            if key is not None:
                return key
        return None

    def _add(self, tier: _Tier, copy: CopyId, key: int) -> None:
        keys = tier.keys.of(copy)
        before = keys.pop(copy, None)
        if before == key:
            more = tier.more.of(copy)
            if more.get(copy, 0) < MAX_COPIES - 1:
                more[copy] = more.get(copy, 0) + 1
        else:
            if before is None:
                tier.blocks += 1
            else:  # a removal was missed
                tier.more.of(copy).pop(copy, None)
                self._release(before)
            self._hold(key)
        keys[copy] = key

    def _removed(self, event: BlocksRemoved) -> None:
        tier = self._tiers.get(event.tier)
        if tier is None:
            return
        for each in event.hashes:
            copy = _copy_id(each, event.group)
            keys = tier.keys.of(copy)
            key = keys.get(copy)
            if key is None:
                continue
            copies = tier.more.of(copy)
            more = copies.pop(copy, 0)
            if more > 1:
                copies[copy] = more - 1
            elif not more:
                del keys[copy]
                tier.blocks -= 1
                self._release(key)

    def _evict(self, tier: _Tier) -> None:
        """Evict blocks beyond the cache's size, which are left because removals were missed. Only a
        few per event, since there may be many."""
        limit = self.limit if tier is self._tiers[GPU] else MAX_BLOCKS
        for _ in range(min(EVICTIONS, tier.blocks - limit)):
            copy, key = tier.keys.pop_old()
            tier.blocks -= 1
            tier.more.of(copy).pop(copy, None)
            self._release(key)

    def _hold(self, key: int) -> None:
        if self._index.is_set(key, self.bit):
            again = self._again.of(key)
            again[key] = again.get(key, 0) + 1
        else:
            self._index.set(key, self.bit)
            self.held += 1

    def _release(self, key: int) -> None:
        again = self._again.of(key)
        more = again.pop(key, 0)
        if more > 1:
            again[key] = more - 1
        elif not more:
            self._index.unset(key, self.bit)
            self.held -= 1


def _copy_id(each: BlockHash, group: int | None) -> CopyId:
    return (group, each) if group else each


def _is_main(event: BlocksStored) -> bool:
    """Whether the blocks hold all tokens of a prefix. Some versions of vLLM number groups without
    their kind; then the first is the main one."""
    if event.kind is not None:
        return event.kind in MAIN_KINDS
    return not event.group
