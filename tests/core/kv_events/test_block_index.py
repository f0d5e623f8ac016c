"""The index of all sources: set bits, and the sweep of removed sources. Lookups are tested with the
sources, in test_blocks.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.kv_events import block_index
from router.core.kv_events.block_index import SHARDS, BlockIndex, Shards
from router.core.kv_events.source_blocks import SourceBlocks
from tests.core.kv_events.test_source_blocks import CHAIN, IDS, prompt


def test_every_source_has_a_bit_of_its_own() -> None:
    index = BlockIndex()
    assert [index.new_bit() for _ in range(4)] == [1, 2, 4, 8]


def test_a_block_exists_while_a_sequence_holds_it() -> None:
    index = BlockIndex()
    index.set(7, 1)
    index.set(7, 4)
    index.unset(7, 1)
    assert index.is_set(7, 4)
    assert not index.is_set(7, 1)
    index.unset(7, 4)
    index.unset(7, 4)
    assert len(index) == 0


def test_sources_of_one_size_share_a_walk() -> None:
    index = BlockIndex()
    sources = [SourceBlocks(index) for _ in range(3)]
    for source in sources[:2]:
        source.apply(CHAIN)
    assert index.match(prompt(IDS)) == {sources[0].bit: 16, sources[1].bit: 16}
    sources[0].leave()
    assert index.match(prompt(IDS)) == {sources[1].bit: 16}
    sources[1].leave()
    assert index.match(prompt(IDS)) == {}


def test_a_swept_engine_frees_its_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_index, "SWEEP", 2)
    index = BlockIndex()
    source = SourceBlocks(index)
    source.apply(CHAIN)
    bit = source.bit
    source.leave()
    assert index.sweep()  # the source's last bit, which had no keys
    sweeps = 0
    while index.sweep():
        sweeps += 1
    assert sweeps >= 2
    assert len(index) == 0
    assert not index.sweep()
    assert SourceBlocks(index).bit == bit


KEYS = st.integers(-(1 << 63), (1 << 64) - 1) | st.binary(max_size=32)


@given(st.dictionaries(KEYS, st.integers(), max_size=50))
def test_stored_values_are_found(entries: dict[int | bytes, int]) -> None:
    shards: Shards[int | bytes] = Shards()
    for key, value in entries.items():
        shards.of(key)[key] = value
    assert all(shards.of(key)[key] == value for key, value in entries.items())
    assert dict(shards.pop_old() for _ in entries) == entries
    with pytest.raises(KeyError):
        shards.pop_old()


def test_no_dictionary_gets_large() -> None:
    shards: Shards[int] = Shards()
    for number in range(100 * SHARDS):
        key = hash((number, "block"))
        shards.of(key)[key] = number
    assert max(map(len, shards.dicts)) < 200


def test_the_oldest_blocks_are_evicted_first() -> None:
    shards: Shards[int] = Shards()
    count = 8 * SHARDS
    for number in range(count):
        shards.of(number)[number] = number
    gone = {shards.pop_old()[0] for _ in range(count // 2)}
    assert gone == set(range(count // 2))
