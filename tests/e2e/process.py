"""A router process and its log."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from tests import forked
from tests.forked import SECONDS
from tests.net.client import Answer, Client

__all__ = ["Process", "serving"]

LONGEST_LINE = 1 << 20
"""Of the log, in bytes; a traceback is one line."""


class Process:
    """`pd-router serve` on its own port."""

    def __init__(self, process: asyncio.subprocess.Process | forked.Process) -> None:
        self._process = process
        self.port = 0
        self.records: list[dict[str, Any]] = []
        self._clients: list[Client] = []
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        if self._process.stderr is None:  # it goes elsewhere
            return
        async for line in self._process.stderr:
            try:
                self.records.append(orjson.loads(line))
            except orjson.JSONDecodeError:  # a reader that stops would block the router
                self.records.append({"level": "error", "message": f"no JSON: {line!r}"})

    async def until(self, message: str) -> dict[str, Any]:
        """The first line of the log that has this message."""
        async with asyncio.timeout(SECONDS):
            while True:
                found = [r for r in self.records if r["message"] == message]
                if found:
                    return found[0]
                assert not self._reading.done(), self.records
                await asyncio.sleep(0.005)

    async def client(self) -> Client:
        """A new connection."""
        client = await Client.open(self.port)
        self._clients.append(client)
        return client

    async def ready(self, status: int = 200) -> Answer:
        """Wait until /ready has this status; no connection is kept."""
        async with asyncio.timeout(SECONDS):
            while True:
                client = await self.client()
                answer = await client.get("/ready")
                client.leave()
                if answer.status == status:
                    return answer
                await asyncio.sleep(0.01)

    async def refuses(self) -> None:
        """Wait until it takes no new connections."""
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    await self.client()
                except ConnectionRefusedError:
                    return
                except ConnectionResetError:
                    pass  # it closed at this moment; the next one is notified
                await asyncio.sleep(0.01)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    async def status(self) -> int:
        """Wait for its end; the exit status."""
        async with asyncio.timeout(SECONDS):
            await self._reading
            return await self._process.wait()

    async def kill(self) -> None:
        """End it if it still lives."""
        for client in self._clients:
            client.leave()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def serving(
    *flags: str, launcher: Sequence[str] = (), log: Path | None = None, port: int = 0
) -> AsyncIterator[Process]:
    """A router process; killed at the end if the test has not ended it.

    It leads a process group, as a command in a terminal does. `launcher` is a command that becomes
    the one that it is given; `("env",)` starts one from nothing. With `log` its log goes there, and
    `port` says where it listens.
    """
    command = ("serve", "--host", "127.0.0.1", "--port", "0", "--log-format", "json", *flags)
    with ExitStack() as stack:
        options: dict[str, Any] = {
            "stderr": asyncio.subprocess.PIPE
            if log is None
            else stack.enter_context(log.open("ab")),
            "limit": LONGEST_LINE,
            "start_new_session": True,
        }
        if launcher:
            whole = (*launcher, sys.executable, "-m", "router", *command)
            process = Process(await asyncio.create_subprocess_exec(*whole, **options))
        else:
            process = Process(await forked.start("pd-router", *command, **options))
    try:
        process.port = port
        if log is None:
            line = await process.until("listening")
            process.port = int(line["url"].rpartition(":")[2])
        yield process
    finally:
        await process.kill()
