"""What is relied on of uvloop, over the whole range of versions that pyproject.toml admits."""

import asyncio
import os
import socket

import pytest


@pytest.mark.parametrize("turns", range(3))
async def test_a_cancelled_connection_does_not_close_its_descriptor_twice(turns: int) -> None:
    """aiohttp opens connections in this way, and probes have time-outs. Up to uvloop 0.22 the
    socket kept the number of a descriptor that was closed, and closed its later owner: the
    connection of a client (MagicStack/uvloop#738)."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as own:
        own.setblocking(False)
        await loop.sock_connect(own, listening.getsockname())
        opening = asyncio.ensure_future(loop.create_connection(asyncio.Protocol, sock=own))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        for _ in range(3):  # libuv closes it in the next turn
            await asyncio.sleep(0)
        if own.fileno() >= 0:
            os.fstat(own.fileno())
        if not opening.cancelled():
            opening.result()[0].abort()
