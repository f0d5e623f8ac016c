"""The token ids of a prompt, or of its beginning, and the keys of the blocks that they fill."""

from collections.abc import Iterator
from struct import iter_unpack
from typing import Final

__all__ = ["ID_BYTES", "PromptTokens", "root_key"]

ID_BYTES: Final = 4
"""Of a token id, as `array("I")` packs it."""

KEYS_AT_A_TIME: Final = 32
"""Keys of blocks that are computed at once: most prompts are not held to their end."""


def root_key(lora: str | None) -> int:
    """The key before a prompt's first block. Adapters do not share blocks."""
    return hash(("prompt", lora))


class PromptTokens:
    """The ids that a prompt begins with, for an adapter (or none) and a cache salt (or none)."""

    __slots__ = ("_keys", "_lora", "_salt", "count", "data", "estimated", "is_whole")

    def __init__(
        self, data: bytes, estimated: int, lora: str | None, salt: str | None, *, is_whole: bool
    ) -> None:
        self.data = data
        """The ids, `ID_BYTES` each."""
        self.count = len(data) // ID_BYTES
        self.estimated = estimated
        """The estimated tokens of the same part of the prompt."""
        self.is_whole = is_whole
        """Whether the prompt has no more."""
        self._lora = lora
        self._salt = salt
        self._keys: dict[int, list[int]] = {}

    def keys(self, block_size: int) -> Iterator[int]:
        """The keys of its full blocks of this size; each is computed once. Engines compute a
        prompt's last token always, so the block that it fills is none of them."""
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
        """Compute those up to the block at `end`."""
        step, start = ID_BYTES * block_size, len(found)
        pieces = iter_unpack(f"{step}s", self.data[step * start : step * end])
        key = found[-1] if found else root_key(self._lora)
        if not found and self._salt is not None:  # it is part of the first block only
            key = hash((key, *next(pieces), (self._salt,)))
            found.append(key)
        append = found.append
        for (ids,) in pieces:
            key = hash((key, ids))
            append(key)

    def as_estimated(self, tokens: int) -> int:
        """`tokens` of its tokens, converted to estimated ones."""
        return tokens * self.estimated // self.count if self.count else 0
