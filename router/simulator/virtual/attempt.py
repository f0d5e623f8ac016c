"""One request on one modelled engine, as seen by both sides."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from router.core.fleet.leg_timer import LegTimer


class Answer(IntEnum):
    """The engine's reaction to a new request."""

    ACCEPTED = 200
    FAILED = 500
    FULL = 503
    REFUSED = 0
    """The connection is refused."""


class Stage(IntEnum):
    """The stage of an attempt on its engine."""

    ARRIVING = 0
    """Its KV cache is being transferred from a prefill engine."""
    WAITING = 1
    PREFILL = 2
    DECODE = 3
    ENDED = 4


class Listener(Protocol):
    """Receives the events of an attempt."""

    def on_first(self, attempt: "Attempt", now: float) -> None:
        """The first token has arrived."""

    def on_last(self, attempt: "Attempt", now: float) -> None:
        """All tokens have arrived."""

    def on_lost(self, attempt: "Attempt", now: float) -> None:
        """The connection was lost."""

    def on_error(self, attempt: "Attempt", status: int, now: float) -> None:
        """The engine answered with an error: it could not load the KV cache."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One request on the engine with index `place`.

    With `transfer_seconds` its prompt's KV cache arrives from another engine after that time;
    `source` tells whether that engine still has it. None: the prompt is computed here.

    `contents` are numbers for the contents of each full block of prompt and answer: equal numbers
    at equal positions mean equal prefixes up to there. The engine sets `blocks`, `filled` and
    `cached`.
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
    """Whether its tokens are held back until the last one."""
    is_unread: bool = False
    """Whether its router does not count its tokens, because the client does not read or is catching
    up."""
    is_poison: bool = False
    """Whether its prompt is the workload's `poison`."""
    blocks: list[int] = field(init=False, default_factory=list)
    """The engine's blocks that it holds."""
    filled: int = field(init=False, default=0)
    """How many of `blocks` are full and can be shared."""
    cached: int = field(init=False, default=0)
    """Prompt tokens that were in the prefix cache (usage.prompt_tokens_details.cached_tokens)."""
    left: int = field(init=False)
    """Prompt tokens that have yet to be computed."""
    stage: Stage = Stage.WAITING
    arrived: float = 0.0
    """When it arrived at its engine."""
    free_elsewhere: int = 0
    """Its engine's `free_elsewhere` for its model when it was queued."""
    leg: LegTimer = field(init=False)

    @property
    def is_shown(self) -> bool:
        """Whether its router counts its tokens as they are generated."""
        return not self.is_held and not self.is_unread

    def __post_init__(self) -> None:
        self.left = 0 if self.transfer_seconds is not None else self.prompt
