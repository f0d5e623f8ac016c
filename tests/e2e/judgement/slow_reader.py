"""A client that does not read its stream, and the buffers on the way."""

import asyncio
import socket
from pathlib import Path
from typing import Any, Self

from tests.net.client import request

__all__ = ["SlowReader", "backed_up"]

RECEIVE_BUFFER = 4096
"""Bytes; the kernel doubles it."""

BACKED_UP = 16_384
"""Bytes that wait for a reader: more than one turn of an event loop leaves there."""


class SlowReader:
    """One connection with a small receive buffer."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    async def ask(self, port: int, body: dict[str, Any]) -> None:
        """Ask for a stream."""
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, ("127.0.0.1", port))
        usual = {"prompt": "slowly", "ignore_eos": True, "stream": True}
        await loop.sock_sendall(self._socket, request("/v1/completions", usual | body))


def backed_up(port: int) -> int:
    """Connections to this port of 127.0.0.1 on which more has come than their owner reads."""
    return sum(
        words[2] == f"0100007F:{port:04X}" and int(words[4].partition(":")[2], 16) > BACKED_UP
        for words in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
    )
