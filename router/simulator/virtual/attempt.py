"""One request at one modelled engine, as both sides see it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from router.core.fleet.leg_timer import LegTimer


class Answer(IntEnum):
    """What the engine says to a new request."""

    ACCEPTED = 200
    FAILED = 500
    FULL = 503
    REFUSED = 0
    """The connection is refused."""


class Stage(IntEnum):
    """Where an attempt is in its engine."""

    ARRIVING = 0
    """Its KV cache is on the way from a prefill engine."""
    WAITING = 1
    PREFILL = 2
    DECODE = 3
    ENDED = 4


class Listener(Protocol):
    """Gets the events of an attempt."""

    def on_first(self, attempt: "Attempt", now: float) -> None:
        """The first token came."""

    def on_last(self, attempt: "Attempt", now: float) -> None:
        """All tokens came."""

    def on_lost(self, attempt: "Attempt", now: float) -> None:
        """The connection broke."""

    def on_error(self, attempt: "Attempt", status: int, now: float) -> None:
        """The engine answered with an error: it could not load the KV cache."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One request at one engine, the `place`th.

    With `transfer_seconds` its prompt's KV cache arrives from another engine after that time;
    `source` tells whether that engine still has it. None: the prompt is computed here.

    `contents` names what is in each full block of prompt and answer: equal numbers at equal places
    are equal prefixes up to there. Its engine fills in `blocks`, `filled` and `cached`.
    """

    listener: Listener
    replica: int
    place: int
    prompt: int
    output: int
    model: str | None = None
    transfer_seconds: float | None = None
    source: Callable[[], bool] = bool
    contents: tuple[int, ...] = ()
    is_held: bool = False
    """Whether its tokens come with the last one."""
    is_unread: bool = False
    """Whether its tokens do not count in its router: the client does not read, or catches up."""
    is_poison: bool = False
    """Whether its prompt is the workload's `poison`."""
    blocks: list[int] = field(init=False, default_factory=list)
    """The engine's blocks that it holds."""
    filled: int = field(init=False, default=0)
    """How many of `blocks` have content that can serve others."""
    cached: int = field(init=False, default=0)
    """Prompt tokens that were in the prefix cache: usage.prompt_tokens_details.cached_tokens."""
    left: int = field(init=False)
    """Prompt tokens that are still to be computed."""
    stage: Stage = Stage.WAITING
    arrived: float = 0.0
    """When it came to its engine."""
    free_elsewhere: int = 0
    """Its engine's `free_elsewhere` for its model when it joined the queue."""
    leg: LegTimer = field(init=False)

    @property
    def is_shown(self) -> bool:
        """Whether its router counts its tokens as they are generated."""
        return not self.is_held and not self.is_unread

    def __post_init__(self) -> None:
        self.left = 0 if self.transfer_seconds is not None else self.prompt
