"""Parses vLLM's KV-cache events: converts what msgpack unpacked into typed events, or raises
BadBatch.

vLLM 0.10 to 0.33 (vllm/distributed/kv_events.py): an event is a tagged array (up to 0.23) or a map
with `type` (from 0.24 on). Unknown members, items and kinds of events are ignored.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = [
    "FIELDS",
    "GPU",
    "BadBatch",
    "BlockHash",
    "BlocksCleared",
    "BlocksRemoved",
    "BlocksStored",
    "ExtraKeys",
    "KVEvent",
    "extra_keys_of",
    "read_event",
]

MAX_BLOCK_SIZE: Final = 1 << 16
"""Largest block size in tokens. vLLM's blocks have 16 to 1,056, those of some hybrid models a few
thousand."""

BLOCKS_AT_A_TIME: Final = 256
TOKENS_AT_A_TIME: Final = 1 << 14
"""Most blocks, and most tokens of several blocks, that are applied at a time, in about 0.3 ms."""

MAX_BLOCKS: Final = 1 << 16
"""Most blocks of an event. A step computes at most about 4,000 blocks: 64,000 tokens."""

MAX_HASH_BYTES: Final = 64
"""Longest hash of a block in bytes; vLLM's have 32 or 16. It is kept as long as its block."""

MAX_EXTRA_KEYS: Final = 16
"""Most extra keys of a block: an adapter, a salt, and the images that it is a part of."""

BlockHash = int | bytes
"""The engine's own hash of a block: an integer, or the whole digest with
VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0. It is only compared."""

ExtraKeys = tuple[str, ...]
"""Distinguishes blocks with the same tokens: images, cache salt."""


class BadBatch(ValueError):
    """A message is not a valid batch of KV-cache events; the text says why."""


class BlocksStored(NamedTuple):
    """A chain of blocks was added to the cache. A long chain is split into several of these."""

    hashes: Sequence[BlockHash]
    parent: BlockHash | None
    """The block before the first of them; None if they begin a prompt."""
    tokens: bytes
    """Their token ids, packed as `array("I")`; empty if the engine does not send them."""
    block_size: int
    """Tokens per block; may be 0 without tokens."""
    tier: str
    group: int | None
    """The KV-cache group of a hybrid model; None if there is only one."""
    kind: str | None
    """The kind of attention of that group."""
    lora: str | None
    extra_keys: Sequence[ExtraKeys | None] | None
    """One entry per block, without the adapter's name."""
    is_nameless_lora: bool
    """The adapter is only numbered (before vLLM 0.12), whereas requests use its name."""


class BlocksRemoved(NamedTuple):
    """One copy of each of these blocks was removed."""

    hashes: Sequence[BlockHash]
    tier: str
    group: int | None


class BlocksCleared(NamedTuple):
    """The cache was cleared."""


KVEvent = BlocksStored | BlocksRemoved | BlocksCleared

GPU: Final = "GPU"

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
        *("lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
"""The items after the tag of an event in array form, in order."""


def read_event(raw: object) -> Iterator[KVEvent]:
    """Yields an event in pieces, none of which takes long to apply; nothing for unknown kinds.
    `raw` is consumed. Raises BadBatch, possibly after some pieces."""
    if isinstance(raw, dict):
        kind, fields = raw.get("type"), raw
    elif isinstance(raw, list) and raw and isinstance(raw[0], str):
        kind = raw[0]
        fields = dict(zip(FIELDS.get(kind, ()), raw[1:], strict=False))
    else:
        raise BadBatch("an event is neither an array nor a map")
    if kind == "BlockStored":
        yield from _stored(fields)
    elif kind == "BlockRemoved":
        tier, group = _tier(fields), _group(fields)
        for hashes in _pieces(_blocks(fields), BLOCKS_AT_A_TIME):
            yield BlocksRemoved(_hashes(hashes), tier, group)
    elif kind == "AllBlocksCleared":
        yield BlocksCleared()


def _stored(fields: Mapping[Any, Any]) -> Iterator[KVEvent]:
    parent, size = fields.get("parent_block_hash"), fields.get("block_size")
    if parent is not None and not _is_hash(parent):
        raise BadBatch("a parent is no block hash")
    blocks, tokens, lora = _blocks(fields), _tokens(fields), _text(fields, "lora_name")
    # OffloadingConnector announces blocks without tokens, and with size 0.
    if type(size) is not int or not (1 if tokens else 0) <= size <= MAX_BLOCK_SIZE:
        raise BadBatch("a block size is no size")
    # In the event of a hybrid model's window there are more tokens than the blocks hold, also in
    # each piece.
    step = -(-len(tokens) // len(blocks)) if blocks else 0
    if step > MAX_BLOCK_SIZE:
        raise BadBatch("there are more token ids than the blocks can have")
    at_a_time = max(1, min(BLOCKS_AT_A_TIME, TOKENS_AT_A_TIME // max(1, step)))
    extra = _extra_keys(fields, len(blocks), at_a_time)
    start = 0
    for hashes in map(_hashes, _pieces(blocks, at_a_time)):
        end = start + len(hashes)
        yield BlocksStored(
            hashes,
            parent,
            _packed(tokens[start * step : end * step]),
            size,
            _tier(fields),
            _group(fields),
            _text(fields, "kv_cache_spec_kind"),
            lora,
            None if extra is None else _without(lora, next(extra)),
            lora is None and fields.get("lora_id") is not None,
        )
        start, parent = end, hashes[-1]


def _pieces(values: list[Any], at_a_time: int) -> Iterator[list[Any]]:
    """Yields a list in pieces. Each piece's values are freed with it: freeing a list of 65,000
    numbers at once would take 1 ms, of as many lists 10 ms."""
    for start in range(0, len(values), at_a_time):
        piece = values[start : start + at_a_time]
        values[start : start + at_a_time] = [None] * len(piece)
        yield piece


def _blocks(fields: Mapping[Any, Any]) -> list[Any]:
    """The hashes of an event, not validated yet."""
    value = fields.get("block_hashes")
    if not isinstance(value, list) or len(value) > MAX_BLOCKS:
        raise BadBatch(f"block hashes are no list of up to {MAX_BLOCKS}")
    return value


def _hashes(piece: list[Any]) -> list[BlockHash]:
    if all(map(_is_hash, piece)):
        return piece
    raise BadBatch(f"a block hash is neither a number nor up to {MAX_HASH_BYTES} bytes")


def _is_hash(value: object) -> bool:
    return type(value) is int or (type(value) is bytes and len(value) <= MAX_HASH_BYTES)


def _tokens(fields: Mapping[Any, Any]) -> "list[Any] | array[int]":
    value = fields.get("token_ids")
    if value is None:
        return []
    if isinstance(value, list | array):
        return value
    raise BadBatch("token ids are no list")


def _packed(ids: "list[Any] | array[int]") -> bytes:
    if isinstance(ids, array):
        return ids.tobytes()
    try:
        return array("I", ids).tobytes()
    except (TypeError, OverflowError):
        raise BadBatch("a token id is no 32-bit number") from None


def _text(fields: Mapping[Any, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise BadBatch(f"{name} is no text")


def _tier(fields: Mapping[Any, Any]) -> str:
    """The tier of an event. vLLM up to 0.10 named none, because there was only the GPU."""
    return _text(fields, "medium") or GPU


def _group(fields: Mapping[Any, Any]) -> int | None:
    group = fields.get("group_idx")
    if group is None or type(group) is int:
        return group
    raise BadBatch("group_idx is no number")


def _extra_keys(
    fields: Mapping[Any, Any], blocks: int, at_a_time: int
) -> Iterator[list[ExtraKeys | None]] | None:
    """Yields the extra keys of each block, in pieces."""
    value = fields.get("extra_keys")
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != blocks:
        raise BadBatch("extra keys are no list with an entry for each block")
    return ([extra_keys_of(each) for each in piece] for piece in _pieces(value, at_a_time))


def extra_keys_of(value: object) -> ExtraKeys | None:
    """The extra keys of one block. Raises BadBatch."""
    if value is None:
        return None
    if isinstance(value, tuple):  # it has been converted already
        return value
    if not isinstance(value, list) or len(value) > MAX_EXTRA_KEYS:
        raise BadBatch(f"a block's extra keys are no list of up to {MAX_EXTRA_KEYS}")
    # They are only compared, so values that are not text, such as lists, are turned into text.
    return tuple(each if isinstance(each, str) else repr(each) for each in value) or None


def _without(lora: str | None, keys: list[ExtraKeys | None]) -> list[ExtraKeys | None]:
    """The keys without the adapter's name, which comes first in each and is already known."""
    if lora is None:
        return keys
    return [(each[1:] or None) if each and each[0] == lora else each for each in keys]
