"""Commands of ours as processes of their own, started in a tenth of the CPU time.

Importing the router takes a second of CPU time. A process that has done so once, multiprocessing's
fork server, forks for each start: an own process with own memory, descriptors, signals and
environment, as a worker is one of the supervisor's. What is claimed of the command line itself
(the installed script, `python -m`, its title) must be tested with a process that starts from
nothing.
"""

import asyncio
import atexit
import gc
import logging
import multiprocessing
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection, wait
from typing import IO, Any

__all__ = ["ENTRIES", "SECONDS", "Process", "ended", "fork", "reap", "running", "start"]

SECONDS = 200.0
"""A deadline for a process on a busy machine; only a test that fails meets it."""

ENTRIES = {
    "pd-router": "router.__main__:command_line",
    "pd-bench": "benchmarks.__main__:command_line",
    "simulator": "router.simulator.__main__:main",
}
"""What can be started."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "tests.forked",
        "router.commands.serve",
        "router.commands.check",
        "router.simulator.__main__",
        "benchmarks.gate.validate",
        "benchmarks.gate.output.plots",
        # What FastAPI and uvicorn import when they start.
        "pydantic.v1",
        "uvicorn.lifespan.on",
        "uvicorn.loops.uvloop",
        "uvicorn.protocols.http.auto",
    ]
)

Forked = multiprocessing.context.ForkServerProcess

_ONE_AT_A_TIME = threading.Lock()
"""multiprocessing looks after all its processes whenever one is started."""

Output = int | IO[bytes] | None
"""As subprocess has it: PIPE, STDOUT (for stderr), DEVNULL, a file, or None: the caller's."""


class Process:
    """A process that was started; what asyncio.subprocess.Process offers."""

    def __init__(
        self,
        process: Forked,
        stdout: asyncio.StreamReader | None,
        stderr: asyncio.StreamReader | None,
    ) -> None:
        assert process.pid is not None
        self.pid: int = process.pid
        self.stdout = stdout
        self.stderr = stderr
        self._process = process
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        loop.add_reader(process.sentinel, self._reap, loop)

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._process.sentinel)
        self._ended.set_result(reap(self._process))

    @property
    def returncode(self) -> int | None:
        """The exit status, less than zero after a signal; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Wait for its end; the exit status."""
        return await asyncio.shield(self._ended)

    async def communicate(self) -> tuple[bytes, bytes]:
        """Wait for its end; what it wrote to its pipes."""
        readers = (self.stdout, self.stderr)
        out, err = await asyncio.gather(*(r.read() if r else _nothing() for r in readers))
        await self.wait()
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if not self._ended.done():
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)


async def start(
    *command: str,
    stdout: Output = None,
    stderr: Output = None,
    env: Mapping[str, str] | None = None,
    limit: int = 2**16,
    start_new_session: bool = False,
) -> Process:
    """Start `command`, a name of `ENTRIES` and its arguments, as asyncio.create_subprocess_exec
    does; its standard input is empty."""
    out, out_reader = await _output(stdout, sys.__stdout__, limit)
    if stderr == asyncio.subprocess.STDOUT:
        err, err_reader = Connection(os.dup(out.fileno()), readable=False), None
    else:
        err, err_reader = await _output(stderr, sys.__stderr__, limit)
    environment = dict(os.environ if env is None else env)
    with out, err:
        process = fork(command, out, err, environment, os.getcwd(), start_new_session)
    return Process(process, out_reader, err_reader)


def fork(
    command: tuple[str, ...],
    out: Connection,
    err: Connection,
    environment: dict[str, str],
    folder: str,
    start_new_session: bool,
) -> Forked:
    """Start `command` in `folder` with these outputs; see `start`."""
    given = (command, out, err, environment, folder, start_new_session)
    with _ONE_AT_A_TIME:
        process = CONTEXT.Process(target=_run, args=given)
        process.start()
    return process


def reap(process: Forked) -> int:
    """Wait for its end; the exit status, less than zero after a signal."""
    wait([process.sentinel])
    with _ONE_AT_A_TIME:
        process.join()
        status = process.exitcode
        process.close()
    assert status is not None
    return status


@asynccontextmanager
async def running(*command: str, **options: Any) -> AsyncIterator[Process]:
    """A command until the block ends: it is killed then if it still runs. Unread
    output in its pipes is read."""
    process = await start(*command, **options)
    try:
        yield process
    finally:
        process.kill()
        await process.communicate()


async def ended(*command: str) -> tuple[int, str, str]:
    """A command's status, output and errors."""
    pipe = asyncio.subprocess.PIPE
    async with asyncio.timeout(SECONDS), running(*command, stdout=pipe, stderr=pipe) as process:
        out, err = await process.communicate()
        return await process.wait(), out.decode(), err.decode()


async def _output(
    wanted: Output, ours: IO[str] | None, limit: int
) -> tuple[Connection, asyncio.StreamReader | None]:
    """What the process gets, and what we read."""
    if wanted == asyncio.subprocess.PIPE:
        theirs, reader = os.pipe()[::-1]
        stream = asyncio.StreamReader(limit)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: _UntilEOF(stream), os.fdopen(reader, "rb")
        )
        return Connection(theirs, readable=False), stream
    if wanted == asyncio.subprocess.DEVNULL:
        return Connection(os.open(os.devnull, os.O_WRONLY), readable=False), None
    file = ours if wanted is None else wanted
    assert file is not None
    number = file if isinstance(file, int) else file.fileno()
    return Connection(os.dup(number), readable=False), None


class _UntilEOF(asyncio.StreamReaderProtocol):
    """Has uvloop close a pipe at its end, as asyncio does."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


async def _nothing() -> bytes:
    return b""


def _run(
    command: tuple[str, ...],
    stdout: Connection,
    stderr: Connection,
    environment: dict[str, str],
    folder: str,
    start_new_session: bool,
) -> None:
    """In the new process: be the command."""
    gc.freeze()  # to examine what the fork server has imported would copy its memory
    if start_new_session:
        os.setsid()
    for given, number in ((stdout, 1), (stderr, 2)):
        os.dup2(given.fileno(), number)
        given.close()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = list(command)
    try:
        sys.exit(pkgutil.resolve_name(ENTRIES[command[0]])())
    finally:
        atexit._run_exitfuncs()  # a fork of multiprocessing's leaves them out
        logging.shutdown()  # from Python 3.14 on it forgets what was registered before it
