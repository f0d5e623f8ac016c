"""What the KV caches of a pool evict, and how much of that is asked for again.

A cache evicts what has not been used for longest. If that is an old conversation, nothing is lost.
If it is one of more prefixes than all caches can hold, it will have to be computed once more.
"""

from collections import OrderedDict
from typing import Final

__all__ = ["Evictions"]

NOT_SAMPLED: Final = 15
"""Bits of a key (a hash) that are 0 in a chunk that is followed: one in 16."""

MAX_REMEMBERED: Final = 4096
"""Evicted chunks that are remembered: they are a million tokens where each has 16."""

SPAN: Final = 1024.0
"""Evicted chunks of which `wanted_share` is a mean: 260,000 tokens where each has 16. (With 256
`pd-router simulate` finds less where prefixes fill the caches.)"""

STEEPNESS: Final = 4
"""Power of the share that is not wanted by which `weight` is divided. With 1 each recomputed token
evicts others in turn; more is what `pd-router simulate` finds best where prefixes fill the caches,
and small shares weigh what they are."""

MAX_WEIGHT: Final = 4.0
"""An engine that holds a prompt gets it while no more than some five times its length is ahead
there."""


class Evictions:
    """Those of all engines of a pool: what one has evicted may be asked for at another."""

    def __init__(self) -> None:
        self.wanted_share = 0.0
        """Share of what is evicted that an engine has to compute again soon."""
        self._chunks: OrderedDict[int, None] = OrderedDict()
        """Keys of what has been evicted, the longest ago first."""

    @property
    def weight(self) -> float:
        """What an evicted token costs, in computed ones. As much of it as is wanted is computed
        again, which evicts what may be wanted in turn, and delays the requests behind it."""
        share = self.wanted_share
        rest = (1.0 - share) ** STEEPNESS
        return share / rest if share < MAX_WEIGHT * rest else MAX_WEIGHT

    def evicted(self, key: int) -> None:
        """An engine has evicted a chunk."""
        if key & NOT_SAMPLED:
            return
        self.wanted_share -= self.wanted_share / SPAN
        chunks = self._chunks
        chunks[key] = None
        chunks.move_to_end(key)
        if len(chunks) > MAX_REMEMBERED:
            chunks.popitem(last=False)

    def computed(self, key: int) -> None:
        """An engine computes a chunk that it does not hold."""
        if not key & NOT_SAMPLED and key in self._chunks:
            del self._chunks[key]
            self.wanted_share = min(1.0, self.wanted_share + 1.0 / SPAN)
