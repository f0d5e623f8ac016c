"""A request of a client, from its issue to its end."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Request:
    """What a client asked for and what it saw. Times are virtual seconds."""

    number: int
    stream: int
    prompt: int
    output: int
    issued: float
    done: "Callable[[Request, float], None]"
    """To be called once, when it has ended."""
    model: str | None = None
    first: float | None = None
    ended: float | None = None
    is_good: bool = False
    engine: int = -1
    """The engine that was asked to answer last."""
