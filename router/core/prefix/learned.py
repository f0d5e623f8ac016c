"""Token ids of text that engines have told, by the keys of the text's prefixes.

A client that asks for `return_token_ids` gets its prompt's ids with the answer. They are remembered
here, so that the next prompt that begins alike (a conversation that goes on, another user of the
same system prompt) is known by its ids as far as the texts agree. No tokenizer runs in the router.
"""

from array import array
from typing import Final, NamedTuple

from router.core.prefix.prompt_tokens import ID_BYTES
from router.core.values import PrefixKeys
from router.core.wire.jsonspan import engine_json

__all__ = ["MAX_IDS", "LearnedTokens", "prompt_ids"]

MAX_IDS: Final = 1 << 20
"""Ids of a prompt that are looked at; what is behind them counts as new."""

MAX_LEARNED: Final = 1 << 23
"""Ids that are remembered: 32 MiB, a thousand prompts of 8,000 tokens."""

MAX_KEYS: Final = 1 << 18
"""Keys of text that lead to them: some 25 MB."""


class _Prompt(NamedTuple):
    data: bytes
    prefix: PrefixKeys


class LearnedTokens:
    """The ids of prompts, those least recently used forgotten first."""

    def __init__(self) -> None:
        self.ids = 0
        """How many are remembered."""
        self._prompts: dict[int, _Prompt] = {}
        """By the key of the whole text."""
        self._wholes: dict[int, int] = {}
        """The key of a whole text by that of any prefix of it, of the latest."""

    def __len__(self) -> int:
        """Number of prompts."""
        return len(self._prompts)

    def learn(self, prefix: PrefixKeys, data: bytes) -> None:
        """A prompt with these keys has these ids."""
        whole = prefix.keys[-1]
        self._forget(whole)
        self._prompts[whole] = _Prompt(data, prefix)
        self.ids += len(data) // ID_BYTES
        self._wholes.update(dict.fromkeys(prefix.keys, whole))
        while self._prompts and (self.ids > MAX_LEARNED or len(self._wholes) > MAX_KEYS):
            self._forget(next(iter(self._prompts)))

    def find(self, prefix: PrefixKeys) -> tuple[bytes, int] | None:
        """The ids of the longest part of the prompt that is known, and its estimated tokens.

        Where only a part of a known text agrees, its share of the ids is taken.
        """
        for place in range(len(prefix.keys) - 1, -1, -1):
            key = prefix.keys[place]
            whole = self._wholes.get(key)
            if whole is None:
                continue
            found = self._prompts.pop(whole)
            self._prompts[whole] = found  # the latest used
            estimated, total = prefix.ends[place], found.prefix.ends[-1]
            count = len(found.data) // ID_BYTES
            if key != whole:
                count = count * estimated // max(1, total)
            return found.data[: ID_BYTES * count], estimated
        return None

    def _forget(self, whole: int) -> None:
        found = self._prompts.pop(whole, None)
        if found is None:
            return
        self.ids -= len(found.data) // ID_BYTES
        for key in found.prefix.keys:
            if self._wholes.get(key) == whole:
                del self._wholes[key]


_MARK: Final = b'"prompt_token_ids":'


def prompt_ids(answer: bytes) -> bytes | None:
    """The prompt's ids in an answer, or in the first events of a stream, packed; None without.

    Within a JSON text the mark's quotes would be escaped.
    """
    at = answer.find(_MARK)
    while at >= 0:
        start = at + len(_MARK)
        begin = answer[start : start + 2].lstrip()
        if begin.startswith(b"["):
            return _packed(answer[start : answer.find(b"]", start) + 1])
        at = answer.find(_MARK, start)  # null: another choice may tell
    return None


def _packed(text: bytes) -> bytes | None:
    try:
        ids = engine_json(text)
        return array("I", ids).tobytes() if 0 < len(ids) <= MAX_IDS else None
    except (ValueError, TypeError, OverflowError):
        return None
