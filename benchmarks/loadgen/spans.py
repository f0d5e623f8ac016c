"""From the times of a job's requests to figures.

Pure. Times are seconds of one clock; absence is None.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.distributions import middle_rate, percentile

# A long job is looked at in parts of so many seconds: figures of the whole hide a drift.
PERIOD_S = 60.0


@dataclass(frozen=True, slots=True)
class Span:
    """One request that was answered whole: when it was sent, its first event came, it ended."""

    started: float
    first: float
    ended: float


def figures(
    spans: Sequence[Span], began: float, frozen: Sequence[float] | None = None
) -> dict[str, Any]:
    """Latencies and rates; `frozen` is a time during the job, relative to `began`."""
    started, first, ended = (
        np.asarray([getattr(span, name) for span in spans])
        for name in ("started", "first", "ended")
    )
    ttft, whole = first - started, ended - started
    wall = float(ended.max() - started.min()) if len(spans) else None
    found: dict[str, Any] = {
        "wall_s": wall,
        "requests_per_s": len(spans) / wall if wall else None,
        "middle_per_s": middle_rate(ended.tolist()),
        "first_p50_s": percentile(ttft, 50),
        "first_p99_s": percentile(ttft, 99),
        "whole_p50_s": percentile(whole, 50),
        "whole_p99_s": percentile(whole, 99),
        "whole_max_s": percentile(whole, 100),
        "completions": np.bincount((ended - began).astype(int)).tolist() if len(spans) else [],
    }
    if frozen is not None:
        during = (started - began >= frozen[0]) & (started - began < frozen[1])
        found["frozen_requests"] = int(during.sum())
        found["frozen_first_p99_s"] = percentile(ttft[during], 99)
        found["frozen_first_max_s"] = percentile(ttft[during], 100)
    return found


def periods(spans: Sequence[Span], began: float) -> list[dict[str, Any]]:
    """Requests sent in each PERIOD_S since `began`, with their TTFT."""
    started = np.asarray([span.started for span in spans])
    ttft = np.asarray([span.first for span in spans]) - started
    place = ((started - began) // PERIOD_S).astype(int)
    return [
        {
            "requests": int((place == number).sum()),
            "first_p50_s": percentile(ttft[place == number], 50),
            "first_p99_s": percentile(ttft[place == number], 99),
        }
        for number in range(int(place.max()) + 1 if len(place) else 0)
    ]
