"""Engine health: a state transition table for the results of probes and connections.

A probe that times out is weak evidence: /health of a busy vLLM was seen to take 6 to 40 s
(vllm-project/vllm#38157). It is none while the engine produces tokens. An engine that is down by
time-outs alone is silent: it is used where no other engine can be (panic).

Error responses (outlier ejection) and speed are judged elsewhere.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Health", "HealthSignal", "HealthThresholds", "State", "after"]


class State(StrEnum):
    """An engine's health."""

    STARTING = "starting"
    """Not up since the router's start, so not used."""
    UP = "up"
    DRAINING = "draining"
    """/health answers 503: no new requests; open streams continue."""
    SLEEPING = "sleeping"
    """In vLLM's sleep mode, or paused: /health is good, and requests wait until it is awake."""
    DOWN = "down"


class HealthSignal(StrEnum):
    """The result of a probe or of a request's connection."""

    OK = "ok"
    UNAVAILABLE = "unwilling"
    """/health answered 503."""
    ASLEEP = "asleep"
    """/health is good, and the engine reports that it sleeps or is paused."""
    FAILED = "failed"
    """No connection, or an error."""
    TIMED_OUT = "timed out"
    """/health did not answer in time."""
    BUSY = "busy"
    """/health did not answer in time, but the engine has produced tokens meanwhile."""


@dataclass(frozen=True, slots=True)
class HealthThresholds:
    """Consecutive signals that change the state."""

    down_after: int = 3
    """Kubernetes' default failureThreshold: a single lost probe is not significant."""
    up_after: int = 1
    """An engine that answers /health has loaded its model, since vLLM does not listen earlier."""


@dataclass(frozen=True, slots=True)
class Health:
    """An engine's state, and the number of consecutive signals for another one."""

    state: State = State.STARTING
    streak: int = 0
    toward: State | None = None
    unanswered_since: float | None = None
    """When the first of the probes was sent that have timed out in a row since the engine was up
    or joined; None if the last one did not, or anything else was wrong before."""

    @property
    def is_up(self) -> bool:
        """Whether it may get new requests: /health is good, and it does not sleep."""
        return self.state is State.UP

    @property
    def is_good(self) -> bool:
        """Whether /health is good: it is up or sleeps."""
        return self.state in (State.UP, State.SLEEPING)

    @property
    def is_silent(self) -> bool:
        """Whether it is down by time-outs alone."""
        return self.state is State.DOWN and self.unanswered_since is not None

    @property
    def may_serve(self) -> bool:
        """Whether it may get requests if no other engine can: it is up or silent."""
        return self.is_up or self.is_silent


def after(
    health: Health, signal: HealthSignal, thresholds: HealthThresholds, asked_at: float = math.inf
) -> Health:
    """The health after one more signal, of a probe that was sent at `asked_at`."""
    is_back = signal is HealthSignal.BUSY and health.is_silent
    target = State.UP if is_back else _TABLE[health.state, signal]
    unanswered = _unanswered_since(health, signal, asked_at)
    if target is health.state:
        return Health(target, unanswered_since=unanswered)
    needed = {State.UP: thresholds.up_after, State.DOWN: thresholds.down_after}.get(target, 1)
    streak = health.streak + 1 if health.toward is target else 1
    if streak < needed:
        return Health(health.state, streak, target, unanswered)
    return Health(target, unanswered_since=unanswered)


def _unanswered_since(health: Health, signal: HealthSignal, asked_at: float) -> float | None:
    if signal is not HealthSignal.TIMED_OUT:
        return None
    is_first = health.unanswered_since is None and not health.streak
    if is_first and health.state in (State.STARTING, State.UP):
        return asked_at
    return health.unanswered_since


_TABLE = {
    (State.STARTING, HealthSignal.OK): State.UP,
    (State.STARTING, HealthSignal.UNAVAILABLE): State.STARTING,
    (State.STARTING, HealthSignal.ASLEEP): State.SLEEPING,
    (State.STARTING, HealthSignal.FAILED): State.STARTING,
    (State.STARTING, HealthSignal.TIMED_OUT): State.STARTING,
    (State.STARTING, HealthSignal.BUSY): State.UP,
    (State.UP, HealthSignal.OK): State.UP,
    (State.UP, HealthSignal.UNAVAILABLE): State.DRAINING,
    (State.UP, HealthSignal.ASLEEP): State.SLEEPING,
    (State.UP, HealthSignal.FAILED): State.DOWN,
    (State.UP, HealthSignal.TIMED_OUT): State.DOWN,
    (State.UP, HealthSignal.BUSY): State.UP,
    (State.DRAINING, HealthSignal.OK): State.UP,
    (State.DRAINING, HealthSignal.UNAVAILABLE): State.DRAINING,
    (State.DRAINING, HealthSignal.ASLEEP): State.SLEEPING,
    (State.DRAINING, HealthSignal.FAILED): State.DOWN,
    (State.DRAINING, HealthSignal.TIMED_OUT): State.DOWN,
    (State.DRAINING, HealthSignal.BUSY): State.DRAINING,
    (State.SLEEPING, HealthSignal.OK): State.UP,
    (State.SLEEPING, HealthSignal.UNAVAILABLE): State.DRAINING,
    (State.SLEEPING, HealthSignal.ASLEEP): State.SLEEPING,
    (State.SLEEPING, HealthSignal.FAILED): State.DOWN,
    (State.SLEEPING, HealthSignal.TIMED_OUT): State.DOWN,
    (State.SLEEPING, HealthSignal.BUSY): State.SLEEPING,
    (State.DOWN, HealthSignal.OK): State.UP,
    (State.DOWN, HealthSignal.UNAVAILABLE): State.DOWN,
    (State.DOWN, HealthSignal.ASLEEP): State.SLEEPING,
    (State.DOWN, HealthSignal.FAILED): State.DOWN,
    (State.DOWN, HealthSignal.TIMED_OUT): State.DOWN,
    (State.DOWN, HealthSignal.BUSY): State.DOWN,
}
"""The target state by state and signal; it is reached after the number of signals in the
thresholds."""
