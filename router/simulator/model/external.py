"""KV caches that other engines have pushed (LMCache), looked up by the hash of their tokens."""

from collections import OrderedDict

from router.simulator.model.blocks import link
from router.simulator.model.sequence import Prompt

_MAX_BLOCKS = 100_000
"""Most blocks; the oldest are dropped first."""


class ExternalCache:
    """Prefixes that can be loaded instead of computed."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, contents: list[int], tokens: int, block_size: int) -> None:
        """Add the blocks of a prompt of `tokens` tokens; the last one may be partly filled."""
        for place, content in enumerate(contents, 1):
            self._known[min(place * block_size, tokens), content] = None
        while len(self._known) > _MAX_BLOCKS:
            self._known.popitem(last=False)

    def longest(self, prompt: Prompt) -> int:
        """Tokens of the longest known prefix, at most one less than the prompt has."""
        whole, size = len(prompt), prompt.block_size
        if (whole, prompt.contents[-1]) in self._known:
            return whole - 1
        start = (whole - 1) // size * size
        before = prompt.contents[start // size - 1] if start else prompt.salt
        if (whole - 1, link(prompt.tokens[start : whole - 1], before)) in self._known:
            return whole - 1
        for place in range(start // size, 0, -1):
            if (place * size, prompt.contents[place - 1]) in self._known:
                return place * size
        return 0
