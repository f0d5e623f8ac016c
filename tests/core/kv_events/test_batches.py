"""A message of KV-cache events is read as msgpack reads it whole, and never much of it at once."""

import contextlib
from array import array
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.kv_events import batches, parsing
from router.core.kv_events.batches import FEED_BYTES, SHORT_BYTES, read_batch
from router.core.kv_events.parsing import BadBatch, KVEvent, read_event

MEGABYTE = 1 << 20


def events_in(payload: bytes) -> list[KVEvent]:
    """All events of a message."""
    raws = [raw for raw in read_batch(msgpack, payload) if raw is not None]
    return [event for raw in raws for event in read_event(raw)]


def stored(blocks: int, size: int = 16, **more: Any) -> dict[str, Any]:
    """A chain of so many blocks, in the order of vLLM's fields."""
    return {
        "type": "BlockStored",
        "block_hashes": [(1 << 63) + place for place in range(blocks)],
        "parent_block_hash": b"x" * 32,
        "token_ids": [place % 150_000 for place in range(blocks * size)],
        "block_size": size,
        "lora_id": 1,
        "medium": "GPU",
        "lora_name": "sql",
        "extra_keys": [["sql", ["image", place]] for place in range(blocks)],
        **more,
    }


def as_array(event: dict[str, Any], *more: object) -> list[object]:
    """The form of vLLM up to 0.23."""
    return [*event.values(), *more]


def whole(payload: Any) -> list[KVEvent]:
    """What the same message is when msgpack unpacks it in one go."""
    batch = msgpack.unpackb(msgpack.packb(payload))
    events = batch["events"] if isinstance(batch, dict) else batch[1]
    return [event for raw in events for event in read_event(raw)]


LARGE = stored(700)
NUMBERED: dict[Any, Any] = {5: 6, **LARGE}
SMALL = stored(2)


@pytest.mark.parametrize(
    "batch",
    [
        [1.5, [SMALL, LARGE, SMALL], 0],
        [1.5, [as_array(LARGE), as_array(SMALL, *[None] * 3, [7] * 20_000)]],
        {"ts": 1.5, "events": [LARGE], "data_parallel_rank": 0},
        {"before": [0] * 50_000, "events": [{"session": [["x"] * 9] * 9_000, **LARGE}]},
        [[0] * 50_000, [as_array(LARGE, *[None] * 3, [7] * 20_000)], ["x"]],
        [1.5, [["BlockMoved", [0] * 20_000], {"type": "BlockMoved", "x": [0] * 20_000}, SMALL]],
        [1.5, [{"type": "BlockRemoved", "block_hashes": list(range(1 << 14))}]],
        [1.5, [stored(700, extra_keys=None, token_ids=None), stored(0)]],
        [1.5, []],
    ],
)
def test_a_message_in_pieces_equals_the_whole_message(batch: Any) -> None:
    payload = msgpack.packb(batch)
    assert events_in(payload) == whole(batch)


@given(
    st.lists(st.tuples(st.integers(0, 90), st.sampled_from([1, 16]), st.booleans()), max_size=6),
    st.integers(16, 64),
)
def test_where_it_is_cut_makes_no_difference(
    events: list[tuple[int, int, bool]], feed: int
) -> None:
    made = [
        as_array(stored(blocks, size)) if is_array else stored(blocks, size)
        for blocks, size, is_array in events
    ]
    batch = [1.5, made, 0]
    payload = msgpack.packb(batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "FEED_BYTES", feed)
        patch.setattr(batches, "SHORT_BYTES", 4 * feed)
        patch.setattr(parsing, "BLOCKS_AT_A_TIME", 7)
        assert events_in(payload) == whole(batch)


class Meter:
    """msgpack, and how many bytes have been handed to it."""

    def __init__(self) -> None:
        self.fed = 0
        meter = self

        class Unpacker(msgpack.Unpacker):  # type: ignore[misc]
            def feed(self, data: bytes) -> None:
                meter.fed += len(data)
                super().feed(data)

        self.Unpacker = Unpacker
        self.OutOfData = msgpack.OutOfData
        self.UnpackException = msgpack.UnpackException


HOSTILE = {
    "one long event": [1.5, [stored(30_000)], 0],
    "the same as an array": [1.5, [as_array(stored(30_000))], 0],
    "many events": [1.5, [stored(1)] * 10_000, 0],
    "a member that nobody knows": [1.5, [{"type": "BlockStored", "x": [[]] * MEGABYTE}], 0],
    "something before the events": [[[]] * MEGABYTE, []],
    "a kind that is none": [1.5, [[[[]] * MEGABYTE]], 0],
    "events that are empty": [1.5, [[]] * MEGABYTE, 0],
    "hashes that are none": [1.5, [{"type": "BlockStored", "block_hashes": [[]] * 60_000}], 0],
    "too many hashes": [1.5, [{"type": "BlockStored", "block_hashes": [0] * MEGABYTE}], 0],
    "a hash that is long": [1.5, [{"block_hashes": [[[]] * MEGABYTE]}], 0],
    "ids that are none": [1.5, [{"type": "BlockStored", "token_ids": [[]] * MEGABYTE}], 0],
    "keys that are none": [1.5, [{"type": "BlockStored", "extra_keys": [[[]] * 16] * 60_000}], 0],
    "a text that is long": [1.5, [{"type": "x" * MEGABYTE}], 0],
}


@pytest.mark.parametrize("batch", HOSTILE.values(), ids=HOSTILE)
def test_little_is_read_at_a_time(batch: Any) -> None:
    """Bytes, and blocks, between two pauses of the reader."""
    meter, before = Meter(), 0
    with contextlib.suppress(BadBatch):
        for raw in read_batch(meter, msgpack.packb(batch)):
            assert meter.fed - before <= SHORT_BYTES + 2 * FEED_BYTES
            before = meter.fed
            for event in () if raw is None else read_event(raw):
                assert len(getattr(event, "hashes", ())) <= parsing.BLOCKS_AT_A_TIME
    assert meter.fed - before <= SHORT_BYTES + 2 * FEED_BYTES


def test_token_ids_of_a_long_event_are_not_numbers_one_by_one() -> None:
    """An id takes four bytes then, not forty."""
    payload = msgpack.packb([1.5, [stored(4_000)]])
    *_, raw = read_batch(msgpack, payload)
    assert isinstance(raw, dict)
    assert isinstance(raw["token_ids"], array)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x05",
        b"\x91\x01",
        msgpack.packb({"no": "events"}),
        msgpack.packb([1.5, "events"]),
        msgpack.packb([1.5, [None]]),
        msgpack.packb([1.5, [5]]),
        b"\x91" * 100_000,
        b"\x92\x01" + b"\x91" * 100_000,
        b"\x92\x01\x91" + b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x92\x01\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff" + b"\x00" * 50,
        b"\x81\x90\x01",
        b"\xd6\xff" + b"\xff" * 4,
        b"\xc7\x0c\xff" + b"\xff" * 12,
        msgpack.packb([1.5, [stored(700, token_ids=[1 << 32] * 11_200)]]),
        msgpack.packb([1.5, [as_array(stored(700, type=7))]]),
        msgpack.packb([1.5, [NUMBERED]]),
        msgpack.packb({"no": [0] * 50_000}),
        msgpack.packb([1.5, [stored(1, block_hashes=["x" * 50_000])]]),
        msgpack.packb([1.5, [LARGE]])[:-1],
    ],
)
def test_invalid_batches_are_refused(payload: bytes) -> None:
    with pytest.raises(BadBatch):
        events_in(payload)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_refused(payload: bytes) -> None:
    try:
        events_in(payload)
    except BadBatch:
        return
