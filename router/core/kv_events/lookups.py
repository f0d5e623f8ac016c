"""Uses KV-cache events to find out which engines hold how much of a request's prompt.

Events refer to token ids. A prompt's ids are known if the client sent ids, and as far as engines
have returned ids for the same text before. They do so if `return_token_ids` is requested: by the
client, or by the router for a stream that may be continued. The ids are kept, so that for a later
prompt with the same beginning (the next turn of a conversation, another user of the same system
prompt) those of the common part are known. Other prompts are not looked up. The router runs no
tokenizer.
"""

import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from router.core.kv_events.block_index import BlockIndex
from router.core.kv_events.kv_sources import EngineCache
from router.core.request_facts import ID_BYTES, Facts, PrefixKeys, PromptTokens
from router.core.values import RouteKind
from router.core.wire.contents import has_media
from router.core.wire.jsonspan import engine_json
from router.core.wire.tokens import prompts, sole_ids

__all__ = [
    "MAX_IDS",
    "CacheEvents",
    "LearnedTokens",
    "Lookup",
    "PromptFeedback",
    "cached_tokens",
    "given_ids",
    "prompt_ids",
]

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
    """Token ids of prompts by the keys of the text's prefixes; the least recently used are
    dropped."""

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


class Lookup(NamedTuple):
    """A prompt whose ids are known, and the number of its tokens that each source holds, by the
    source's bit."""

    prompt: PromptTokens
    match: Mapping[int, int]


class CacheEvents:
    """The blocks announced by all engines, and the token ids learned from answers."""

    def __init__(self) -> None:
        self.blocks = BlockIndex()
        self.learned = LearnedTokens()
        self.known = self.unknown = 0
        """Number of prompts whose ids were known, at least partly, and of others."""

    def lookup(self, facts: Facts, prefix: PrefixKeys, lora: str | None) -> Lookup | None:
        """What engines hold of a prompt with these keys; None if its ids are unknown.

        `lora` is the adapter that the request names.
        """
        prompt = facts.known_tokens
        if prompt is None:
            if facts.is_looked_up:
                return None
            facts.is_looked_up = True
            prompt = facts.known_tokens = self._prompt(facts, prefix, lora)
            self.known += prompt is not None
            self.unknown += prompt is None
        return None if prompt is None else Lookup(prompt, self.blocks.match(prompt))

    def _prompt(self, facts: Facts, prefix: PrefixKeys, lora: str | None) -> PromptTokens | None:
        given = given_ids(facts)
        if given is not None:
            count = len(given) // ID_BYTES
            return PromptTokens(given, count, lora, _salt(facts), is_whole=count < MAX_IDS)
        found = self.learned.find(prefix)
        if found is None:
            return None
        data, estimated = found
        return PromptTokens(data, estimated, lora, _salt(facts), is_whole=False)

    def feedback(
        self, facts: Facts, prefix: PrefixKeys, cache: EngineCache, predicted: int | None
    ) -> "PromptFeedback":
        """Create the receiver of a request's answer. `predicted`: cached tokens of its prompt
        according to events; None if unknown."""
        # The ids of a continued chat are those of its prompt and of the answer so far.
        is_text = given_ids(facts, just_look=True) is None and not facts.prompt_ids
        may_learn = is_text and not has_media(facts)
        return PromptFeedback(cache, predicted, self.learned if may_learn else None, prefix)


def given_ids(facts: Facts, *, just_look: bool = False) -> bytes | None:
    """The packed ids of a prompt that the client sent as token ids; None for text."""
    if facts.ids is not None:
        return facts.ids
    if facts.route.kind is RouteKind.GENERATE:
        found = [sole_ids(facts.body)]
    elif facts.route.kind is RouteKind.COMPLETIONS:
        found = prompts(facts.body.get("prompt"))
    else:
        return None
    if len(found) != 1 or not isinstance(found[0], list):
        return None
    ids: Sequence[Any] = found[0]
    try:
        return b"" if just_look else array("I", ids[:MAX_IDS]).tobytes()
    except (TypeError, OverflowError):  # the engine answers with the error
        return None


def _salt(facts: Facts) -> str | None:
    """The cache salt, which separates the request's blocks from those of others."""
    salt = facts.body.get("cache_salt")
    return salt if isinstance(salt, str) and salt else None


class PromptFeedback:
    """Learns from a request's answer: the token ids of its prompt, and how many of them were
    cached."""

    __slots__ = ("_cache", "_learned", "_predicted", "_prefix")

    def __init__(
        self,
        cache: EngineCache,
        predicted: int | None,
        learned: LearnedTokens | None,
        prefix: PrefixKeys,
    ) -> None:
        self._cache = cache
        self._predicted = predicted
        self._learned = learned
        self._prefix = prefix

    def begun(self, data: bytes) -> None:
        """Process an answer, or the first events of a stream."""
        if self._learned is not None:
            ids = prompt_ids(data)
            if ids is not None:
                self._learned.learn(self._prefix, ids)

    def ended(self, data: bytes) -> None:
        """Process an answer, or the last events of a stream. Engines that report cached tokens omit
        the number if it is 0."""
        found = cached_tokens(data)
        if found is None:
            return
        if found:
            self._cache.reports_cached = True
        if self._predicted is not None and self._cache.reports_cached:
            self._cache.measure(self._predicted, found)


_PROMPT: Final = (b'"prompt_tokens":', b'"input_tokens":')
_CACHED: Final = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)":\s*(\d{1,9})')
USAGE_BYTES: Final = 512
"""Bytes of a usage object that are searched, from its prompt tokens on; vLLM's has about 200."""


def cached_tokens(answer: bytes) -> int | None:
    """The cached tokens in an answer's usage. If it does not name them: 0 for chats and
    completions, which omit a zero, and None (unknown) for other APIs, which do not."""
    at = max(answer.rfind(mark) for mark in _PROMPT)
    if at < 0:
        return None
    found = _CACHED.search(answer, at, at + USAGE_BYTES)
    if found:
        return int(found.group(1))
    return 0 if answer.startswith(_PROMPT[0], at) else None
