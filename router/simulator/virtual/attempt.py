"""One request at one modelled engine, as both sides see it."""

from collections.abc import Callable
from enum import IntEnum

from router.core.leg_timer import LegTimer

__all__ = ["Answer", "Attempt", "Stage"]


class Answer(IntEnum):
    """What the engine says to a new request."""

    ACCEPTED = 200
    FAILED = 500
    FULL = 503
    REFUSED = 0
    """Nobody listens."""


class Stage(IntEnum):
    """Where an attempt is in its engine."""

    ARRIVING = 0
    """Its KV cache is on the way from a prefill engine."""
    WAITING = 1
    PREFILL = 2
    DECODE = 3
    ENDED = 4


class Attempt:
    """One request at one engine. Whoever makes it is told of its fate by the four methods.

    With `transfer_seconds` its prompt's KV cache comes from another engine in so many seconds;
    `source` tells whether that engine still has it. None: the prompt is computed here.
    """

    __slots__ = (
        "arrived",
        "free_elsewhere",
        "left",
        "leg",
        "model",
        "output",
        "prompt",
        "replica",
        "source",
        "stage",
        "transfer_seconds",
    )

    leg: LegTimer

    def __init__(
        self,
        replica: int,
        prompt: int,
        output: int,
        model: str | None = None,
        transfer_seconds: float | None = None,
        source: Callable[[], bool] = bool,
    ) -> None:
        self.replica = replica
        self.prompt = prompt
        self.output = output
        self.model = model
        self.transfer_seconds = transfer_seconds
        self.source = source
        self.left = 0 if transfer_seconds is not None else prompt
        """Prompt tokens that are still to be computed."""
        self.stage = Stage.WAITING
        self.arrived = 0.0
        """When it came to its engine."""
        self.free_elsewhere = 0.0
        """Its engine's `free_elsewhere` for its model at that time."""

    def on_first(self, now: float) -> None:
        """The first token came."""
        raise NotImplementedError

    def on_last(self, now: float) -> None:
        """All tokens came."""
        raise NotImplementedError

    def on_lost(self, now: float) -> None:
        """The connection broke."""
        raise NotImplementedError

    def on_error(self, status: int, now: float) -> None:
        """The engine answered with an error: it could not load the KV cache."""
        raise NotImplementedError
