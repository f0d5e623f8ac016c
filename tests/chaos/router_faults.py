"""What goes wrong with the router itself, and what operators do to it."""

import os
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.breakable import BREAK
from tests.chaos.cluster import Cluster
from tests.chaos.load import Load

__all__ = ["ROUTER_FAULTS"]

SPARE_DESCRIPTORS = 4
"""Left to a worker that runs out of them."""

CHANGES: tuple[dict[str, Any], ...] = (
    {"routing_threshold": 0},
    {"routing_threshold": 1_000_000},
    {"load_balancing_strategy": "round_robin"},
    {"decode_load_balancing_strategy": "least_loaded"},
    {"max_in_flight": 1000},
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
    cluster.expected_errors.add("ended; restarting it")
    with suppress(ProcessLookupError):
        os.kill(chance.choice(cluster.workers), signal.SIGKILL)
    yield


@asynccontextmanager
async def _worker_stopped(cluster: Cluster, _: Load, chance: Random) -> AsyncIterator[None]:
    """A worker that gets no time: its share of the work waits, nobody else's does."""
    pid = chance.choice(cluster.workers)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    yield
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def _out_of_files(cluster: Cluster, load: Load, chance: Random) -> AsyncIterator[None]:
    """A worker has no descriptors left: it can neither accept nor connect."""
    load.may_cut = True
    cluster.expected_errors.add("cannot accept connections: Too many open files")
    pid = chance.choice(cluster.workers)
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = cluster.descriptors_of(pid)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + SPARE_DESCRIPTORS, hard))
    yield
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@asynccontextmanager
async def _loops_raise(cluster: Cluster, _: Load, chance: Random) -> AsyncIterator[None]:
    """All background loops of a worker raise: probes, scrapes, clean-up, what it shares."""
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
    """A new router takes over; the old one ends what it has begun."""
    await cluster.routers.start()
    yield


@asynccontextmanager
async def _log_is_full(cluster: Cluster, _: Load, __: Random) -> AsyncIterator[None]:
    """A router whose log can not be written: the disk is full."""
    await cluster.routers.start(log=Path("/dev/full"))
    yield
    await cluster.routers.start()


ROUTER_FAULTS = {
    "SIGKILL of a worker": _worker_killed,
    "SIGSTOP of a worker": _worker_stopped,
    "out of file descriptors": _out_of_files,
    "background loops raise": _loops_raise,
    "reload": _reloaded,
    "rolling restart of the router": _replaced,
    "full disk for logs": _log_is_full,
}
