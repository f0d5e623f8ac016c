"""Reads the answer of a Mooncake bootstrap server, at which a prefill engine's workers register."""

from typing import Any, Final

from router.core.wire.jsonspan import engine_json

__all__ = ["engine_ids"]

MAX_RANKS: Final = 64
"""Most data-parallel ranks of one engine."""

MAX_ID: Final = 256
"""Longest engine id in characters; vLLM's own are UUIDs, with the rank behind them."""


def engine_ids(body: bytes) -> tuple[str, ...]:
    """The engine ids of an engine's data-parallel ranks, in their order: vLLM's answer to /query is
    a map from rank to `engine_id` and `worker_addr`. Raises ValueError for any other answer."""
    listed: Any = engine_json(body)
    if not isinstance(listed, dict) or not all(_is_rank(each) for each in listed):
        raise ValueError("is no list of engines")
    if not 1 <= len(listed) <= MAX_RANKS:
        raise ValueError(f"lists {len(listed)} ranks")
    found = tuple(_id(listed[rank]) for rank in sorted(listed, key=int))
    if len(set(found)) < len(found):
        raise ValueError("lists an engine id twice")
    return found


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 4


def _id(entry: object) -> str:
    found = entry.get("engine_id") if isinstance(entry, dict) else None
    if not isinstance(found, str) or not 1 <= len(found) <= MAX_ID or not found.isprintable():
        raise ValueError("lists a rank without an engine id")
    return found
