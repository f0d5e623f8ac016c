"""What engines hold of a prompt, by their events, against a model that counts every copy."""

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.kv_events import source_blocks
from router.core.kv_events.block_index import BlockIndex
from router.core.kv_events.parsing import BlockHash, BlocksCleared, BlocksRemoved, BlocksStored
from router.core.kv_events.source_blocks import SourceBlocks
from router.core.request_facts import PromptTokens

SIZE = 4


def packed(ids: Sequence[int]) -> bytes:
    """Token ids as events and prompts hold them."""
    return array("I", ids).tobytes()


def prompt(
    ids: Sequence[int], lora: str | None = None, salt: str | None = None, *, is_whole: bool = False
) -> PromptTokens:
    """A prompt that begins with these ids, or has no others."""
    return PromptTokens(packed(ids), len(ids), lora, salt, is_whole=is_whole)


def stored(
    hashes: Sequence[BlockHash],
    ids: Sequence[int],
    parent: BlockHash | None = None,
    size: int = SIZE,
    **fields: Any,
) -> BlocksStored:
    """An event."""
    values = {
        "tier": "GPU", "group": None, "kind": None, "lora": None, "extra_keys": None,
        "is_nameless_lora": False, **fields,
    }  # fmt: skip
    return BlocksStored(hashes, parent, packed(ids), size, **values)


def removed(*hashes: BlockHash, tier: str = "GPU", group: int | None = None) -> BlocksRemoved:
    """An event."""
    return BlocksRemoved(hashes, tier, group)


def held(index: BlockIndex, source: SourceBlocks, asked: PromptTokens) -> int:
    """Tokens of a prompt that the source holds."""
    return index.match(asked).get(source.bit, 0)


IDS = list(range(100, 116))
CHAIN = stored([1, 2, 3, 4], IDS)


@pytest.fixture
def index() -> BlockIndex:
    return BlockIndex()


@pytest.fixture
def source(index: BlockIndex) -> SourceBlocks:
    """A source that holds four blocks."""
    source = SourceBlocks(index)
    source.apply(CHAIN)
    return source


def test_a_prompt_is_cached_up_to_its_first_missing_block(
    index: BlockIndex, source: SourceBlocks
) -> None:
    assert held(index, source, prompt(IDS)) == 16
    assert held(index, source, prompt([*IDS, 1, 2, 3, 4])) == 16
    assert held(index, source, prompt([*IDS[:9], 0, *IDS[10:]])) == 8
    assert held(index, source, prompt([0, *IDS[1:]])) == 0
    assert held(index, source, prompt(IDS[4:])) == 0


def test_the_last_token_is_always_computed(index: BlockIndex, source: SourceBlocks) -> None:
    assert held(index, source, prompt(IDS, is_whole=True)) == 12
    assert held(index, source, prompt([*IDS, 5], is_whole=True)) == 16


def test_sources_are_distinguished(index: BlockIndex, source: SourceBlocks) -> None:
    other, third = SourceBlocks(index), SourceBlocks(index)
    other.apply(stored([b"a", b"b"], IDS[:8]))  # with hashes of its own
    third.apply(stored([1], [9, 9, 9, 9]))
    assert index.match(prompt(IDS)) == {source.bit: 16, other.bit: 8}


def test_engines_are_queried_with_their_own_block_size(
    index: BlockIndex, source: SourceBlocks
) -> None:
    other = SourceBlocks(index)
    other.apply(stored([1], IDS[:8], size=8))
    assert index.match(prompt(IDS)) == {source.bit: 16, other.bit: 8}


def test_a_chain_goes_on_where_its_parent_ends(index: BlockIndex, source: SourceBlocks) -> None:
    source.apply(stored([5], [7, 7, 7, 7], parent=4))
    source.apply(stored([6], [8, 8, 8, 8], parent=2))
    assert held(index, source, prompt([*IDS, 7, 7, 7, 7])) == 20
    assert held(index, source, prompt([*IDS[:8], 8, 8, 8, 8])) == 12


def test_block_behind_unknown_one_is_counted(index: BlockIndex, source: SourceBlocks) -> None:
    source.apply(stored([5, 6], [1] * 8, parent=99))
    assert (source.orphans, source.held) == (2, 4)


def test_a_hole_ends_a_prefix(index: BlockIndex, source: SourceBlocks) -> None:
    source.apply(removed(2))
    assert held(index, source, prompt(IDS)) == 4
    assert source.held == 3


def test_removals_are_counted_per_copy(index: BlockIndex, source: SourceBlocks) -> None:
    source.apply(CHAIN)
    source.apply(CHAIN)
    for expected in (16, 16, 12):
        source.apply(removed(4))
        assert held(index, source, prompt(IDS)) == expected
    source.apply(removed(4, 77))  # of what is not known
    assert held(index, source, prompt(IDS)) == 12


def test_reannounced_blocks_are_evicted_too(index: BlockIndex, source: SourceBlocks) -> None:
    for _ in range(50):
        source.apply(CHAIN)
    for _ in range(source_blocks.MAX_COPIES):
        source.apply(removed(1, 2, 3, 4))
    assert (source.held, len(index)) == (0, 0)


def test_reused_hash_means_its_new_tokens(index: BlockIndex, source: SourceBlocks) -> None:
    source.apply(stored([1], [5, 5, 5, 5]))
    assert held(index, source, prompt(IDS)) == 0
    assert held(index, source, prompt([5, 5, 5, 5])) == 4
    source.apply(removed(1))
    assert held(index, source, prompt([5, 5, 5, 5])) == 0


def test_block_is_held_while_a_tier_has_it(index: BlockIndex, source: SourceBlocks) -> None:
    source.apply(stored([1, 2], [], tier="CPU"))  # known by its hash
    source.apply(stored([3], IDS[8:12], parent=2, tier="CPU"))
    source.apply(removed(1, 2, 3, 4))
    assert held(index, source, prompt(IDS)) == 12
    source.apply(removed(1, tier="CPU"))
    assert held(index, source, prompt(IDS)) == 0
    source.apply(stored([9], [], tier="CPU"))
    assert source.orphans == 1


def test_blocks_in_cpu_memory_do_not_change_the_block_size(
    index: BlockIndex, source: SourceBlocks
) -> None:
    source.apply(stored([5], IDS[:8], size=8, tier="CPU"))
    assert (source.ignored, held(index, source, prompt(IDS))) == (1, 16)
    other = SourceBlocks(index)
    other.apply(stored([5], IDS[:8], size=8, tier="CPU"))
    assert (other.ignored, other.block_size) == (1, None)


def test_a_copy_without_its_extra_keys_is_the_same_block(index: BlockIndex) -> None:
    source = SourceBlocks(index)
    source.apply(stored([5], [1] * 4, extra_keys=[("salt",)]))
    source.apply(stored([5, 6], [1] * 8, tier="CPU"))
    source.apply(removed(5))
    assert held(index, source, prompt([1] * 8, salt="salt")) == 8
    assert held(index, source, prompt([1] * 8)) == 0


def test_a_block_may_have_several_names(index: BlockIndex, source: SourceBlocks) -> None:
    for number in (11, 12):
        source.apply(stored([number], IDS[:4]))
    for number in (1, 11):
        source.apply(removed(number))
        assert held(index, source, prompt(IDS)) == 16
    source.apply(removed(12))
    assert held(index, source, prompt(IDS)) == 0


def test_storage_blocks_belong_to_no_engine(index: BlockIndex, source: SourceBlocks) -> None:
    source.apply(stored([5], [1] * 4, tier="STORAGE"))
    source.apply(removed(1, tier="STORAGE"))
    assert (source.ignored, held(index, source, prompt(IDS))) == (1, 16)


def test_adapters_do_not_share_blocks(index: BlockIndex, source: SourceBlocks) -> None:
    source.apply(stored([5], [1] * 4, lora="sql"))
    source.apply(stored([6], [2] * 4, is_nameless_lora=True))
    assert held(index, source, prompt([1] * 4, lora="sql")) == 4
    assert held(index, source, prompt([1] * 4)) == 0
    assert held(index, source, prompt([2] * 4)) == 0
    assert source.ignored == 1


def test_a_salt_keeps_blocks_apart(index: BlockIndex, source: SourceBlocks) -> None:
    source.apply(stored([5, 6], [1] * 8, extra_keys=[("mine",), None]))
    assert held(index, source, prompt([1] * 8, salt="mine")) == 8
    assert held(index, source, prompt([1] * 8, salt="other")) == 0
    assert held(index, source, prompt([1] * 8)) == 0


@pytest.mark.parametrize(
    ("group", "kind", "is_used"),
    [
        (0, None, True),
        (1, None, False),
        (1, "full_attention", True),
        (0, "sliding_window", False),
        (None, None, True),
    ],
)
def test_only_groups_that_hold_whole_prefixes_are_used(
    index: BlockIndex, group: int | None, kind: str | None, *, is_used: bool
) -> None:
    source = SourceBlocks(index)
    source.apply(stored([1], [1] * 4, group=group, kind=kind))
    assert held(index, source, prompt([1] * 4)) == 4 * is_used
    source.apply(removed(1, group=2))
    assert held(index, source, prompt([1] * 4)) == 4 * is_used
    source.apply(removed(1, group=group))
    assert held(index, source, prompt([1] * 4)) == 0


def test_blocks_without_all_their_tokens_are_skipped(
    index: BlockIndex, source: SourceBlocks
) -> None:
    source.apply(stored([5], [1] * 12))
    assert source.ignored == 1


def test_partial_blocks_are_skipped_and_larger_blocks_count(
    index: BlockIndex, source: SourceBlocks
) -> None:
    source.apply(stored([5], [1, 1], size=2))
    assert (source.ignored, held(index, source, prompt(IDS))) == (1, 16)
    source.apply(stored([6], [3] * 8, size=8))
    assert source.block_size == 8
    assert index.match(prompt([3] * 8)) == {source.bit: 8}
    assert held(index, source, prompt(IDS)) == 0


def test_chain_of_larger_blocks_is_followed_until_removed(index: BlockIndex) -> None:
    source = SourceBlocks(index)
    source.apply(stored([1], IDS[:4], size=4))
    source.apply(stored([5], IDS[:8], size=8))
    source.apply(stored([6], IDS[8:], parent=5, size=8))
    assert (held(index, source, prompt(IDS)), source.held, source.orphans) == (16, 2, 0)
    source.apply(removed(5, 6))
    assert (held(index, source, prompt(IDS)), source.held) == (0, 0)
    source.leave()
    while index.sweep():
        pass
    assert len(index) == 0


def test_a_source_that_leaves_after_its_blocks_grew_leaves_none_behind(index: BlockIndex) -> None:
    source = SourceBlocks(index)
    source.apply(stored([1], IDS[:4], size=4))
    source.apply(stored([5], IDS[:8], size=8))
    source.leave()
    while index.sweep():
        pass
    assert len(index) == 0


def test_a_cleared_cache_holds_nothing_at_once(index: BlockIndex, source: SourceBlocks) -> None:
    source.apply(BlocksCleared())
    assert held(index, source, prompt(IDS)) == 0
    source.apply(stored([1], IDS[:4]))
    assert held(index, source, prompt(IDS)) == 4
    while index.sweep():
        pass
    assert held(index, source, prompt(IDS)) == 4
    assert len(index) == 1


def test_memory_is_bounded_by_engine_capacity(index: BlockIndex, source: SourceBlocks) -> None:
    source.resize(5 * SIZE)
    source.apply(stored([5, 6], [1] * 8))
    assert source.held == 5
    assert held(index, source, prompt(IDS)) == 0  # the oldest went
    assert held(index, source, prompt([1] * 8)) == 8


def test_evicted_block_goes_with_all_copies(index: BlockIndex, source: SourceBlocks) -> None:
    source.apply(CHAIN)  # two copies of each now
    source.resize(3 * SIZE)
    source.apply(stored([5], [1] * 4))
    assert source.held == 3
    source.apply(removed(3, 4))
    source.apply(removed(3, 4))
    assert source.held == 1


def test_blocks_that_are_announced_with_every_use_take_no_more_room(source: SourceBlocks) -> None:
    source.resize(5 * SIZE)
    for _ in range(3):
        source.apply(CHAIN)
    source.apply(stored([5], [1] * 4))
    assert source.held == 5


def test_the_gpu_size_does_not_limit_blocks_in_cpu_memory(
    index: BlockIndex, source: SourceBlocks
) -> None:
    source.resize(2 * SIZE)
    source.apply(stored([1, 2, 3, 4], [], tier="CPU"))
    source.apply(stored([5, 6], [1] * 8))  # the GPU has room for these only
    assert held(index, source, prompt(IDS)) == 16
    assert held(index, source, prompt([1] * 8)) == 8


def test_a_cache_that_turns_out_small_is_forgotten_little_by_little(
    index: BlockIndex, source: SourceBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_blocks, "EVICTIONS", 2)
    source.resize(-SIZE)
    held_after = []
    for number in (5, 6, 7, 8, 9):
        source.apply(stored([number], [number] * 4))
        held_after.append(source.held)
    assert held_after == [3, 2, 1, 0, 0]


def test_a_size_before_its_blocks_is_not_used(index: BlockIndex) -> None:
    source = SourceBlocks(index)
    source.resize(0)
    assert source.limit == source_blocks.MAX_BLOCKS


HASHES = st.integers(1, 12)
ALPHABET = 3
"""So few tokens that chains share blocks."""


class Copies(RuleBasedStateMachine):
    """Events of two sources, whose caches are chains of one-token blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.index = BlockIndex()
        self.sources = [SourceBlocks(self.index), SourceBlocks(self.index)]
        self.copies: list[Counter[int]] = [Counter(), Counter()]
        """By the engine's hash."""
        self.chains: list[dict[int, tuple[int, ...]]] = [{}, {}]
        """The tokens up to the end of each block, by its hash."""

    @rule(which=st.integers(0, 1), data=st.data())
    def store(self, which: int, data: st.DataObject) -> None:
        chains, copies = self.chains[which], self.copies[which]
        parent = data.draw(st.sampled_from([None, *(h for h in chains if copies[h])]))
        before = () if parent is None else chains[parent]
        ids = data.draw(st.lists(st.integers(1, ALPHABET), min_size=1, max_size=3))
        hashes = []
        for place in range(len(ids)):
            whole = (*before, *ids[: place + 1])
            # As a real hash: the same chain has the same one.
            number = next((h for h, chain in chains.items() if chain == whole), len(chains) + 1)
            chains[number] = whole
            copies[number] = min(source_blocks.MAX_COPIES, copies[number] + 1)
            hashes.append(number)
        self.sources[which].apply(stored(hashes, ids, parent, size=1))

    @rule(which=st.integers(0, 1), number=HASHES)
    def remove(self, which: int, number: int) -> None:
        self.copies[which][number] = max(0, self.copies[which][number] - 1)
        self.sources[which].apply(removed(number))

    @rule(which=st.integers(0, 1))
    def clear(self, which: int) -> None:
        self.copies[which].clear()
        self.sources[which].apply(BlocksCleared())

    @rule(which=st.integers(0, 1))
    def leave(self, which: int) -> None:
        self.sources[which].leave()
        self.copies[which].clear()
        self.sources[which] = SourceBlocks(self.index)

    @rule()
    def sweep(self) -> None:
        self.index.sweep()

    @rule()
    def sweep_all(self) -> None:
        while self.index.sweep():
            pass
        bits = [source.bit for source in self.sources]
        chains = zip(self.chains, self.copies, strict=True)
        there = {chain[h] for chain, copies in chains for h, count in copies.items() if count}
        assert self.index._bits == sum(bits), "those that are swept are free again"
        assert len(self.index) == len(there), "blocks that nobody holds are gone"

    @invariant()
    def the_counts_are_right(self) -> None:
        for source, copies in zip(self.sources, self.copies, strict=True):
            assert source.held == sum(count > 0 for count in copies.values())

    @rule(ids=st.lists(st.integers(1, ALPHABET), max_size=6))
    def ask(self, ids: list[int]) -> None:
        match = self.index.match(prompt(ids))
        for source, copies, chains in zip(self.sources, self.copies, self.chains, strict=True):
            there = {chains[h] for h, count in copies.items() if count}
            depth = 0
            while depth < len(ids) and tuple(ids[: depth + 1]) in there:
                depth += 1
            assert match.get(source.bit, 0) == depth


TestCopies = Copies.TestCase
