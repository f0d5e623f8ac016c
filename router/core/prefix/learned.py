"""Token ids of prompts, learned from engines' answers, by the keys of the text's prefixes.

If a client requests `return_token_ids`, the answer contains the prompt's ids. They are kept, so
that for a later prompt with the same beginning (the next turn of a conversation, another user of
the same system prompt) the ids of the common part are known. The router runs no tokenizer.
"""

from array import array
from typing import Final, NamedTuple

from router.core.prefix.prompt_tokens import ID_BYTES
from router.core.request_facts import PrefixKeys
from router.core.wire.jsonspan import engine_json

__all__ = ["MAX_IDS", "LearnedTokens", "prompt_ids"]

MAX_IDS: Final = 1 << 20
"""Most ids of a prompt that are used; the rest counts as not cached."""

MAX_LEARNED: Final = 1 << 23
"""Most ids that are kept: 32 MiB, a thousand prompts of 8,000 tokens."""

MAX_KEYS: Final = 1 << 18
"""Most prefix keys that are kept; they take about 25 MB."""


class _Prompt(NamedTuple):
    data: bytes
    prefix: PrefixKeys


class LearnedTokens:
    """The ids of prompts; the least recently used are dropped."""

    def __init__(self) -> None:
        self.ids = 0
        """Number of ids kept."""
        self._prompts: dict[int, _Prompt] = {}
        """Prompts by the key of the whole text."""
        self._wholes: dict[int, int] = {}
        """The key of a whole text by the key of any of its prefixes; the latest text if several
        share it."""

    def __len__(self) -> int:
        """Number of prompts."""
        return len(self._prompts)

    def learn(self, prefix: PrefixKeys, data: bytes) -> None:
        """Add the packed ids of a prompt with these keys."""
        whole = prefix.keys[-1]
        self._forget(whole)
        self._prompts[whole] = _Prompt(data, prefix)
        self.ids += len(data) // ID_BYTES
        self._wholes.update(dict.fromkeys(prefix.keys, whole))
        while self._prompts and (self.ids > MAX_LEARNED or len(self._wholes) > MAX_KEYS):
            self._forget(next(iter(self._prompts)))

    def find(self, prefix: PrefixKeys) -> tuple[bytes, int] | None:
        """The ids of the longest known part of the prompt, with its estimated tokens.

        If only part of a known text agrees, a proportional share of its ids is returned.
        """
        for place in range(len(prefix.keys) - 1, -1, -1):
            key = prefix.keys[place]
            whole = self._wholes.get(key)
            if whole is None:
                continue
            found = self._prompts.pop(whole)
            self._prompts[whole] = found  # now the most recently used
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
    """The packed prompt ids in an answer or in the first events of a stream; None if there are
    none.

    Generated text cannot match, because quotes in it are escaped.
    """
    at = answer.find(_MARK)
    while at >= 0:
        start = at + len(_MARK)
        begin = answer[start : start + 2].lstrip()
        if begin.startswith(b"["):
            return _packed(answer[start : answer.find(b"]", start) + 1])
        at = answer.find(_MARK, start)  # null: another choice may have them
    return None


def _packed(text: bytes) -> bytes | None:
    try:
        ids = engine_json(text)
        return array("I", ids).tobytes() if 0 < len(ids) <= MAX_IDS else None
    except (ValueError, TypeError, OverflowError):
        return None
