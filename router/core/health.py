"""Is an engine there? A transition table over what probes and requests saw.

It knows nothing of errors in answers (outlier ejection) or of speed: those are other judgements.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Health", "Rules", "Sight", "State", "after"]


class State(StrEnum):
    """What is known of an engine's presence."""

    STARTING = "starting"
    """Never seen up: not used."""
    UP = "up"
    DRAINING = "draining"
    """It answers, and asks for no new work (503 on /health): open streams go on."""
    DOWN = "down"


class Sight(StrEnum):
    """What a probe or a request saw."""

    OK = "ok"
    UNWILLING = "unwilling"
    """/health answered 503."""
    FAILED = "failed"
    """No connection, no answer in time, or an answer that is not a health answer."""


@dataclass(frozen=True, slots=True)
class Rules:
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


def after(health: Health, sight: Sight, rules: Rules) -> Health:
    """The health after one more sight."""
    target = _TABLE[health.state, sight]
    if target is health.state:
        return Health(health.state)
    needed = {State.UP: rules.up_after, State.DOWN: rules.down_after}.get(target, 1)
    streak = health.streak + 1 if health.toward is target else 1
    return Health(target) if streak >= needed else Health(health.state, streak, target)


_TABLE = {
    (State.STARTING, Sight.OK): State.UP,
    (State.STARTING, Sight.UNWILLING): State.STARTING,
    (State.STARTING, Sight.FAILED): State.STARTING,
    (State.UP, Sight.OK): State.UP,
    (State.UP, Sight.UNWILLING): State.DRAINING,
    (State.UP, Sight.FAILED): State.DOWN,
    (State.DRAINING, Sight.OK): State.UP,
    (State.DRAINING, Sight.UNWILLING): State.DRAINING,
    (State.DRAINING, Sight.FAILED): State.DOWN,
    (State.DOWN, Sight.OK): State.UP,
    (State.DOWN, Sight.UNWILLING): State.DOWN,
    (State.DOWN, Sight.FAILED): State.DOWN,
}
"""State and sight to the state that is aimed at; the streak decides when it is reached."""
