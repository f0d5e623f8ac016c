"""What goes wrong with the router itself, and what operators do to it."""

import asyncio
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from select import PIPE_BUF
from tempfile import TemporaryDirectory
from typing import Any

from tests.chaos.both_sides import missing
from tests.chaos.breakable import BREAK
from tests.chaos.cluster import Cluster
from tests.chaos.load import Load
from tests.clock import LIBRARIES, Clock

__all__ = ["LEFT_OUT", "ROUTER_FAULTS"]

RouterFault = Callable[[Cluster, Load, Random], AbstractAsyncContextManager[None]]

SPARE_DESCRIPTORS = 4
"""Left to a worker that runs out of them."""

STOPPED_SECONDS = 2.0
"""Of a worker: in the end all users of the load would wait for it."""

WRITTEN_SECONDS = 20.0
"""For the log's lines of ended requests; a busy machine needs a part of a second."""

CHANGES: tuple[dict[str, Any], ...] = (
    {"routing_threshold": 0},
    {"routing_threshold": 1_000_000},
    {"load_balancing_strategy": "round_robin"},
    {"decode_load_balancing_strategy": "least_loaded"},
    {"max_in_flight": 500},
    {"max_idle_connections": 1},
    {"stream_idle_timeout": 1.5},
    {"max_body_bytes": 100_000},
    {"no_such_setting": 1},
    {"health_check_interval": 7},
    {"routing_threshold": "many"},
)
"""Of the configuration; the last three are refused."""


@asynccontextmanager
async def _worker_killed(cluster: Cluster, load: Load, chance: Random) -> AsyncIterator[None]:
    """SIGKILL of a worker of the router; its clients' connections end with it."""
    load.may_cut = True
    cluster.expected_errors.add("; restarting it")
    load.log_is_lost()  # lines that a killed worker has not written
    await _is_written(cluster, load)
    with suppress(ProcessLookupError):
        os.kill(chance.choice(cluster.workers), signal.SIGKILL)
    yield


async def _is_written(cluster: Cluster, load: Load) -> None:
    """Wait until the log has all lines that it must have of requests that have ended; a missing one
    fails the judgement."""
    with suppress(TimeoutError):
        async with asyncio.timeout(WRITTEN_SECONDS):
            while missing(load.requests, cluster.routers.lines):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@asynccontextmanager
async def _worker_stopped(cluster: Cluster, _: Load, chance: Random) -> AsyncIterator[None]:
    """A worker without CPU time: only its share of the work waits."""
    pid = chance.choice(cluster.workers)

    def resume() -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    timer = asyncio.get_running_loop().call_later(STOPPED_SECONDS, resume)
    yield
    timer.cancel()
    resume()


@asynccontextmanager
async def _out_of_files(cluster: Cluster, load: Load, chance: Random) -> AsyncIterator[None]:
    """A worker has no descriptors left: it can neither accept nor connect."""
    load.may_cut = True
    cluster.expected_errors.add("Too many open files")
    pid = chance.choice(cluster.workers)
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = cluster.descriptors_of(pid)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + SPARE_DESCRIPTORS, hard))
    yield
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@asynccontextmanager
async def _loops_raise(cluster: Cluster, _: Load, chance: Random) -> AsyncIterator[None]:
    """All background loops of a worker raise: probes, scrapes, clean-up, sharing."""
    cluster.expected_errors.add("failed; restarting it in")
    with suppress(ProcessLookupError):
        os.kill(chance.choice(cluster.workers), BREAK)
    yield


@asynccontextmanager
async def _reloaded(cluster: Cluster, load: Load, chance: Random) -> AsyncIterator[None]:
    """The configuration changes again and again; some changes are refused as a whole."""
    cluster.expected_errors.add("configuration rejected, the old one remains")
    for change in chance.sample(CHANGES, 4):
        cluster.routers.configure(**change)
        cluster.router.signal(signal.SIGHUP)
        await load.more(10)
    cluster.routers.configure()
    cluster.router.signal(signal.SIGHUP)
    yield


@asynccontextmanager
async def _replaced(cluster: Cluster, _: Load, __: Random) -> AsyncIterator[None]:
    """A new router takes over; the old one finishes its requests."""
    await cluster.routers.start()
    yield


@asynccontextmanager
async def _log_is_full(cluster: Cluster, load: Load, _: Random) -> AsyncIterator[None]:
    """A router whose log can not be written: the disk is full."""
    load.log_is_lost()
    await cluster.routers.start(log=Path("/dev/full"))
    yield
    await cluster.routers.start()


@asynccontextmanager
async def _log_is_unread(cluster: Cluster, load: Load, _: Random) -> AsyncIterator[None]:
    """A router with an unread log: its pipe is full."""
    load.log_is_lost()
    with TemporaryDirectory(prefix="chaos-") as folder:
        pipe = Path(folder, "log")
        os.mkfifo(pipe)
        end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        try:
            with suppress(BlockingIOError):
                while True:
                    os.write(end, bytes(PIPE_BUF))
            await cluster.routers.start(log=pipe)
            yield
            await cluster.routers.start()
            await cluster.routers.only_one()
        finally:
            os.close(end)


@asynccontextmanager
async def _clock_jumps(cluster: Cluster, load: Load, __: Random) -> AsyncIterator[None]:
    """A router whose time of day jumps, forth and back."""
    with TemporaryDirectory(prefix="chaos-") as folder:
        clock = Clock(Path(folder, "clock"))
        await cluster.routers.start(launcher=clock.launcher)
        for hours in (1, 0, -1, 0):
            clock.set(hours * 3600)
            await load.more(20)
        clock.set(3600)
        yield
        await cluster.routers.start()
        await cluster.routers.only_one()


ROUTER_FAULTS: dict[str, RouterFault] = {
    "SIGKILL of a worker": _worker_killed,
    "SIGSTOP of a worker": _worker_stopped,
    "out of file descriptors": _out_of_files,
    "background loops raise": _loops_raise,
    "reload": _reloaded,
    "rolling restart of the router": _replaced,
    "full disk for logs": _log_is_full,
    "a log that nobody reads": _log_is_unread,
    **({"clock jumps": _clock_jumps} if LIBRARIES else {}),
}

LEFT_OUT: dict[str, str] = {} if LIBRARIES else {"clock jumps": "needs apt install faketime"}
"""Faults impossible on this machine, with the reason, for the run's output."""
