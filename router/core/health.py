"""Engine health: a state transition table for the results of probes and connections.

Error responses (outlier ejection) and speed are judged elsewhere.
"""

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
    DOWN = "down"


class HealthSignal(StrEnum):
    """The result of a probe or of a request's connection."""

    OK = "ok"
    UNAVAILABLE = "unwilling"
    """/health answered 503."""
    FAILED = "failed"
    """No connection, a time-out, or another error."""


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

    @property
    def is_usable(self) -> bool:
        """Whether it may get new requests."""
        return self.state is State.UP


def after(health: Health, signal: HealthSignal, thresholds: HealthThresholds) -> Health:
    """The health after one more signal."""
    target = _TABLE[health.state, signal]
    if target is health.state:
        return Health(health.state)
    needed = {State.UP: thresholds.up_after, State.DOWN: thresholds.down_after}.get(target, 1)
    streak = health.streak + 1 if health.toward is target else 1
    return Health(target) if streak >= needed else Health(health.state, streak, target)


_TABLE = {
    (State.STARTING, HealthSignal.OK): State.UP,
    (State.STARTING, HealthSignal.UNAVAILABLE): State.STARTING,
    (State.STARTING, HealthSignal.FAILED): State.STARTING,
    (State.UP, HealthSignal.OK): State.UP,
    (State.UP, HealthSignal.UNAVAILABLE): State.DRAINING,
    (State.UP, HealthSignal.FAILED): State.DOWN,
    (State.DRAINING, HealthSignal.OK): State.UP,
    (State.DRAINING, HealthSignal.UNAVAILABLE): State.DRAINING,
    (State.DRAINING, HealthSignal.FAILED): State.DOWN,
    (State.DOWN, HealthSignal.OK): State.UP,
    (State.DOWN, HealthSignal.UNAVAILABLE): State.DOWN,
    (State.DOWN, HealthSignal.FAILED): State.DOWN,
}
"""The target state by state and signal; it is reached after the number of signals in the
thresholds."""
