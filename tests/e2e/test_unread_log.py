"""An unread log, with real processes: requests are served, and the router ends."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import orjson
import pytest

from tests.e2e.process import Process, serving
from tests.e2e.worker_processes import until, workers_of
from tests.net.client import Truncated
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, OK

LONG_NAME = "\1" * 512
"""A model's: it makes three kilobytes of the request's line, and 1,300 lines fill a queue."""

DROPPED = "pd_router_log_lines_dropped_total"


class Log:
    """A named pipe that is full."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self.filled = 0
        # Opened for both, it is there before and after its writers.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                self.filled += os.write(self._descriptor, b"\n")

    def read(self) -> bytes:
        """What is in the pipe."""
        found = b""
        with suppress(BlockingIOError):
            while True:
                found += os.read(self._descriptor, 1 << 16)
        return found

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    found = Log(tmp_path / "log")
    yield found
    found.close()


@asynccontextmanager
async def unread(log: Log, port: int, *flags: str) -> AsyncIterator[Process]:
    """A router that serves, with this log."""
    async with serving("--port", str(port), *flags, log=log.path, port=port) as process:

        async def is_ready() -> bool:
            # Truncated: the socket that checks the port received it.
            with suppress(OSError, Truncated):
                return (await (await process.client()).get("/ready")).status == 200
            return False

        await until(is_ready, "it does not serve")
        yield process


async def dropped(process: Process) -> float:
    """What the metrics say."""
    text = (await (await process.client()).get("/metrics")).body.decode()
    [line] = [line for line in text.splitlines() if line.startswith(f"{DROPPED} ")]
    return float(line.split()[1])


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_requests_are_served_and_missing_log_lines_are_reported(
    harness: Harness, log: Log, own_port: int, workers: str
) -> None:
    engine = await harness.engine()
    engine.serve_model(LONG_NAME)
    engine.answer_all(lambda call: call.send(OK))
    flags = ("--decode", engine.url, "--workers", workers)
    async with unread(log, own_port, *flags) as process:

        async def lines_are_dropped() -> bool:
            client = await process.client()
            for _ in range(200):
                body = {"model": LONG_NAME, "prompt": "x"}
                assert (await client.ask(COMPLETIONS, body)).status == 200
            return await dropped(process) > 0

        await until(lines_are_dropped, "no lines are dropped")
        text = b""

        async def is_told() -> bool:
            nonlocal text
            text += log.read()
            return b"lines of this log are missing: it was not read fast enough" in text

        await until(is_told, "nothing is told")
        lines = text.split(b"\n")[:-1]
        records = [orjson.loads(line) for line in lines if line]
        assert "starting" in {record["message"] for record in records}  # each process has a queue
        process.signal(signal.SIGTERM)
        assert await process.status() == 0


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_the_router_ends_though_its_last_lines_cannot_be_written(
    harness: Harness, log: Log, own_port: int, workers: str
) -> None:
    engine = await harness.engine()
    async with unread(log, own_port, "--decode", engine.url, "--workers", workers) as process:
        process.signal(signal.SIGTERM)
        assert await process.status() == 0


async def test_workers_are_restarted_though_the_log_cannot_be_written(
    harness: Harness, log: Log, own_port: int
) -> None:
    engine = await harness.engine()
    async with unread(log, own_port, "--decode", engine.url, "--workers", "2") as process:
        before = workers_of(process)
        os.kill(before[0], signal.SIGKILL)

        async def is_replaced() -> bool:
            now = workers_of(process)
            return len(now) == 2 and before[0] not in now

        await until(is_replaced, "no new worker")
        process.signal(signal.SIGTERM)
        assert await process.status() == 0
