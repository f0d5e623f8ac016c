"""A request of a client, from its issue to its end."""

from collections.abc import Callable
from dataclasses import dataclass

Done = Callable[["Request", float], None]


@dataclass(slots=True, eq=False)
class Request:
    """What a client asked for and what it saw. Times are virtual seconds."""

    number: int
    stream: int
    prompt: int
    output: int
    issued: float
    done: Done
    """To be called once, when it has ended."""
    model: str | None = None
    is_held: bool = False
    """Whether its tokens are held back and come with the last one."""
    shows_first: bool = True
    """Whether the first of them comes at once."""
    is_unary: bool = False
    """Whether its answer comes whole."""
    is_poison: bool = False
    """Whether its prompt is the workload's `poison`."""
    contents: tuple[int, ...] = ()
    """What is in the full KV blocks of prompt and answer; see `Attempt`."""
    first: float | None = None
    ended: float | None = None
    is_good: bool = False
    engine: int = -1
    """The engine that was asked to answer last."""
    is_remote: bool = False
    """Whether another engine was to prefill it."""
    cached: int = 0
    """Prompt tokens that this engine had cached, as it says in the answer's usage."""
