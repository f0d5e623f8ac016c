"""Estimates the share of the evicted prefix-cache chunks of a pool that are requested again.

A cache evicts the least recently used chunks. If they are of a finished conversation, nothing is
lost. If there are more prefixes in use than the caches can hold, they have to be computed again.
"""

from collections import OrderedDict
from typing import Final

__all__ = ["Evictions"]

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
    """The evictions of all engines of a pool: what one has evicted may be requested on another."""

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
