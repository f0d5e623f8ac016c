"""The prompt prefixes that engines' KV caches are predicted to hold, from the prompts that this
router sent there.

vLLM frees the blocks of a request from the tail and evicts the least recently used ones. The same
order is kept here: a prefix is never evicted before its continuations, so the length of the part of
a prompt that is held can be found by bisection.
"""

from collections import OrderedDict
from collections.abc import Container
from typing import Final

from router.core.request_facts import PrefixKeys
from router.core.values import Endpoint

__all__ = [
    "DEFAULT_CAPACITY",
    "MAX_CHUNKS",
    "MAX_HOLDERS",
    "Evictions",
    "HeldPrefixes",
    "PrefixClaim",
    "RecentHolders",
]

NOT_SAMPLED: Final = 15
"""Mask: only chunks whose key (a hash) has these bits 0 are sampled, one in 16."""

MAX_REMEMBERED: Final = 4096
"""Most sampled evictions that are remembered: a million tokens in chunks of 16."""

SPAN: Final = 1024.0
"""Span of the moving average `wanted_share`, in sampled evictions: 260,000 tokens in chunks of 16.
(With 256, `pd-router simulate` has fewer cache hits where prefixes fill the caches.)"""

STEEPNESS: Final = 4
"""Power of the share that is not wanted by which `weight` is divided. With 1 each recomputed token
evicts others in turn; more is what `pd-router simulate` finds best where prefixes fill the caches,
and small shares weigh what they are."""

MAX_WEIGHT: Final = 4.0
"""Upper bound of `weight`. With it, an engine that holds a prompt gets it unless the tokens queued
there exceed about five times the prompt's length."""


class Evictions:
    """Estimates the share of the evicted chunks of a pool that are requested again.

    A cache evicts the least recently used chunks. If they are of a finished conversation, nothing
    is lost. If there are more prefixes in use than the caches can hold, they have to be computed
    again. All engines of a pool count, because what one evicts may be requested on another.
    """

    def __init__(self) -> None:
        self.wanted_share = 0.0
        """Share, 0 to 1, of evicted chunks that an engine of the pool soon computes again."""
        self._chunks: OrderedDict[int, None] = OrderedDict()
        """Keys of evicted chunks, oldest first."""

    @property
    def weight(self) -> float:
        """What an evicted token costs, in computed ones. As much of it as is wanted is computed
        again, which evicts what may be wanted in turn, and delays the requests behind it."""
        share = self.wanted_share
        rest = (1.0 - share) ** STEEPNESS
        return share / rest if share < MAX_WEIGHT * rest else MAX_WEIGHT

    def evicted(self, key: int) -> None:
        """Count a chunk that an engine has evicted."""
        if key & NOT_SAMPLED:
            return
        self.wanted_share -= self.wanted_share / SPAN
        chunks = self._chunks
        chunks[key] = None
        chunks.move_to_end(key)
        if len(chunks) > MAX_REMEMBERED:
            chunks.popitem(last=False)

    def computed(self, key: int) -> None:
        """Count a chunk that an engine computes because it does not hold it."""
        if not key & NOT_SAMPLED and key in self._chunks:
            del self._chunks[key]
            self.wanted_share = min(1.0, self.wanted_share + 1.0 / SPAN)


DEFAULT_CAPACITY: Final = 500_000
"""Tokens that an engine's KV cache holds if its /metrics do not say: some 31,000 blocks of 16."""


MIN_CHUNK_TOKENS: Final = 16
"""Fewest tokens that a chunk counts for: vLLM's block size. A prompt of a thousand empty messages
has a thousand chunks."""

MAX_CHUNKS: Final = 1 << 17
"""Most chunks that are kept per engine, whatever cache size it reports; they take some 24 MB. That
is 2 million tokens in chunks of 16, and 16 million in chunks of 128, as long texts have."""


class HeldPrefixes:
    """Most recently used prefixes of one engine, up to the capacity of its KV cache in tokens, and
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


MAX_HOLDERS: Final = 4
"""Engines kept per prefix: enough that a common one has a holder without a queue, and few compared
with the sample."""

NOTED_BITS: Final = 7
"""Mask: only keys with these bits 0 are recorded (one in eight, about every thousand tokens), and
the last key of each prompt, which the next turn of a conversation begins with. That takes an eighth
of the memory and of the work."""

MAX_KEYS: Final = 1 << 18
"""Most recorded keys; they take some 50 MB. An eighth of the keys that a thousand engines hold is
twice as many, but most of those are of prompts that are not sent again."""


class RecentHolders:
    """The engines of a large pool that were last sent a given prompt prefix.

    In a large pool the scheduler considers a sample of the engines (`core/fleet/pool.py`) plus
    those that probably hold the prompt. This index finds them without checking each engine. It may
    be out of date and does not say how much they hold; `HeldPrefixes` does. The least recently
    used of `max_keys` keys are dropped.
    """

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._holders: OrderedDict[int, tuple[Endpoint, ...]] = OrderedDict()

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._holders)

    def note(self, prefix: PrefixKeys, endpoint: Endpoint) -> None:
        """Record that a prompt with these keys is sent to the engine."""
        holders, last = self._holders, prefix.keys[-1]
        for key in prefix.keys:
            if key & NOTED_BITS and key != last:
                continue
            before = holders.get(key, ())
            if endpoint not in before:
                holders[key] = (endpoint, *before[: MAX_HOLDERS - 1])
            holders.move_to_end(key)
        while len(holders) > self._max_keys:
            holders.popitem(last=False)

    def of(self, prefix: PrefixKeys) -> tuple[Endpoint, ...]:
        """The engines that were sent the longest recorded part of the prompt, the latest first."""
        for key in reversed(prefix.keys):
            found = self._holders.get(key)
            if found is not None:
                return found
        return ()
