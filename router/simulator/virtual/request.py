"""A request of a client, from its issue to its end."""

from collections.abc import Callable
from dataclasses import dataclass

Done = Callable[["Request", float], None]


@dataclass(slots=True, eq=False)
class Request:
    """What a client requested and received. Times are virtual seconds."""

    number: int
    stream: int
    prompt: int
    output: int
    issued: float
    done: Done
    """Called once, when it has ended."""
    model: str | None = None
    is_held: bool = False
    """Whether its tokens are held back until the last one."""
    shows_first: bool = True
    """Whether the first of these is sent at once."""
    is_unary: bool = False
    """Whether its answer is unary."""
    is_poison: bool = False
    """Whether its prompt is the workload's `poison`."""
    contents: tuple[int, ...] = ()
    """The contents of the full KV blocks of prompt and answer; see `Attempt`."""
    first: float | None = None
    ended: float | None = None
    is_good: bool = False
    engine: int = -1
    """The engine that was last used for the answer."""
    is_remote: bool = False
    """Whether it was to be prefilled on another engine."""
    cached: int = 0
    """Prompt tokens that this engine had cached, according to the answer's usage."""
