"""The index of all sources: whose bits are set, and how those of sources that have gone are swept
away. What it finds is tested with the sources, in test_blocks.py."""

import pytest

from router.core.prefix import block_index
from router.core.prefix.block_index import BlockIndex
from router.core.prefix.blocks import SourceBlocks
from tests.core.prefix.test_blocks import CHAIN, IDS, prompt


def test_every_source_has_a_bit_of_its_own() -> None:
    index = BlockIndex()
    assert [index.new_bit() for _ in range(4)] == [1, 2, 4, 8]


def test_a_block_is_there_as_long_as_somebody_holds_it() -> None:
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


def test_what_is_swept_away_gives_its_bit_back(monkeypatch: pytest.MonkeyPatch) -> None:
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
