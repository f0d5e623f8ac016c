"""A peer that accepts connections and sends nothing, so that TLS handshakes hang; for tests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class MuteServer:
    """Its port; whether a connection has come, and whether its peer has closed it again."""

    def __init__(self) -> None:
        self.port = 0
        self.has_come, self.is_gone = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read, and answer nothing."""
        self.has_come.set()
        await reader.read()
        self.is_gone.set()
        writer.close()


@contextlib.asynccontextmanager
async def mute_server() -> AsyncIterator[MuteServer]:
    """One that listens."""
    mute = MuteServer()
    async with await asyncio.start_server(mute.serve, "127.0.0.1", 0) as server:
        mute.port = server.sockets[0].getsockname()[1]
        yield mute
