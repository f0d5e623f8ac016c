"""Is an engine there? A transition table over what probes and requests saw.

It knows nothing of errors in answers (outlier ejection) or of speed: those are other judgements.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Health", "HealthSignal", "HealthThresholds", "State", "after"]


class State(StrEnum):
    """What is known of an engine's presence."""

    STARTING = "starting"
    """Never seen up: not used."""
    UP = "up"
    DRAINING = "draining"
    """It answers, and asks for no new work (503 on /health): open streams go on."""
    DOWN = "down"


class HealthSignal(StrEnum):
    """What a probe or a request saw."""

    OK = "ok"
    UNAVAILABLE = "unwilling"
    """/health answered 503."""
    FAILED = "failed"
    """No connection, no answer in time, or an answer that is not a health answer."""


@dataclass(frozen=True, slots=True)
class HealthThresholds:
    """How many sights in a row it takes."""

    down_after: int = 3
    """One lost probe is chance, three in a row are not (the number that Kubernetes uses)."""
    up_after: int = 1
    """An engine that answers /health has loaded its model: vLLM listens only then."""


@dataclass(frozen=True, slots=True)
class Health:
    """An engine's state, and how many sights in a row speak for which other one."""

    state: State = State.STARTING
    streak: int = 0
    toward: State | None = None

    @property
    def is_usable(self) -> bool:
        """Whether new requests may go there."""
        return self.state is State.UP


def after(health: Health, signal: HealthSignal, thresholds: HealthThresholds) -> Health:
    """The health after one more sight."""
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
"""State and sight to the state that is aimed at; the streak decides when it is reached."""
