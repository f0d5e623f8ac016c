"""The rules for one engine: whether it is stalled, and how slow it is.

A stall is judged independently of health probes and of speed. The first token of a cold engine may
take a minute, because it captures CUDA graphs then. A slowdown is the engine's seconds per token
relative to its pool's median.
"""

from collections.abc import Iterable

from router.core.judge.tuning import (
    COLD_SECONDS,
    GAP_FACTOR,
    HISTORY_WEIGHT,
    HUNG_SECONDS,
    MEDIAN_DRIFT,
    MIN_SLOWDOWN,
    MOST_RECOVERED,
    NOISE_SECONDS,
    PREFILL_FACTOR,
    RECOVERED,
    RETRY_SECONDS,
    SAME_PROMPTS,
    SAME_SPEED,
    TRANSFER_SECONDS,
    UNKNOWN_PREFILL_SECONDS,
)
from router.core.judge.verdict import CLEAR, SlowdownHistory, Stall
from router.core.speed.speed_estimator import SpeedEstimator

__all__ = [
    "lowest_median",
    "median_of",
    "prompt_slowdown",
    "recovered_below",
    "rise",
    "slowdown",
    "stall_after",
    "updated_history",
]


def stall_after(
    stall: Stall,
    speed: SpeedEstimator,
    expected_gap: float,
    pending: int,
    now: float,
    seconds: float,
) -> Stall:
    """The state after a tick.

    `seconds`: shortest time without tokens that is a stall (0: never). `expected_gap`: the longer
    of the engine's own and its pool's seconds per token. `pending`: prompt tokens to compute there.
    """
    if not seconds:
        return CLEAR
    counts = speed.counts
    if stall.since is not None:
        if counts.last_token_at > stall.since:
            return CLEAR
        if counts.silence(now) > min(seconds, HUNG_SECONDS):
            return Stall(stall.since, now)
        is_due = now - max(stall.since, stall.silent_at) > RETRY_SECONDS
        return CLEAR if is_due and counts.all_open == 0 else stall
    if counts.all_open == 0:
        return CLEAR
    limit = max(seconds, GAP_FACTOR * expected_gap * counts.calibration.tokens_per_event)
    if counts.all_streams == 0:  # all wait for a first token
        per_token = speed.last_per_prompt_token or UNKNOWN_PREFILL_SECONDS
        computing = PREFILL_FACTOR * per_token * pending
        limit = max(limit, computing if pending else TRANSFER_SECONDS)
    if not counts.is_warm:
        limit = max(limit, COLD_SECONDS)
    return Stall(now) if counts.silence(now) > limit else CLEAR


def median_of(measured: Iterable[float]) -> float | None:
    """The lower median, so that at least half of the engines are this fast; None if `measured` is
    empty."""
    values = sorted(measured)
    return values[(len(values) - 1) // 2] if values else None


def slowdown(
    measured: float | None,
    median: float | None,
    noise: float = NOISE_SECONDS,
    same: float = SAME_SPEED,
) -> float:
    """How many times slower than the median: at least `MIN_SLOWDOWN`, and 1 if about equal (within
    the factor `same`) or not known. `noise`: seconds added to both, so that tiny values do not
    differ."""
    if measured is None or not median:
        return 1.0
    exact = (measured + noise) / (median + noise)
    return 1.0 if 1 / same <= exact <= same else max(MIN_SLOWDOWN, exact)


def prompt_slowdown(measured: float | None, median: float | None, slowdown_: float) -> float:
    """The factor, at least 1, by which an engine is slower with prompts than by its slowdown.
    `measured`: its seconds per prompt token; `median`: the pool's. 1 if not known."""
    return max(1.0, slowdown(measured, median, 0.0, SAME_PROMPTS) / max(1.0, slowdown_))


def lowest_median(before: float | None, median: float | None) -> float | None:
    """The lowest median of a pool after a tick with this median; None if none is known."""
    if before is None or median is None:
        return median
    return min(before * MEDIAN_DRIFT, median)


def rise(median: float | None, lowest: float | None) -> float:
    """By which factor the pool has become slower lately; at least 1."""
    if median is None or lowest is None:
        return 1.0
    return (median + NOISE_SECONDS) / (lowest + NOISE_SECONDS)


def updated_history(before: SlowdownHistory | None, slowdown_: float) -> SlowdownHistory:
    """The history after a tick with this slowdown."""
    if before is None:
        return SlowdownHistory(slowdown_, slowdown_)
    average = before.slowdown + HISTORY_WEIGHT * (slowdown_ - before.slowdown)
    return SlowdownHistory(average, min(before.best, average))


def recovered_below(history: SlowdownHistory | None) -> float:
    """Slowdown below which an engine is no longer slow: about what it was at its best."""
    if history is None or history.best >= MOST_RECOVERED:
        return RECOVERED
    return max(RECOVERED, min(MOST_RECOVERED, SAME_SPEED * history.best))
