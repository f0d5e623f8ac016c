"""Splits a body that arrives in reads of any size into server-sent events."""

SEPARATOR = b"\n\n"
# The data of the last event of a stream.
DONE = b"[DONE]"


class EventReader:
    """Splits a body into events; lines may end in LF or CRLF."""

    __slots__ = ("tail",)

    def __init__(self) -> None:
        self.tail = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes, without the empty line that ends each."""
        if self.tail:
            data = self.tail + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        events = data.split(SEPARATOR)
        self.tail = events.pop()
        return events


def data_of(event: bytes) -> bytes:
    """The data lines of an event; empty for a comment."""
    return b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
