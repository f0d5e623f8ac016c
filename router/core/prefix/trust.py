"""How much is known of engines' prefix caches, and how reliable it is.

Predictions are wrong where an engine evicts earlier than assumed, was reset, has no prefix cache,
or renders prompts differently from what the keys assume. The engine counts the tokens that
it looked up and found (`vllm:prefix_cache_queries_total`, `_hits_total`); they scale the
predictions and the share of the cache that this router's prompts are assumed to have.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from router.core.values import Gauges

__all__ = [
    "EVENTS",
    "FAR_OFF",
    "HISTORY",
    "NOTHING",
    "KnownBy",
    "KnownPrefix",
    "PrefixCoverage",
    "PrefixTrust",
    "RecentTokens",
]


class KnownBy(StrEnum):
    """The evidence of how much of a prompt an engine's prefix cache holds."""

    EVENTS = "events"
    """Its KV-cache events."""
    HISTORY = "history"
    """The prompts that this router sent there."""
    NOTHING = "nothing"
    """None: there are no events for it, or the engine finds less than half of what is predicted."""


# Python 3.11 looks an Enum's members up in a slow way: the path of a request uses these names.
EVENTS: Final = KnownBy.EVENTS
HISTORY: Final = KnownBy.HISTORY
NOTHING: Final = KnownBy.NOTHING


class KnownPrefix(NamedTuple):
    """What is known of one prompt in an engine's prefix cache."""

    held: int
    """Estimated tokens of the prompt, those that requests under way are computing included."""
    trust: float
    """The share of `held`, 0 to 1, that counts."""
    known_by: KnownBy


class PrefixCoverage:
    """Totals, in estimated tokens, of the prompts that one engine was given to compute."""

    __slots__ = ("by_events", "by_history", "by_nothing", "regret")

    def __init__(self) -> None:
        self.by_events = 0
        """Tokens of the prompts that were looked up by its KV-cache events."""
        self.by_history = 0
        """Tokens of the prompts that were looked up in the history of sent prompts."""
        self.by_nothing = 0
        """Tokens of the prompts without reliable evidence."""
        self.regret = 0
        """Tokens that were to be computed there although another candidate held them: what the
        engine did not hold, less what the candidate that held most did not."""

    def add(self, tokens: int, known_by: KnownBy, regret: int) -> None:
        """Count a prompt."""
        self.regret += regret
        if known_by is HISTORY:
            self.by_history += tokens
        elif known_by is EVENTS:
            self.by_events += tokens
        else:
            self.by_nothing += tokens

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of the prompts, by the evidence."""
        return {
            "events": self.by_events,
            "history": self.by_history,
            "nothing": self.by_nothing,
        }

    @property
    def blind_share(self) -> float | None:
        """The share of these tokens of which nothing dependable was known; None: no prompts yet."""
        total = self.by_events + self.by_history + self.by_nothing
        return self.by_nothing / total if total else None


DECAY: Final = 0.95
"""Decay factor per scrape: at one scrape a second, counts span about twenty seconds."""

ROOM_DECAY: Final = 0.998
"""Decay factor per scrape of the counts for `room`, which span about eight minutes. Less room
removes predictions at once, and more room does not bring them back, so it must not fluctuate with
prompts that are looked up before a scrape and answered after it. (With 0.95, less is found in
`pd-router simulate`, and first tokens of `conversation` and `synthetic` come a tenth later.)"""

MIN_ROOM, MAX_ROOM = 0.125, 4.0
"""Bounds of `room`. CJK text has four times the estimated tokens; token ids have exactly the
estimate."""

BELIEVED: Final = 0.8
"""Shares from here on count as 1; otherwise small differences between engines would decide among
engines that all hold a prefix."""

MIN_TOKENS: Final = 4_000.0
"""Tokens (decayed) from which the counters are used."""


FAR_OFF: Final = 0.5
"""Below this share predictions do not count as knowledge. It is logged, and again once the share is
`BELIEVED`."""

SETTLED_SCRAPES: Final = 10
"""Scrapes in a row that must agree before it is logged."""


class RecentTokens(NamedTuple):
    """Tokens of about the last twenty scrapes, exponentially decayed."""

    prompts: float = 0.0
    """Estimated tokens of the prompts that were sent there."""
    predicted: float = 0.0
    """Estimated prompt tokens that it was predicted to hold."""
    queries: float = 0.0
    """Tokens that it looked up in its prefix cache for all clients, by its own counter."""
    hits: float = 0.0
    """Tokens that it found there, by its own counter."""


class PrefixTrust:
    """Compares predictions, in estimated tokens, with an engine's counters, in its own tokens."""

    def __init__(self) -> None:
        self.share = 1.0
        """The share, 0 to 1, of predicted tokens that the engine really finds; 1 until known."""
        self.room = 1.0
        """Estimated new tokens of this router's prompts per token that comes into the engine's
        cache: generated ones and those of other clients take room in it too."""
        self.is_measured = False
        """Whether `share` has been measured from the engine's counters."""
        self.is_far_off = False
        """Whether the share was below `FAR_OFF` for a while and is not `BELIEVED` again yet."""
        self._scrapes_against = 0
        """Scrapes in a row that contradict `is_far_off`."""
        self._prompts = self._predicted = self._queries = self._hits = 0.0
        self._estimated_new = self._new = 0.0
        """New tokens in the cache: as estimated, and as the engine counts them."""
        self._before: tuple[int, int, int, int, int] | None = None

    @property
    def recent(self) -> RecentTokens:
        """The counts that the share is computed from."""
        return RecentTokens(self._prompts, self._predicted, self._queries, self._hits)

    def observe(self, prompt_tokens: int, predicted_tokens: int, gauges: Gauges) -> None:
        """Learn from a scrape. `prompt_tokens`: estimated tokens of all prompts sent there so far;
        `predicted_tokens`: how many of them were predicted to be cached."""
        all_queries, all_hits = gauges.cache_queries, gauges.cache_hits
        if all_queries is None or all_hits is None:
            self._before = None
            return
        now = (prompt_tokens, predicted_tokens, all_queries, all_hits, gauges.generated or 0)
        before, self._before = self._before, now
        if before is None or any(new < old for new, old in zip(now, before, strict=True)):
            return
        prompts, predicted, queries, hits, generated = (
            new - old for new, old in zip(now, before, strict=True)
        )
        self._prompts = DECAY * self._prompts + prompts
        self._predicted = DECAY * self._predicted + predicted
        self._queries = DECAY * self._queries + queries
        self._hits = DECAY * self._hits + hits
        self._estimated_new = ROOM_DECAY * self._estimated_new + prompts - predicted
        self._new = ROOM_DECAY * self._new + queries - hits + generated
        if self._new >= MIN_TOKENS:
            self.room = min(max(self._estimated_new / self._new, MIN_ROOM), MAX_ROOM)
        if self._predicted >= MIN_TOKENS:
            # Neither how many tokens the estimate misses is known nor who else asks there: an
            # engine that finds enough by either measure is believed. One that looks nothing up
            # caches nothing (vLLM with --no-enable-prefix-caching).
            per_prompt_token = max(1.0, self._prompts / self._queries) if self._queries else 1.0
            share = per_prompt_token * self._hits / self._predicted
            self.share = 1.0 if share >= BELIEVED else share
            self.is_measured = True
            self._judge()

    def _judge(self) -> None:
        is_against = self.share >= BELIEVED if self.is_far_off else self.share < FAR_OFF
        self._scrapes_against = self._scrapes_against + 1 if is_against else 0
        if self._scrapes_against >= SETTLED_SCRAPES:
            self.is_far_off, self._scrapes_against = not self.is_far_off, 0
