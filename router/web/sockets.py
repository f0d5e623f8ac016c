"""Creates the listening sockets: a set for each worker process, on every address of the host."""

import socket
from typing import Final

__all__ = ["addresses_of", "listening_sockets"]

BACKLOG: Final = 4096
"""Connections that may wait for accept(). A load test may open 2,048 at once; 4,096 is the kernel's
limit (net.core.somaxconn)."""


def listening_sockets(host: str, port: int, workers: int) -> list[list[socket.socket]]:
    """Create the sockets of each worker. Raises OSError, for example if the port is in use.

    Each worker has its own (SO_REUSEPORT), and the kernel distributes connections. If a process
    keeps all of them open, the next worker can accept connections that wait in the socket of one
    that died.
    """
    listeners: list[list[socket.socket]] = [[] for _ in range(workers)]
    for family, address in addresses_of(host, port):
        port = _free(family, address, port)
        for mine in listeners:
            mine.append(_bound(family, address, port, share=workers > 1))
    for mine in listeners:
        for listener in mine:
            listener.listen(BACKLOG)
            listener.setblocking(False)
    return listeners


def addresses_of(host: str, port: int) -> list[tuple[int, str]]:
    """The families and addresses to listen on. Raises OSError."""
    flags = socket.AI_PASSIVE | socket.AI_NUMERICSERV
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys((each[0], str(each[4][0])) for each in found))


def _free(family: int, address: str, port: int) -> int:
    """Returns the port, or a free one for 0, if no other process listens on it. Raises OSError.

    Without this check, SO_REUSEPORT would share the port, and its clients, with another router.
    """
    with _bound(family, address, port, share=False) as probe:
        probe.listen(1)
        return int(probe.getsockname()[1])


def _bound(family: int, address: str, port: int, *, share: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:  # like asyncio
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
    except OSError:
        listener.close()
        raise
    return listener
