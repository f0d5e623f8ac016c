"""Simulated engines in processes of their own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests import forked

__all__ = ["Engine", "engines"]

PIPE = asyncio.subprocess.PIPE


class Engine:
    """One on a port that it keeps when it is started again."""

    def __init__(self, port: int, *flags: str) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._command = ("simulator", "--port", str(port), *flags)
        self._more: tuple[str, ...] = ()
        self._process: forked.Process | None = None

    @property
    def is_started(self) -> bool:
        """Whether it has not been killed."""
        return self._process is not None

    async def start(self, *flags: str) -> None:
        """Start it, with these flags too from now on, and wait until it listens."""
        self._more = flags or self._more
        self._process = await forked.start(*self._command, *self._more, stdout=PIPE)
        await _url(self._process)

    async def kill(self) -> None:
        """End it at once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self._process is not None:
            self._process.send_signal(number)


@asynccontextmanager
async def engines(count: int, *flags: str) -> AsyncIterator[tuple[forked.Process, list[str]]]:
    """Engines in one process, and their URLs."""
    command = ("simulator", "--count", str(count), *flags)
    async with forked.running(*command, stdout=PIPE) as process:
        yield process, [await _url(process) for _ in range(count)]


async def _url(process: forked.Process) -> str:
    """Where the next one listens; waits until it does."""
    assert process.stdout is not None
    async with asyncio.timeout(forked.SECONDS):
        line = await process.stdout.readline()
    assert line.startswith(b"ready"), line
    return line.decode().split()[1]
