"""What the judge finds of one engine at a tick, and by which configuration."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from router.core.judge.outlier import OutlierConfig
from router.core.values import Role

__all__ = ["CLEAR", "Exclusion", "ExclusionConfig", "SlowdownHistory", "Stall", "Verdict"]


class Exclusion(StrEnum):
    """Why an engine that is up gets no new requests (ejected, stalled) or few (slow)."""

    EJECTED = "ejected"
    """It fails more often than others (outlier ejection)."""
    STALLED = "stalled"
    """It has open streams and produces no tokens."""
    SLOW = "slow"
    """It takes several times the pool's median time; only used by policies that avoid slow
    engines."""


@dataclass(frozen=True, slots=True)
class ExclusionConfig:
    """When engines are excluded and how they return."""

    stall_seconds: float = 2.0
    """Seconds without a token on any open stream after which an engine is stalled; 0: never."""
    outliers: OutlierConfig = field(default_factory=OutlierConfig)
    max_excluded: float = 0.5
    """Share of a pool, 0 to 1, that may be stalled or ejected. If more are, all engines are used
    (panic)."""
    slow_start_seconds: float = 5.0
    """Seconds from an engine's return until it has its full share; 0: at once."""
    speed_roles: frozenset[Role] = frozenset(Role)
    """Roles whose policy avoids slow engines. There, an engine that is fast again gets a slow
    start."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Since when the engine is stalled, None if it is not."""

    since: float | None = None
    silent_at: float = -math.inf
    """When requests were last seen to wait there in vain."""


CLEAR = Stall()


class SlowdownHistory(NamedTuple):
    """Moving average of an engine's slowdown, and the lowest that the average has been."""

    slowdown: float
    best: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found of an engine at a tick. The next verdict begins from it."""

    stall: Stall = CLEAR
    slow_since: float | None = None
    unsteady_since: float = -math.inf
    """When it became slow; if it became slow again during slow start, when it first did."""
    slowdowns: tuple[float, ...] = ()
    """Seconds per token over the median of engines that serve its models, at each of the last
    ticks, oldest first; 1 where unknown."""
    history: SlowdownHistory | None = None
    """Its long-term slowdown; None if unknown."""
    average_gap: float | None = None
    """Moving average of a prefill engine's seconds per prompt token; None if unknown."""
    median: float | None = None
    """Median seconds per token (prefill: per prompt token) of the engines with which it has models
    in common, including itself; None if unknown."""
    lowest_median: float | None = None
    """The lowest that the median has been lately; see `MEDIAN_DRIFT`."""
    prompt_slowdown: float = 1.0
    """How many times slower than its slowdown it computes prompts, if significantly."""
    prompt_cost: float = 0.0
    """The cost of a pending prompt token, in requests of mean length."""
    eviction_cost: float = 0.0
    """The cost of evicting a token from its KV cache, in requests of mean length."""
    negligible_tokens: float | None = None
    """Pending prompt tokens that delay a first token too little to matter; None: as before."""
    returned_at: float | None = None
    """The begin of its slow start, if it returns at this tick."""
    least_slots: float | None = None
    """If it is no longer slow: the most sequences that one of the others runs. Fewer were learned
    while it got few requests."""
