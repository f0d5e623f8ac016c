"""Has an engine stopped to speak? A judgement over its pace, apart from health and speed.

It applies to an engine that has been heard before: a first token after 42 s is a warm-up (CUDA
graphs are captured then), not a stall.
"""

from dataclasses import dataclass

from router.core.speed_estimator import SpeedEstimator

__all__ = ["CLEAR", "Stall", "after"]

GAP_FACTOR = 20.0
"""Times the usual gap between tokens: a step that prefills a long prompt takes several."""

PREFILL_FACTOR = 4.0
"""Times the seconds that the prompts ahead should take."""

RETRY_SECONDS = 30.0
"""After so long with nothing open there it is tried again, for want of any sign."""


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
    """The judgement after a tick.

    `seconds` is the shortest silence that counts (0: never), `expected_gap` the longer of the
    engine's own and its pool's seconds per token, `pending` its prompt tokens to compute.
    """
    if stall.since is not None:
        spoke = speed.last_token_at > stall.since
        forgotten = speed.all_open == 0 and now - stall.since > RETRY_SECONDS
        return CLEAR if spoke or forgotten else stall
    if not seconds or speed.all_open == 0 or not speed.is_warm:
        return CLEAR
    silent_since = max(speed.last_token_at, speed.busy_since)
    limit = max(seconds, GAP_FACTOR * expected_gap)
    if speed.all_streams == 0:  # all wait for a first token
        limit = max(limit, PREFILL_FACTOR * (speed.per_prompt_token or 0.0) * pending)
    return Stall(now) if now - silent_since > limit else CLEAR
