"""The prompt prefixes that one engine's KV cache is predicted to hold, from the prompts that this
router sent there.

vLLM frees the blocks of a request from the tail and evicts the least recently used ones. The same
order is kept here: a prefix is never evicted before its continuations, so the length of the part of
a prompt that is held can be found by bisection.
"""

from collections import OrderedDict
from collections.abc import Container
from typing import Final

from router.core.prefix.evictions import Evictions
from router.core.request_facts import PrefixKeys

__all__ = ["DEFAULT_CAPACITY", "MAX_CHUNKS", "HeldPrefixes", "PrefixClaim"]

DEFAULT_CAPACITY: Final = 500_000
"""Tokens that an engine's KV cache holds if its /metrics do not say: some 31,000 blocks of 16."""


MIN_CHUNK_TOKENS: Final = 16
"""Fewest tokens that a chunk counts for: vLLM's block size. A prompt of a thousand empty messages
has a thousand chunks."""

MAX_CHUNKS: Final = 1 << 17
"""Most chunks that are kept per engine, whatever cache size it reports; they take some 24 MB. That
is 2 million tokens in chunks of 16, and 16 million in chunks of 128, as long texts have."""


class HeldPrefixes:
    """Least recently used prefixes of an engine, up to the capacity of its KV cache in tokens, and
    to `MAX_CHUNKS`.

    A prefix is provisional from the lease of its first request on, and held from the first token.
    `evictions` are those of its pool.
    """

    def __init__(self, evictions: Evictions | None = None) -> None:
        self.evictions = evictions or Evictions()
        self.capacity = DEFAULT_CAPACITY
        self.tokens = 0
        """Tokens of all prefixes held, shared ones counted once."""
        self.prompt_tokens = self.predicted_tokens = 0
        """Tokens of the prompts whose first token arrived, and how many of these tokens were
        predicted to be cached."""
        self.new_prompts: list[PrefixKeys] | None = None
        """Prompts held since the list was last emptied; None where nothing reads it."""
        self._chunks: OrderedDict[int, int] = OrderedDict()
        """Tokens of each chunk by key, the least recently used first."""
        self.keys: Container[int] = self._chunks
        """The same, for readers that only test membership."""
        self._provisional: dict[int, PrefixClaim] = {}
        """Provisional chunks, with the claim that will confirm or drop each."""

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self._chunks)

    def match(self, prefix: PrefixKeys) -> int:
        """Tokens of the longest part of the prompt that it holds, provisional ones included."""
        keys = prefix.keys
        if keys and keys[-1] in self._chunks:  # a prompt that comes again
            return prefix.ends[-1]
        count = self._count(keys)
        return prefix.ends[count - 1] if count else 0

    def expected(self, prefix: PrefixKeys) -> int:
        """Tokens of the part of the prompt that requests in flight are computing there."""
        if not self._provisional:
            return 0
        count = self._count(prefix.keys)
        is_expected = count and prefix.keys[count - 1] in self._provisional
        return prefix.ends[count - 1] if is_expected else 0

    def claim(self, prefix: PrefixKeys, matched: int | None = None) -> "PrefixClaim":
        """Mark a prompt as sent to the engine, whose cache will hold it. `matched`: tokens that it
        holds already; by default what `match` returns."""
        keys, chunks, provisional = prefix.keys, self._chunks, self._provisional
        count = self._count(keys)
        if matched is None:
            matched = prefix.ends[count - 1] if count else 0
        claim = PrefixClaim(self, prefix, matched)
        for key in keys if provisional else keys[count:]:
            if key not in chunks or key in provisional:
                provisional[key] = claim
        self._use(prefix)
        return claim

    def confirm(self, prefix: PrefixKeys, matched: int) -> None:
        """Mark a claimed prompt as held: the engine has computed it, except `matched` tokens.

        The claim has just made its chunks the most recently used, so they are moved again only if
        some have been evicted since.
        """
        self._computed(prefix, matched)
        if prefix.keys[-1] not in self._chunks:
            self._use(prefix)

    def hold(self, prefix: PrefixKeys) -> None:
        """The cache holds this prompt, which another process has sent there."""
        self._computed(prefix, self.match(prefix))
        self._use(prefix)

    def drop(self, claim: "PrefixClaim", prefix: PrefixKeys) -> None:
        """Remove the provisional chunks of a request that failed or was cancelled before its first
        token."""
        for key in prefix.keys:
            if self._provisional.get(key) is claim:
                del self._provisional[key]
                self.tokens -= self._chunks.pop(key, 0)

    def take_new_prompts(self) -> list[PrefixKeys]:
        """Return `new_prompts` and empty it."""
        found = self.new_prompts or []
        if found:
            self.new_prompts = []
        return found

    def clear(self) -> None:
        """Forget everything: the engine was restarted, and its cache is empty."""
        self._chunks.clear()
        self._provisional.clear()
        self.tokens = 0

    def resize(self, capacity: int) -> None:
        """Set the capacity, in tokens."""
        self.capacity = capacity
        self._evict()

    def _count(self, keys: tuple[int, ...]) -> int:
        """How many of a prompt's chunks it holds, from the first on."""
        chunks, end = self._chunks, len(keys)
        if not end or keys[0] not in chunks:
            return 0
        if keys[-1] in chunks:  # a prompt that comes again
            return end
        count = 1
        while end - count > 1:  # it holds `count`, and not `end`
            middle = (count + end) // 2
            if keys[middle - 1] in chunks:
                count = middle
            else:
                end = middle
        return count

    def _computed(self, prefix: PrefixKeys, matched: int) -> None:
        """Count a prediction, and turn provisional chunks into held ones."""
        self.prompt_tokens += prefix.ends[-1]
        self.predicted_tokens += matched
        provisional = self._provisional
        if provisional:
            for key in prefix.keys:
                provisional.pop(key, None)

    def _use(self, prefix: PrefixKeys) -> None:
        """Make the prompt's chunks the most recently used, its first chunk most of all."""
        chunks, ends = self._chunks, prefix.ends
        use, evictions = chunks.move_to_end, self.evictions
        place = len(ends)
        for key in reversed(prefix.keys):
            place -= 1
            if key in chunks:
                use(key)
            else:
                own = ends[place] - (ends[place - 1] if place else 0)
                chunks[key] = tokens = max(MIN_CHUNK_TOKENS, own)
                self.tokens += tokens
                evictions.computed(key)
        if self.tokens > self.capacity or len(chunks) > MAX_CHUNKS:
            self._evict()

    def _evict(self) -> None:
        chunks = self._chunks
        while chunks and (self.tokens > self.capacity or len(chunks) > MAX_CHUNKS):
            key = next(iter(chunks))
            self.tokens -= chunks.pop(key)
            self._provisional.pop(key, None)
            self.evictions.evicted(key)


class PrefixClaim:
    """One request's prompt on one engine, until it is known whether the engine has computed it."""

    __slots__ = ("_held", "_matched", "_prefix")

    def __init__(self, held: HeldPrefixes, prefix: PrefixKeys, matched: int) -> None:
        self._held: HeldPrefixes | None = held
        self._prefix = prefix
        self._matched = matched

    def confirm(self) -> None:
        """The first token came: the engine has computed the prompt. Idempotent."""
        held, self._held = self._held, None
        if held is not None:
            held.confirm(self._prefix, self._matched)
            if held.new_prompts is not None:
                held.new_prompts.append(self._prefix)

    def drop(self) -> None:
        """The request is over; no effect after `confirm`. Idempotent."""
        held, self._held = self._held, None
        if held is not None:
            held.drop(self, self._prefix)
