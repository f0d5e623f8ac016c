"""Counts the events of a server-sent stream as its bytes arrive.

Knows only what the bench must know: how many events came, whether the stream ended with `[DONE]`
and whether an event was an error.
"""

DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error"'


class EventCounter:
    """Feed it a body in pieces of any size; a separator split between two pieces counts once."""

    __slots__ = ("errors", "events", "tail")

    def __init__(self) -> None:
        self.events = 0
        self.errors = 0
        self.tail = b""

    def feed(self, data: bytes) -> int:
        """Return how many events were completed by `data`."""
        tail = self.tail
        if not tail or tail.endswith(b"\n\n"):
            completed = data.count(b"\n\n")
            self._look_for_errors(data)
        else:
            completed = (tail[-1:] + data).count(b"\n\n")
            self._look_for_errors(tail[1 - len(ERROR) :] + data)
        self.tail = data[-len(DONE) :] if len(data) >= len(DONE) else (tail + data)[-len(DONE) :]
        self.events += completed
        return completed

    @property
    def done(self) -> bool:
        """Whether the last bytes seen are the `[DONE]` event."""
        return self.tail == DONE

    def _look_for_errors(self, data: bytes) -> None:
        if ERROR in data:
            self.errors += 1
