import asyncio
import socket
from collections.abc import Iterator

import pytest

from benchmarks.engines import frames
from benchmarks.loadgen import slow
from benchmarks.loadgen.crowd import Record
from benchmarks.loadgen.slow import SlowClient

RATE = 10_000
"""Bytes per second."""


class Load:
    """As much of a load as a slow client sees."""

    def __init__(self) -> None:
        self.record, self.active = Record(), 0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setattr(slow, "PERIOD_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


async def begun(server: socket.socket, load: Load) -> tuple[SlowClient, socket.socket]:
    client = SlowClient(load, server.getsockname()[:2], b"request", RATE)
    loop = asyncio.get_running_loop()
    client.start(loop)
    peer, _ = await loop.sock_accept(server)
    peer.setblocking(False)
    assert await loop.sock_recv(peer, 100) == b"request"
    return client, peer


async def until(load: Load, field: str) -> None:
    async with asyncio.timeout(60):
        while not getattr(load.record, field):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)


async def test_it_reads_bit_by_bit_and_hangs_up_without_a_failure(server: socket.socket) -> None:
    load, now = Load(), asyncio.get_running_loop().time
    began = now()
    client, peer = await begun(server, load)
    with peer:
        await asyncio.get_running_loop().sock_sendall(
            peer, frames.STREAM_HEAD + frames.ROLE + frames.TOKENS[0] * 100
        )
        await until(load, "events")
        assert load.active == 1
        client.hang_up()
    # A read is of 100 bytes, and an event of more: no read has two.
    assert load.record.reads == load.record.events
    read = load.record.events * len(frames.TOKENS[0])
    assert read <= RATE * (now() - began), "a slow machine only makes it less"
    assert (load.active, load.record.failures) == (0, {})


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "slow client: connection closed"),
        (b"HTTP/1.1 429 Too Many Requests\r\n\r\n", "slow client: b'HTTP/1.1 429 Too Man'"),
    ],
)
async def test_exceptions_are_failures(server: socket.socket, sent: bytes, reason: str) -> None:
    load = Load()
    _, peer = await begun(server, load)
    with peer:
        await asyncio.get_running_loop().sock_sendall(peer, sent)
        if not sent:
            peer.shutdown(socket.SHUT_WR)
        await until(load, "failures")
    assert (load.active, load.record.failures) == (0, {reason: 1})
