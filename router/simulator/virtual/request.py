"""A request of a client, from its issue to its end."""

from collections.abc import Callable


class Request:
    """What a client asked for and what it saw. Times are virtual seconds."""

    __slots__ = (
        "done",
        "ended",
        "engine",
        "first",
        "is_good",
        "issued",
        "model",
        "number",
        "output",
        "prompt",
        "stream",
    )

    def __init__(
        self,
        number: int,
        stream: int,
        prompt: int,
        output: int,
        issued: float,
        done: "Callable[[Request, float], None]",
        model: str | None = None,
    ) -> None:
        self.number = number
        self.stream = stream
        self.prompt = prompt
        self.output = output
        self.issued = issued
        self.done = done
        """To be called once, when it has ended."""
        self.model = model
        self.first: float | None = None
        self.ended: float | None = None
        self.is_good = False
        self.engine = -1
        """The engine that was asked to answer last."""
