"""One request at one modelled engine, as both sides see it."""

from enum import IntEnum

from router.core.pace import Leg

__all__ = ["Answer", "Attempt", "Stage"]


class Answer(IntEnum):
    """What the engine says to a new request."""

    ACCEPTED = 200
    FULL = 503
    REFUSED = 0
    """Nobody listens."""


class Stage(IntEnum):
    """Where an attempt is in its engine."""

    WAITING = 0
    PREFILL = 1
    DECODE = 2
    ENDED = 3


class Attempt:
    """One request at one engine. Whoever makes it is told of its fate by the three methods."""

    __slots__ = ("left", "leg", "output", "prompt", "replica", "stage")

    leg: Leg

    def __init__(self, replica: int, prompt: int, output: int) -> None:
        self.replica = replica
        self.prompt = prompt
        self.output = output
        self.left = prompt
        """Prompt tokens that are still to be computed."""
        self.stage = Stage.WAITING

    def on_first(self, now: float) -> None:
        """The first token came."""
        raise NotImplementedError

    def on_last(self, now: float) -> None:
        """All tokens came."""
        raise NotImplementedError

    def on_lost(self, now: float) -> None:
        """The connection broke."""
        raise NotImplementedError
