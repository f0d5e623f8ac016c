"""Listening sockets: one set for each worker process, on every address of a host."""

import socket
from typing import Final

__all__ = ["listening_sockets"]

BACKLOG: Final = 4096
"""Connections that may wait for accept(): a load test's first burst is 2048, the kernel's cap
(net.core.somaxconn) 4096."""


def listening_sockets(host: str, port: int, workers: int) -> list[list[socket.socket]]:
    """The sockets of each worker. Raises OSError, for example when the port is taken.

    Each worker has its own (SO_REUSEPORT), and the kernel distributes connections. A process that
    keeps all of them open lets the next worker accept connections that wait in the socket of one
    that died.
    """
    flags = socket.AI_PASSIVE | socket.AI_NUMERICSERV
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    listeners: list[list[socket.socket]] = [[] for _ in range(workers)]
    for family, address in dict.fromkeys((each[0], str(each[4][0])) for each in found):
        port = _free(family, address, port)
        for mine in listeners:
            mine.append(_bound(family, address, port, share=workers > 1))
    for mine in listeners:
        for listener in mine:
            listener.listen(BACKLOG)
            listener.setblocking(False)
    return listeners


def _free(family: int, address: str, port: int) -> int:
    """The port, or a free one for 0, if no other process listens there. Raises OSError.

    Sockets that share a port would share it with another router too, and its users with ours.
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
        if family == socket.AF_INET6:  # as asyncio does
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
    except OSError:
        listener.close()
        raise
    return listener
