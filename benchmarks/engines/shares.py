"""Which engine got how many of a job's requests, second by second.

Pure.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

# What counts as being used again like the others.
BACK = 0.8


def timeline(counts: Counter[int]) -> list[int]:
    """Counts by second as a list from second 0 on."""
    return [counts[second] for second in range(max(counts, default=-1) + 1)]


def share(arrivals: Sequence[Sequence[int]], engine: int, since_s: int) -> list[float | None]:
    """The engine's requests relative to its fair share, for each second from `since_s` on.

    1 is the average of the engines. None for a second without requests. The last second is
    excluded, because the job ends in it.
    """
    seconds = max((len(each) for each in arrivals), default=0)
    found: list[float | None] = []
    for second in range(since_s, seconds - 1):
        here = [each[second] if second < len(each) else 0 for each in arrivals]
        found.append(here[engine] * len(here) / sum(here) if sum(here) else None)
    return found


def returned(shares: Sequence[float | None]) -> dict[str, Any]:
    """Seconds until the end of the first of two fair seconds in a row, and the most over the share.

    A single second may be a burst of the engine's former streams. None if it never recovered
    within the job.
    """
    known = [each for each in shares if each is not None]
    fair = [each is not None and each >= BACK for each in shares]
    back = next((n for n, pair in enumerate(pairwise(fair), 1) if all(pair)), None)
    return {
        "back_after_s": back,
        "overshoot": max(max(known) - 1, 0.0) if known else None,
        "shares": list(shares),
    }
