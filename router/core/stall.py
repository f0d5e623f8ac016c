"""Stall detection: an engine with open streams has stopped producing tokens.

Independent of health probes and of speed. Only engines that have produced tokens before can stall:
a first token after 42 s is a warm-up (CUDA graphs are captured then).
"""

from dataclasses import dataclass

from router.core.speed_estimator import SpeedEstimator
from router.core.values import Gauges

__all__ = ["CLEAR", "Stall", "after", "has_generated"]

GAP_FACTOR = 20.0
"""Times the expected gap between tokens: a step that prefills a long prompt takes several."""

PREFILL_FACTOR = 4.0
"""Times the expected prefill time of all pending prompts."""

TRANSFER_SECONDS = 10.0
"""Grace for an engine on which all that waits is KV caches being loaded: nothing can be computed
until they are there, and 4 GB over 10 Gb/s take 3.4 s."""

RETRY_SECONDS = 30.0
"""A stalled engine with nothing open is tried again after this long."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Since when the endpoint is stalled, None if it is not."""

    since: float | None = None


CLEAR = Stall()


def after(
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
    if stall.since is not None:
        has_resumed = speed.last_token_at > stall.since
        is_due = speed.all_open == 0 and now - stall.since > RETRY_SECONDS
        return CLEAR if has_resumed or is_due else stall
    if not seconds or speed.all_open == 0 or not speed.is_warm:
        return CLEAR
    silent_since = max(speed.last_token_at, speed.busy_since)
    limit = max(seconds, GAP_FACTOR * expected_gap * speed.calibration.tokens_per_event)
    if speed.all_streams == 0:  # all wait for a first token
        computing = PREFILL_FACTOR * (speed.per_prompt_token or 0.0) * pending
        limit = max(limit, computing if pending else TRANSFER_SECONDS)
    return Stall(now) if now - silent_since > limit else CLEAR


def has_generated(before: Gauges | None, now: Gauges | None) -> bool:
    """Whether the engine has generated tokens between two scrapes: it is alive, also where a parser
    (of tool calls, say) holds them back."""
    if before is None or now is None or before.generated is None or now.generated is None:
        return False
    return now.generated > before.generated
