"""The known token ids of a prompt or of its beginning, and the keys of the blocks that they
fill."""

from collections.abc import Iterator
from struct import iter_unpack
from typing import Final

__all__ = ["ID_BYTES", "PromptTokens", "root_key"]

ID_BYTES: Final = 4
"""Bytes of a token id, packed as `array("I")`."""

KEYS_AT_A_TIME: Final = 32
"""Block keys that are computed at a time; few prompts are held up to their end."""


def root_key(lora: str | None) -> int:
    """The key before a prompt's first block. It differs by adapter, because adapters do not share
    blocks."""
    return hash(("prompt", lora))


class PromptTokens:
    """The ids of the beginning of a prompt, with its adapter and cache salt (None without)."""

    __slots__ = ("_keys", "_lora", "_salt", "count", "data", "estimated", "is_whole")

    def __init__(
        self, data: bytes, estimated: int, lora: str | None, salt: str | None, *, is_whole: bool
    ) -> None:
        self.data = data
        """The packed ids, `ID_BYTES` each."""
        self.count = len(data) // ID_BYTES
        self.estimated = estimated
        """The estimated tokens of the same part of the prompt."""
        self.is_whole = is_whole
        """Whether these are all ids of the prompt."""
        self._lora = lora
        self._salt = salt
        self._keys: dict[int, list[int]] = {}

    def keys(self, block_size: int) -> Iterator[int]:
        """Yields the keys of its full blocks of this size, computed once each. Engines always
        compute a prompt's last token, so the block that it would fill is not included."""
        found = self._keys.setdefault(block_size, [])
        blocks = (self.count - self.is_whole) // block_size
        start = 0
        while True:
            yield from found[start:]
            start = len(found)
            if start >= blocks:
                return
            self._add_keys(found, block_size, min(blocks, start + KEYS_AT_A_TIME))

    def _add_keys(self, found: list[int], block_size: int, end: int) -> None:
        """Compute the keys up to the block that ends at `end`."""
        step, start = ID_BYTES * block_size, len(found)
        pieces = iter_unpack(f"{step}s", self.data[step * start : step * end])
        key = found[-1] if found else root_key(self._lora)
        if not found and self._salt is not None:  # it only applies to the first block
            key = hash((key, *next(pieces), (self._salt,)))
            found.append(key)
        append = found.append
        for (ids,) in pieces:
            key = hash((key, ids))
            append(key)

    def as_estimated(self, tokens: int) -> int:
        """Convert a number of its actual tokens to estimated ones."""
        return tokens * self.estimated // self.count if self.count else 0
