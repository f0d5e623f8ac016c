"""A minimal transport, for 2048 connections that are opened at once.

asyncio's connection set-up costs several times as much, and would shape the burst.
"""

import asyncio
import os
import socket
from typing import Any

READ_BYTES = 65536
ESTABLISHED = 1
"""Of the states in Linux's tcp_states.h."""


class PlainTransport(asyncio.Transport):
    """One connection of a running loop. Writes must fit into the socket's buffer."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, address: tuple[str, int]
    ) -> None:
        super().__init__()
        self._loop, self._protocol = loop, protocol
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.connect_ex(address)
        # On loopback it is established at once, without the event loop.
        if self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED:
            loop.call_soon(self._connected)
        else:
            loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self._socket.fileno())
        self._connected()

    def _connected(self) -> None:
        if self.is_closing():
            return
        if number := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._end(OSError(number, os.strerror(number)))
            return
        self._loop.add_reader(self._socket.fileno(), self._readable)
        self._protocol.connection_made(self)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        if data:
            self._protocol.data_received(data)
        else:
            self._end(None)

    def write(self, data: Any) -> None:
        """Send all of it at once, or lose the connection."""
        try:
            whole = self._socket.send(data) == len(data)
        except OSError as error:
            self._end(error)
            return
        if not whole:
            self._end(OSError("a request larger than the socket's buffer"))

    def abort(self) -> None:
        """Close at once."""
        self._end(None)

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return self._socket.fileno() < 0

    def _end(self, error: Exception | None) -> None:
        if self.is_closing():
            return
        self._loop.remove_writer(self._socket.fileno())
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._loop.call_soon(self._protocol.connection_lost, error)
