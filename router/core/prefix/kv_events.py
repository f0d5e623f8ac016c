"""vLLM's KV-cache events: what msgpack made of a message becomes typed events, or BadBatch.

vLLM 0.10 to 0.33 (vllm/distributed/kv_events.py): a batch is an array [time, events, rank] or a
map, an event a tagged array (to 0.23) or a map with `type` (from 0.24). Members and items that are
not known here are ignored, so are kinds of events.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = [
    "BadBatch",
    "BlockHash",
    "BlocksCleared",
    "BlocksRemoved",
    "BlocksStored",
    "KVEvent",
    "events_of",
    "parts",
    "read_event",
]

MAX_BLOCK_SIZE: Final = 1 << 16
"""Tokens; vLLM's blocks have 16 to 1,056, those of some hybrid models a few thousand."""

BLOCKS_AT_A_TIME: Final = 512
"""Blocks that are applied at once: half a millisecond."""

BlockHash = int | bytes
"""The engine's own hash of a block: an integer, or with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0 the
whole digest. It is only compared."""

ExtraKeys = tuple[str, ...]
"""What tells a block from another with the same tokens: images, the cache salt."""


class BadBatch(ValueError):
    """A message that is no batch of KV-cache events; the text says what is wrong with it."""


class BlocksStored(NamedTuple):
    """A chain of blocks is in the cache."""

    hashes: Sequence[BlockHash]
    parent: BlockHash | None
    """The block before the first of them; None: they begin a prompt."""
    tokens: bytes
    """Their token ids, packed as `array("I")`; empty where the engine does not say."""
    block_size: int
    tier: str
    group: int | None
    """The KV-cache group of a hybrid model; None: there is only one."""
    kind: str | None
    """The attention of that group."""
    lora: str | None
    extra_keys: Sequence[ExtraKeys | None] | None
    """One entry per block, without the adapter's name."""
    is_nameless_lora: bool
    """An adapter that is only numbered, as before vLLM 0.12: requests name it."""


class BlocksRemoved(NamedTuple):
    """One copy of each of these blocks is gone."""

    hashes: Sequence[BlockHash]
    tier: str
    group: int | None


class BlocksCleared(NamedTuple):
    """The cache is empty."""


KVEvent = BlocksStored | BlocksRemoved | BlocksCleared

GPU: Final = "GPU"

_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
        *("lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
"""The items of an event that is an array, in this order behind its tag."""


def events_of(batch: object) -> list[object]:
    """The events of an unpacked batch, still to be read one by one. Raises BadBatch."""
    events: object = None
    if isinstance(batch, dict):
        events = batch.get("events")
    elif isinstance(batch, list) and len(batch) > 1:
        events = batch[1]
    if not isinstance(events, list):
        raise BadBatch("it holds no list of events")
    return events


def read_event(raw: object) -> KVEvent | None:
    """One event of a batch; None for a kind that is not known. Raises BadBatch."""
    if isinstance(raw, dict):
        kind, fields = raw.get("type"), raw
    elif isinstance(raw, list) and raw and isinstance(raw[0], str):
        kind = raw[0]
        fields = dict(zip(_FIELDS.get(kind, ()), raw[1:], strict=False))
    else:
        raise BadBatch("an event is neither an array nor a map")
    if kind == "BlockStored":
        return _stored(fields)
    if kind == "BlockRemoved":
        hashes = _hashes(fields.get("block_hashes"))
        return BlocksRemoved(hashes, _tier(fields), _group(fields))
    return BlocksCleared() if kind == "AllBlocksCleared" else None


def parts(event: KVEvent) -> list[KVEvent]:
    """The same in pieces none of which takes long to apply."""
    if not isinstance(event, BlocksStored) or len(event.hashes) <= BLOCKS_AT_A_TIME:
        return [event]
    step = len(event.tokens) // len(event.hashes)
    found: list[KVEvent] = []
    parent = event.parent
    for start in range(0, len(event.hashes), BLOCKS_AT_A_TIME):
        end = start + BLOCKS_AT_A_TIME
        hashes, extra = event.hashes[start:end], event.extra_keys
        found.append(
            event._replace(
                hashes=hashes,
                parent=parent,
                tokens=event.tokens[start * step : end * step],
                extra_keys=None if extra is None else extra[start:end],
            )
        )
        parent = hashes[-1]
    return found


def _stored(fields: Mapping[Any, Any]) -> BlocksStored:
    parent, size = fields.get("parent_block_hash"), fields.get("block_size")
    if parent is not None and type(parent) not in (int, bytes):
        raise BadBatch("a parent is no block hash")
    if type(size) is not int or not 0 < size <= MAX_BLOCK_SIZE:
        raise BadBatch("a block size is no size")
    hashes, lora = _hashes(fields.get("block_hashes")), _text(fields, "lora_name")
    return BlocksStored(
        hashes,
        parent,
        _tokens(fields.get("token_ids")),
        size,
        _tier(fields),
        _group(fields),
        _text(fields, "kv_cache_spec_kind"),
        lora,
        _extra_keys(fields.get("extra_keys"), len(hashes), lora),
        lora is None and fields.get("lora_id") is not None,
    )


def _hashes(value: object) -> list[BlockHash]:
    if isinstance(value, list) and all(type(each) in (int, bytes) for each in value):
        return value
    raise BadBatch("block hashes are no list of numbers or bytes")


def _tokens(value: object) -> bytes:
    if value is None:
        return b""
    if not isinstance(value, list):
        raise BadBatch("token ids are no list")
    try:
        return array("I", value).tobytes()
    except (TypeError, OverflowError):
        raise BadBatch("a token id is no 32-bit number") from None


def _text(fields: Mapping[Any, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise BadBatch(f"{name} is no text")


def _tier(fields: Mapping[Any, Any]) -> str:
    """vLLM up to 0.10 named none: there was only the GPU."""
    return _text(fields, "medium") or GPU


def _group(fields: Mapping[Any, Any]) -> int | None:
    group = fields.get("group_idx")
    if group is None or type(group) is int:
        return group
    raise BadBatch("group_idx is no number")


def _extra_keys(value: object, blocks: int, lora: str | None) -> Sequence[ExtraKeys | None] | None:
    """The keys of each block. The adapter's name stands first in each, and is known already."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != blocks:
        raise BadBatch("extra keys are no list with an entry for each block")
    return [_keys_of_block(each, lora) for each in value]


def _keys_of_block(value: object, lora: str | None) -> ExtraKeys | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise BadBatch("a block's extra keys are no list")
    if lora is not None and value and value[0] == lora:
        value = value[1:]
    # Only compared: what is no text may be anything, also a list.
    return tuple(each if isinstance(each, str) else repr(each) for each in value) or None
