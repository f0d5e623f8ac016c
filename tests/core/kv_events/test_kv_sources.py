"""When an engine's events are relied on, and when not."""

from dataclasses import replace

import msgpack
import pytest

from router.core.kv_events import kv_sources
from router.core.kv_events.block_index import BlockIndex
from router.core.kv_events.kv_sources import BLIND_TOKENS, EngineCache, KVSource, SourceState
from router.core.values import Gauges
from tests.core.kv_events.test_source_blocks import CHAIN, IDS, prompt

V0_32_STORED = (
    "93cb3ff0000000000000928aa474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739107b17061"
    "72656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72"
    "615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0a967726f75705f69647800b26b765f6361636865"
    "5f737065635f6b696e64ae66756c6c5f617474656e74696f6e89a474797065ab426c6f636b53746f726564ac626c6f"
    "636b5f6861736865739107b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647390aa626c6f636b"
    "5f73697a6500a76c6f72615f6964c0a66d656469756da3435055a96c6f72615f6e616d65c0a967726f75705f696478"
    "0000"
)
"""A block stored on the GPU, then by OffloadingConnector in CPU memory, as vLLM 0.32 encodes it."""

V0_32_REMOVED = (
    "93cb3ff00000000000009184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739107a66d"
    "656469756da3435055a967726f75705f6964780000"
)
"""The removal of that block from CPU memory."""


def source_of(index: BlockIndex, *, can_replay: bool = True) -> KVSource:
    """A source that is connected, with four blocks of four tokens."""
    source = KVSource(index, "tcp://d0:5557", can_replay=can_replay)
    source.is_connected = True
    source.stream.connected()
    source.stream.replay_ended()
    source.blocks.apply(CHAIN)
    source.batches = 1
    return source


@pytest.fixture
def index() -> BlockIndex:
    return BlockIndex()


@pytest.fixture
def source(index: BlockIndex) -> KVSource:
    return source_of(index)


@pytest.fixture
def cache(source: KVSource) -> EngineCache:
    cache = EngineCache()
    cache.replace([source])
    return cache


def held(cache: EngineCache, index: BlockIndex) -> int | None:
    """Its result for a prompt that the source holds."""
    return cache.held(index.match(prompt(IDS)))


def computed(tokens: int) -> Gauges:
    """Gauges of an engine that has computed so many prompt tokens."""
    return Gauges(cache_tokens=1024, cache_queries=tokens + 50, cache_hits=50)


def test_a_live_source_is_relied_on(cache: EngineCache, index: BlockIndex) -> None:
    assert (cache.state, held(cache, index)) == (SourceState.LIVE, 16)
    assert cache.is_whole
    assert cache.held({}) == 0


def test_a_batch_is_applied_in_pieces_and_its_form_is_kept(index: BlockIndex) -> None:
    source = KVSource(index, "tcp://d0:5557", can_replay=False)
    stored = {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": None,
        "token_ids": list(range(8)),
        "block_size": 4,
    }
    maps = msgpack.packb([1.5, [stored, {"type": "Unknown"}], 0])
    assert len(list(source.pieces(msgpack, maps))) == 2
    assert (source.events, source.form, source.blocks.held) == (1, "maps", 2)
    arrays = msgpack.packb([1.5, [["BlockRemoved", [2], "GPU"]], 0])
    assert len(list(source.pieces(msgpack, arrays))) == 1
    assert (source.events, source.form, source.blocks.held) == (2, "arrays", 1)


@pytest.mark.parametrize("media", [(b"CPU", b"GPU"), (b"GPU", b"CPU")])
def test_an_offloaded_block_is_held_until_both_copies_are_removed(
    index: BlockIndex, media: tuple[bytes, bytes]
) -> None:
    source = KVSource(index, "tcp://d0:5557", can_replay=False)

    def held_after(payload: bytes) -> int:
        list(source.pieces(msgpack, payload))
        return index.match(prompt([1, 2, 3, 4])).get(source.blocks.bit, 0)

    removals = [bytes.fromhex(V0_32_REMOVED).replace(b"CPU", medium) for medium in media]
    assert [held_after(each) for each in (bytes.fromhex(V0_32_STORED), *removals)] == [4, 4, 0]
    assert (source.events, source.blocks.orphans, source.blocks.ignored) == (4, 0, 0)


def test_a_long_batch_yields_between_its_events(index: BlockIndex) -> None:
    source = KVSource(index, "tcp://d0:5557", can_replay=False)
    long = msgpack.packb([1.5, [{"type": "AllBlocksCleared", "more": "x" * 20_000}], 0])
    assert len(list(source.pieces(msgpack, long))) > 1
    assert source.events == 1


def test_without_sources_there_is_no_message(index: BlockIndex) -> None:
    cache = EngineCache()
    assert (cache.state, held(cache, index)) == (None, None)
    cache.observe(computed(1 << 20))
    cache.observe(computed(1 << 21))
    assert not cache.is_blind


def test_a_disconnected_source_is_not_used(
    cache: EngineCache, source: KVSource, index: BlockIndex
) -> None:
    source.stream.connected()
    assert (cache.state, held(cache, index)) == (SourceState.REPLAYING, None)
    source.stream.replay_ended()
    source.error = "no msgpack"
    assert (cache.state, held(cache, index)) == (SourceState.UNREADABLE, None)
    source.is_connected = False
    assert (cache.state, held(cache, index)) == (SourceState.CONNECTING, None)


def test_of_several_ranks_the_one_that_holds_most_counts(index: BlockIndex) -> None:
    one, other = source_of(index), source_of(index)
    one.blocks.apply(CHAIN._replace(hashes=[9], parent=4, tokens=CHAIN.tokens[:16]))
    cache = EngineCache()
    cache.replace([other, one])
    longer = prompt([*IDS, *IDS[:4]])
    assert cache.held(index.match(longer)) == 20


def test_an_engine_that_computes_and_announces_nothing_is_blind(
    cache: EngineCache, source: KVSource, index: BlockIndex
) -> None:
    cache.observe(computed(0))
    cache.observe(computed(BLIND_TOKENS))
    assert cache.state is SourceState.LIVE
    cache.observe(computed(BLIND_TOKENS + 1))
    assert (cache.state, held(cache, index)) == (SourceState.BLIND, None)
    source.batches += 1
    cache.observe(computed(BLIND_TOKENS + 2))
    assert cache.state is SourceState.LIVE


def test_the_last_block_of_a_prompt_is_computed_and_never_announced(cache: EngineCache) -> None:
    """Prompts that lie there whole but for ten tokens of a block of 16, and one that does not."""
    cache.observe(replace(computed(0), block_tokens=16, finished=0, running=0))
    cache.observe(replace(computed(10_000), block_tokens=16, finished=900, running=100))
    assert cache.state is SourceState.LIVE
    cache.observe(replace(computed(30_000), block_tokens=16, finished=1_001, running=0))
    assert cache.is_blind


def test_requests_with_an_uncounted_end_count_against_no_engine(cache: EngineCache) -> None:
    """vLLM need not count a request whose client has gone."""
    cache.observe(replace(computed(0), block_tokens=16, finished=0, running=1_000))
    cache.observe(replace(computed(BLIND_TOKENS), block_tokens=16, finished=0, running=0))
    assert cache.state is SourceState.LIVE


def test_reset_or_missing_counters_count_against_no_engine(cache: EngineCache) -> None:
    cache.observe(computed(1 << 20))
    cache.observe(computed(0))
    cache.observe(computed(BLIND_TOKENS))
    assert cache.state is SourceState.LIVE
    cache.observe(computed(3 * BLIND_TOKENS))
    cache.observe(Gauges())
    assert cache.state is SourceState.LIVE


def test_the_cache_has_the_reported_size(cache: EngineCache, source: KVSource) -> None:
    cache.observe(computed(0))
    assert source.blocks.limit == 256


def test_predictions_that_come_true_are_believed(cache: EngineCache) -> None:
    for _ in range(10):
        cache.measure(1_000, 900)
    assert cache.share == pytest.approx(0.9)
    assert not cache.is_wrong
    assert cache.is_believed
    assert (cache.predicted, cache.measured) == (10_000, 9_000)


def test_source_with_false_predictions_is_wrong(cache: EngineCache, index: BlockIndex) -> None:
    cache.measure(1_000, 0)
    assert (cache.share, cache.is_wrong) == (None, False)  # one is silent
    for _ in range(9):
        cache.measure(1_000, 400)
    assert cache.is_wrong
    assert not cache.is_believed
    assert cache.state == SourceState.WRONG
    assert held(cache, index) == 16  # it is still measured
    for _ in range(60):
        cache.measure(1_000, 1_000)
    assert not cache.is_wrong


def test_more_than_was_predicted_makes_up_for_nothing(cache: EngineCache) -> None:
    cache.measure(5_000, 0)
    cache.measure(0, 5_000)
    assert cache.share == 0.0


def test_a_new_engine_is_not_blamed_for_the_old_one(cache: EngineCache) -> None:
    cache.measure(int(2 * kv_sources.MIN_TOKENS), 0)
    assert cache.is_wrong
    cache.reset()
    assert (cache.is_wrong, cache.measured, cache.predicted) == (False, 0, 8_000)


def test_sources_that_are_replaced_give_their_blocks_back(
    cache: EngineCache, source: KVSource, index: BlockIndex
) -> None:
    cache.replace(())
    assert (cache.state, source.is_connected) == (None, False)
    while index.sweep():
        pass
    assert len(index) == 0


def test_a_part_that_is_all_there_is_confirmed(cache: EngineCache) -> None:
    assert cache.confirms(prompt(range(19)), 16)
    assert not cache.confirms(prompt(range(20)), 16)
    assert not cache.confirms(prompt(range(17), is_whole=True), 16)
