"""`pd-router serve`: one process, or several that share the port and their state."""

import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

from router.commands.supervisor import Supervisor
from router.commands.usage import UsageError
from router.net.shared_state import SharedState
from router.settings import Settings
from router.web.app import Router, Worker, endpoints_of
from router.web.server import BACKLOG, FORCE_STOP, Server, tune_process

__all__ = ["run"]

SHARED_MEMORY = Path("/dev/shm")
"""Folder of the shared metrics: in memory, and writable in a read-only container."""


def run(settings: Settings) -> int:
    """Serve until a signal says to stop; returns the exit status."""
    if settings.workers > 1:
        return _run_several(settings)
    server = Server(Router(settings))
    tune_process()
    server.run()
    return 0


def _run_several(settings: Settings) -> int:
    listeners = _listeners(settings.host, settings.port, settings.workers)
    shared_state = SharedState(settings.workers, endpoints_of(settings))
    counts = Path(tempfile.mkdtemp(prefix="pd-router-", dir=_folder()))
    lifeline, alive = os.pipe()
    parent = os.getpid()
    tune_process()
    for handler in logging.getLogger().handlers:
        handler.flush()  # or every worker would write the buffered lines again

    def work(number: int) -> None:
        os.close(alive)
        _close(each for place, mine in enumerate(listeners) if place != number for each in mine)
        context = shared_state.join(number, os.getpid())
        server = Server(Router(settings, Worker(context, counts)), lifeline)
        server.run(sockets=listeners[number])
        if os.getppid() != parent:  # the parent was killed and cannot clean up
            shutil.rmtree(counts, ignore_errors=True)

    def ending() -> None:
        _close(
            each for mine in listeners for each in mine
        )  # or clients would wait in their backlogs

    try:
        return Supervisor(
            settings.workers, work, shared_state.worker_left, ending, FORCE_STOP
        ).run()
    finally:
        shared_state.close()
        shutil.rmtree(counts, ignore_errors=True)


def _close(listeners: Iterable[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


def _folder() -> Path | None:
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None


def _listeners(host: str, port: int, workers: int) -> list[list[socket.socket]]:
    """Listening sockets for each worker, on every address of the host.

    Each worker has its own (SO_REUSEPORT), and the kernel distributes connections. This process
    keeps them open: the backlog of a worker that dies is served by its successor.
    """
    try:
        flags = socket.AI_PASSIVE | socket.AI_NUMERICSERV
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        listeners: list[list[socket.socket]] = [[] for _ in range(workers)]
        for family, address in dict.fromkeys((each[0], str(each[4][0])) for each in found):
            port = _free(family, address, port)
            for mine in listeners:
                mine.append(_bound(family, address, port, share=True))
    except OSError as error:
        raise UsageError(f"--port: cannot listen on {host}:{port}: {error.strerror}") from None
    for mine in listeners:
        for listener in mine:
            listener.listen(BACKLOG)
            listener.setblocking(False)
    return listeners


def _free(family: int, address: str, port: int) -> int:
    """The port, or a free one for 0. Raises OSError if it is taken.

    With SO_REUSEPORT alone, another router on the same port would go unnoticed.
    """
    with _bound(family, address, port, share=False) as probe:
        probe.listen(1)
        return int(probe.getsockname()[1])


def _bound(family: int, address: str, port: int, *, share: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:  # as asyncio does
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
    except OSError:
        listener.close()
        raise
    return listener
