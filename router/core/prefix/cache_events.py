"""Uses KV-cache events to find out which engines hold how much of a request's prompt.

Events refer to token ids. A prompt's ids are known if the client sent ids, and as far as engines
have returned ids for the same text before. For other prompts events tell nothing.
"""

import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from router.core.prefix.block_index import BlockIndex
from router.core.prefix.kv_source import EngineCache
from router.core.prefix.learned import MAX_IDS, LearnedTokens, prompt_ids
from router.core.prefix.prompt_tokens import ID_BYTES, PromptTokens
from router.core.request_facts import Facts, PrefixKeys
from router.core.values import RouteKind
from router.core.wire.contents import has_media
from router.core.wire.tokens import prompts

__all__ = [
    "CacheEvents",
    "Lookup",
    "PromptFeedback",
    "cached_tokens",
    "given_ids",
]


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
        may_learn = given_ids(facts, just_look=True) is None and not has_media(facts)
        return PromptFeedback(cache, predicted, self.learned if may_learn else None, prefix)


def given_ids(facts: Facts, *, just_look: bool = False) -> bytes | None:
    """The packed ids of a prompt that the client sent as token ids; None for text."""
    if facts.ids is not None:
        return facts.ids
    if facts.route.kind is not RouteKind.COMPLETIONS:
        return None
    found = prompts(facts.body.get("prompt"))
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
            self._cache.tells = True
        if self._predicted is not None and self._cache.tells:
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
