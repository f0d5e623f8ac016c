"""Which engines of a large pool were last sent a given prompt prefix.

In a large pool the scheduler considers a sample of the engines (`core/fleet/eligible.py`) plus
those that probably hold the prompt. This index finds them without checking each engine. It may be
out of date and does not tell how much they hold; `HeldPrefixes` does.
"""

from collections import OrderedDict
from typing import Final

from router.core.request_facts import PrefixKeys
from router.core.values import Endpoint

__all__ = ["MAX_HOLDERS", "RecentHolders"]

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
    """Holders by prefix key, for up to `max_keys` keys; the least recently used are dropped."""

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
