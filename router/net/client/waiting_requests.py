"""Pipelined requests of a client connection, behind the one that is being answered."""

from typing import Final

from router.net.client.client_request import ClientRequest

__all__ = ["MAX_WAITING", "UNREAD_BYTES", "WaitingRequests"]

MAX_PIPELINED: Final = 8
"""Pipelined requests that may wait while the connection is still read from, which is how a
disconnect is noticed."""

MAX_WAITING: Final = 512
"""Most requests that may wait on a connection, since one read can contain many. If a client sends
more, these are answered and the connection is closed. A read of 256 kB could hold thousands of tiny
requests, parsed in one turn of the event loop and ten times as large in memory."""

UNREAD_BYTES: Final = 64 << 10
"""Bytes of bodies of waiting requests, beyond which nothing is read until it is their turn."""


class WaitingRequests:
    """The queue, oldest first. False if empty, by `__bool__`: mypyc does not ask `__len__`."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: list[ClientRequest] = []

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def is_backlog(self) -> bool:
        """Whether enough requests are queued that reading should pause."""
        return len(self._requests) > MAX_PIPELINED or self.size > UNREAD_BYTES

    @property
    def size(self) -> int:
        """Bytes of their bodies that have arrived."""
        return sum(each.size for each in self._requests)

    def add(self, request: ClientRequest) -> None:
        """Queue a request. Raises ValueError if too many wait."""
        if len(self._requests) >= MAX_WAITING:
            raise ValueError("too many requests at once")
        self._requests.append(request)

    def pop(self) -> ClientRequest:
        """Remove and return the oldest one."""
        return self._requests.pop(0)
