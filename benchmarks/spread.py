"""How evenly streams lie on engines: the largest engine's number less the smallest's, over time.

Pure. It refuses to know engines and when it is asked to look.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.spans import percentile


class Spread:
    """Collects looks since the last `take`."""

    def __init__(self) -> None:
        self._seen: list[int] = []

    def look(self, streams: Sequence[int]) -> None:
        """Note the streams of each engine at one moment."""
        self._seen.append(max(streams) - min(streams))

    def take(self) -> dict[str, Any]:
        """The figures since the last call, in streams; start again."""
        seen, self._seen = self._seen, []
        return {f"p{q}": percentile(seen, q) for q in (50, 99, 100)}
