"""Every form of vLLM's KV-cache events is read, and nothing else gets through."""

from array import array
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.kv_events import parsing
from router.core.kv_events.parsing import (
    BadBatch,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    KVEvent,
    read_event,
)

IDS = array("I", [1, 2, 3, 4]).tobytes()

V0_11 = (
    "93cb3ff80000000000009397ab426c6f636b53746f7265649107c0940102030404c0a347505593ac426c6f636b5265"
    "6d6f7665649107a347505591b0416c6c426c6f636b73436c656172656400"
)
V0_23 = (
    "93cb3ff8000000000000939cab426c6f636b53746f7265649107c0940102030404c0a3475055c0c0c0c0c094ac426c"
    "6f636b52656d6f7665649107a3475055c091b0416c6c426c6f636b73436c656172656400"
)
V0_24 = (
    "93cb3ff80000000000009388a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739107b17061"
    "72656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72"
    "615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c083a474797065ac426c6f636b52656d6f766564ac"
    "626c6f636b5f6861736865739107a66d656469756da347505581a474797065b0416c6c426c6f636b73436c65617265"
    "6400"
)
V0_33 = V0_24.replace("9388a4", "93de0008a4")
"""What the publishers of these versions send: a block stored, removed, and all cleared."""


def read(payload: bytes) -> list[KVEvent]:
    """The events of a message."""
    return [event for raw in msgpack.unpackb(payload)[1] for event in read_event(raw)]


def parts(**fields: Any) -> list[BlocksStored]:
    """The pieces of the event that a map with these members is."""
    whole = {
        "type": "BlockStored",
        "block_hashes": [7],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 4,
        **fields,
    }
    return [event for event in read_event(whole) if isinstance(event, BlocksStored)]


def stored(**fields: Any) -> BlocksStored:
    """The same, of one that is in one piece."""
    [event] = parts(**fields)
    return event


@pytest.mark.parametrize("text", [V0_11, V0_23, V0_24, V0_33], ids=["0.11", "0.23", "0.24", "0.33"])
def test_all_versions_are_equal(text: str) -> None:
    block, removed, cleared = read(bytes.fromhex(text))
    assert block == BlocksStored([7], None, IDS, 4, "GPU", None, None, None, None, False)
    assert removed == BlocksRemoved([7], "GPU", None)
    assert cleared == BlocksCleared()


def test_unknown_values_are_omitted() -> None:
    assert not list(read_event({"type": "BlockMoved", "block_hashes": [1]}))
    assert not list(read_event(["BlockMoved", 1, 2]))
    assert stored(lookahead_token_ids=[1], session_id="x").hashes == [7]
    assert list(read_event(["AllBlocksCleared", "why"])) == [BlocksCleared()]


def test_hashes_may_be_digests() -> None:
    assert stored(block_hashes=[b"\1" * 32], parent_block_hash=b"\2").parent == b"\2"
    longest = b"1" * parsing.MAX_HASH_BYTES
    assert stored(block_hashes=[longest]).hashes == [longest]


def test_the_removal_of_a_block_with_a_longer_digest_is_refused() -> None:
    with pytest.raises(BadBatch, match="up to 64 bytes"):
        list(read_event(["BlockRemoved", [b"1" * 65]]))


def test_the_adapter_is_not_reported_twice() -> None:
    keys = [["sql", "salt"], ["sql"]]
    event = stored(block_hashes=[7, 8], lora_id=1, lora_name="sql", extra_keys=keys)
    assert (event.lora, event.extra_keys) == ("sql", [("salt",), None])
    assert not event.is_nameless_lora


def test_an_adapter_may_only_be_numbered() -> None:
    assert stored(lora_id=3).is_nameless_lora


def test_extra_keys_of_any_kind_separate_blocks() -> None:
    one, two = stored(extra_keys=[[["image", 5]]]), stored(extra_keys=[[["image", 6]]])
    assert one.extra_keys != two.extra_keys
    assert stored(extra_keys=[None]).extra_keys == [None]
    read_before = one.extra_keys
    assert read_before is not None
    assert stored(extra_keys=list(read_before)).extra_keys == read_before


@pytest.mark.parametrize(
    "fields",
    [
        {"block_hashes": None},
        {"block_hashes": ["7"]},
        {"block_hashes": [True]},
        {"block_hashes": [7, b"1" * (parsing.MAX_HASH_BYTES + 1)]},
        {"parent_block_hash": "7"},
        {"parent_block_hash": b"1" * (parsing.MAX_HASH_BYTES + 1)},
        {"token_ids": [-1]},
        {"token_ids": [1 << 32]},
        {"token_ids": "1234"},
        {"token_ids": [1.5]},
        {"block_size": 0},
        {"block_size": None},
        {"block_size": 1 << 20},
        {"medium": 5},
        {"group_idx": "0"},
        {"extra_keys": 5},
        {"extra_keys": [None, None]},
        {"extra_keys": [5]},
        {"extra_keys": [["a"] * (parsing.MAX_EXTRA_KEYS + 1)]},
        {"block_hashes": [0] * (parsing.MAX_BLOCKS + 1)},
        {"token_ids": [1] * (parsing.MAX_BLOCK_SIZE + 1)},
    ],
)
def test_invalid_events_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadBatch):
        stored(**fields)


def test_an_event_without_token_ids_may_leave_them_out() -> None:
    assert stored(token_ids=None, medium="CPU").tokens == b""


def test_an_event_without_token_ids_may_have_no_block_size() -> None:
    event = stored(token_ids=[], block_size=0, medium="CPU")
    assert (event.hashes, event.tokens, event.block_size) == ([7], b"", 0)
    with pytest.raises(BadBatch, match="a block size is no size"):
        stored(token_ids=[], block_size=-1, medium="CPU")


def test_a_long_chain_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "BLOCKS_AT_A_TIME", 2)
    ids = list(range(20))
    keys = [["a"], None, ["b"], None, ["c"]]
    one, two, three = parts(block_hashes=[1, 2, 3, 4, 5], token_ids=ids, extra_keys=keys)
    assert two == one._replace(
        hashes=[3, 4],
        parent=2,
        tokens=array("I", ids[8:16]).tobytes(),
        extra_keys=[("b",), None],
    )
    assert (one.parent, one.extra_keys) == (None, [("a",), None])
    assert (three.parent, three.hashes, three.extra_keys) == (4, [5], [("c",)])
    plain = parts(block_hashes=[1, 2, 3], token_ids=[])
    assert [part.tokens for part in plain] == [b"", b""]
    removed = list(read_event({"type": "BlockRemoved", "block_hashes": [1, 2, 3]}))
    assert removed == [BlocksRemoved([1, 2], "GPU", None), BlocksRemoved([3], "GPU", None)]


def test_a_chain_of_large_blocks_comes_in_smaller_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "TOKENS_AT_A_TIME", 9)
    ids = array("I", range(12))
    found = parts(block_hashes=[1, 2, 3], token_ids=ids)
    assert [part.hashes for part in found] == [[1, 2], [3]]
    assert b"".join(part.tokens for part in found) == ids.tobytes()
    [one, two] = parts(block_hashes=[1, 2], token_ids=ids, block_size=6)[:2]
    assert len(one.tokens) == len(two.tokens) == 24, "one block at a time at least"


def test_chain_with_excess_tokens_is_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "BLOCKS_AT_A_TIME", 2)
    found = parts(block_hashes=[1, 2, 3, 4, 5], token_ids=list(range(21)))
    assert all(len(part.tokens) != 16 * len(part.hashes) for part in found)


def test_errors_after_the_first_part_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "BLOCKS_AT_A_TIME", 1)
    for fields in ({"block_hashes": [1, "2"]}, {"token_ids": [1] * 4 + ["1"] * 4}):
        whole: dict[str, Any] = {
            "type": "BlockStored", "block_hashes": [1, 2], "token_ids": [1] * 8, "block_size": 4,
            **fields,
        }  # fmt: skip
        events = read_event(whole)
        assert next(events)
        with pytest.raises(BadBatch):
            next(events)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text()
    | st.binary() | st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"]),
    lambda inner: st.lists(inner, max_size=12)
    | st.dictionaries(
        st.sampled_from(["type", "events", "block_hashes", "token_ids", "block_size", "medium"])
        | st.text(),
        inner,
        max_size=8,
    ),
    max_leaves=30,
)  # fmt: skip


@given(VALUES)
def test_any_msgpack_value_is_an_event_or_refused(value: object) -> None:
    try:
        assert len(list(read_event(value))) <= 1
    except BadBatch:
        return


@given(st.binary(max_size=300))
def test_every_part_of_a_message_may_be_wrong(noise: bytes) -> None:
    """Bytes put over a good message: what msgpack still reads is an event or refused."""
    good = bytes.fromhex(V0_24)
    at = len(noise) * 7 % len(good)
    spoiled = good[:at] + noise + good[at + len(noise) :]
    try:
        batch = msgpack.unpackb(spoiled)
    except (ValueError, msgpack.UnpackException):
        return
    events = batch[1] if isinstance(batch, list) and len(batch) > 1 else None
    for raw in events if isinstance(events, list) else ():
        try:
            list(read_event(raw))
        except BadBatch:
            continue
