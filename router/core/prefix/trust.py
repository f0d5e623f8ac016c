"""How far the predicted prefix-cache hits of an engine are to be believed.

Predictions are wrong where an engine evicts earlier than thought, was reset, caches nothing at all,
or renders prompts in another way than the keys assume. Its own counters say what was found
(`vllm:prefix_cache_queries_total`, `_hits_total`, in tokens), so predictions are weighed by them.
"""

from typing import Final

__all__ = ["PrefixTrust"]

DECAY: Final = 0.95
"""Factor on older counts per scrape: with one a second, they span some twenty seconds."""

MIN_TOKENS: Final = 4_000.0
"""Predicted tokens, decayed, from which the engine's counters are believed."""


class PrefixTrust:
    """The share, 0 to 1, of predicted tokens that an engine really finds; 1 until it is known.

    Hit rates are compared, not counts: predictions are in estimated tokens, and cover only the
    requests that this process sent there.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self.is_measured = False
        """Whether the engine's counters have told it."""
        self._prompts = self._predicted = self._queries = self._hits = 0.0
        self._before: tuple[int, int, int, int] | None = None

    def observe(self, prompts: int, predicted: int, queries: int | None, hits: int | None) -> None:
        """Take counts since the engine started: tokens of the prompts sent there and those of
        them predicted to be found; tokens looked up and found by its own counters."""
        if queries is None or hits is None:
            self._before = None
            return
        before, self._before = self._before, (prompts, predicted, queries, hits)
        if before is None or queries < before[2] or prompts < before[0]:
            return
        self._prompts = DECAY * self._prompts + prompts - before[0]
        self._predicted = DECAY * self._predicted + predicted - before[1]
        self._queries = DECAY * self._queries + queries - before[2]
        self._hits = DECAY * self._hits + hits - before[3]
        if self._predicted < MIN_TOKENS or not self._queries:
            return
        measured_rate = self._hits / self._queries
        self.share = min(1.0, measured_rate * self._prompts / self._predicted)
        self.is_measured = True
