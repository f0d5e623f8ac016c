"""Which engines of a large pool were sent a prompt's beginning last.

Of a large pool a request considers a sample (`core/fleet/eligible.py`), to which those that hold
its prompt are added. Here they are found without a look at each engine. It may be out of date, and
does not say how much they hold: `HeldPrefixes` does.
"""

from collections import OrderedDict
from typing import Final

from router.core.values import Endpoint, PrefixKeys

__all__ = ["MAX_HOLDERS", "RecentHolders"]

MAX_HOLDERS: Final = 4
"""Of a prefix: enough that a common one has a holder without a queue, and few beside the sample."""

NOTED_BITS: Final = 7
"""Keys without these bits are noted, one in eight or a thousand tokens, and each prompt's last one,
with which a conversation goes on: an eighth of the memory and of the work."""

MAX_KEYS: Final = 1 << 18
"""Keys that are noted, some 50 MB. One in eight of what a thousand engines hold are twice as many,
of which most are of prompts that do not come again."""


class RecentHolders:
    """Holders by the keys of prompts' prefixes: `max_keys`, the least recently used forgotten
    first."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._holders: OrderedDict[int, tuple[Endpoint, ...]] = OrderedDict()

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._holders)

    def note(self, prefix: PrefixKeys, endpoint: Endpoint) -> None:
        """The engine is sent a prompt with these keys."""
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
        """The engines that were sent the longest known part of the prompt, the latest first."""
        for key in reversed(prefix.keys):
            found = self._holders.get(key)
            if found is not None:
                return found
        return ()
