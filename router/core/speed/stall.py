"""Stall detection: an engine with open streams has stopped producing tokens.

Independent of health probes and of speed. The first token of a cold engine may take a minute,
because it captures CUDA graphs then.
"""

import math
from dataclasses import dataclass

from router.core.speed.speed_estimator import SpeedEstimator
from router.core.values import Gauges

__all__ = ["CLEAR", "COLD_SECONDS", "Stall", "after", "has_generated", "is_warm"]

GAP_FACTOR = 20.0
"""Multiple of the expected time between tokens: a step with a long prompt takes several of it."""

PREFILL_FACTOR = 4.0
"""Multiple of the expected prefill time of all pending prompts."""

UNKNOWN_PREFILL_SECONDS = 0.001
"""Seconds per prompt token to assume for an engine whose first tokens after a prefill were never
seen (it loads KV caches, or gives unary answers). Even slow engines take less."""

COLD_SECONDS = 180.0
"""Seconds in which the first token since an engine's start may come: four times the 42 s that a
capture of CUDA graphs was seen to take."""

HUNG_SECONDS = 5.0
"""Seconds without an answer after which a stalled engine still counts as hanging, even if the
setting is longer: only probes, which wait for twice as long, are sent to it then."""

TRANSFER_SECONDS = 10.0
"""Grace, in seconds, for an engine that only waits for KV caches to be loaded: it can compute
nothing until then, and 4 GB over 10 Gb/s take 3.4 s."""

RETRY_SECONDS = 30.0
"""A stalled engine is tried again after this long without a request or probe waiting there in
vain: otherwise its recovery could not be noticed."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Since when the endpoint is stalled, None if it is not."""

    since: float | None = None
    silent_at: float = -math.inf
    """When requests were last seen to wait there in vain."""


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
    if not seconds:
        return CLEAR
    if stall.since is not None:
        if speed.last_token_at > stall.since:
            return CLEAR
        if speed.silence(now) > min(seconds, HUNG_SECONDS):
            return Stall(stall.since, now)
        is_due = now - max(stall.since, stall.silent_at) > RETRY_SECONDS
        return CLEAR if is_due and speed.all_open == 0 else stall
    if speed.all_open == 0:
        return CLEAR
    limit = max(seconds, GAP_FACTOR * expected_gap * speed.calibration.tokens_per_event)
    if speed.all_streams == 0:  # all wait for a first token
        per_token = speed.last_per_prompt_token or UNKNOWN_PREFILL_SECONDS
        computing = PREFILL_FACTOR * per_token * pending
        limit = max(limit, computing if pending else TRANSFER_SECONDS)
    if not speed.is_warm:
        limit = max(limit, COLD_SECONDS)
    return Stall(now) if speed.silence(now) > limit else CLEAR


def has_generated(before: Gauges | None, now: Gauges | None) -> bool:
    """Whether the engine has generated tokens between two scrapes: it is alive, also where a parser
    (of tool calls, say) holds them back."""
    if before is None or now is None or before.generated is None or now.generated is None:
        return False
    return now.generated > before.generated


def is_warm(before: Gauges | None, now: Gauges | None, *, was_warm: bool) -> bool:
    """Whether the engine has generated tokens since its start, when its counter of them is 0.
    `was_warm`: what was known before the scrape `now`."""
    if now is None or now.generated is None:
        return was_warm
    was_restarted = before is not None and (before.generated or 0) > now.generated
    return now.generated > 0 or (was_warm and not was_restarted)
