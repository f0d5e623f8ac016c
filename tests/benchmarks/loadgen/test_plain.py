import asyncio
import socket

from benchmarks.loadgen.plain import PlainTransport


class Echo(asyncio.Protocol):
    """Says hello, and remembers what happens."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.over = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, PlainTransport)
        self.seen.append("made")
        transport.write(b"hello")

    def data_received(self, data: bytes) -> None:
        self.seen.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.seen.append(type(exc))
        self.over.set()


async def test_a_conversation_and_its_end() -> None:
    loop, protocol = asyncio.get_running_loop(), Echo()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        transport = PlainTransport(loop, protocol, server.getsockname()[:2])
        peer, _ = await loop.sock_accept(server)
        with peer:
            peer.setblocking(False)
            await loop.sock_sendall(peer, await loop.sock_recv(peer, 100))
    await asyncio.wait_for(protocol.over.wait(), 60)
    assert protocol.seen == ["made", b"hello", type(None)]
    assert transport.is_closing()
    transport.abort()


async def test_no_listener(closed_port: int) -> None:
    protocol = Echo()
    PlainTransport(asyncio.get_running_loop(), protocol, ("127.0.0.1", closed_port))
    await asyncio.wait_for(protocol.over.wait(), 60)
    assert protocol.seen == [ConnectionRefusedError]


async def test_a_write_that_does_not_fit_ends_the_connection() -> None:
    loop, protocol = asyncio.get_running_loop(), Echo()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        transport = PlainTransport(loop, protocol, server.getsockname()[:2])
        peer, _ = await loop.sock_accept(server)
        with peer:
            transport.write(bytes(64 << 20))
            await asyncio.wait_for(protocol.over.wait(), 60)
    assert protocol.seen[-1] is OSError
