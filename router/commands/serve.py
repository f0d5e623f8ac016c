"""`pd-router serve`: one process, or several that share the port and what they know."""

import errno
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

from router.commands.supervisor import Supervisor
from router.commands.usage import UsageError
from router.net.crew import Crew
from router.settings import Settings
from router.web.app import Router, Worker, endpoints_of
from router.web.server import BACKLOG, HURRY, Server, tune_process

__all__ = ["run"]

SHARED_MEMORY = Path("/dev/shm")
"""Counts live there: not on a disk, and writable in a container whose own files are not."""


def run(settings: Settings) -> int:
    """Serve until a signal says to stop; returns the exit status."""
    if settings.workers > 1:
        return _run_several(settings)
    _check_address(settings.host, settings.port)
    server = Server(Router(settings))
    tune_process()
    server.run()
    return 0


def _run_several(settings: Settings) -> int:
    listeners = _listeners(settings.host, settings.port, settings.workers)
    crew = Crew(settings.workers, endpoints_of(settings))
    counts = Path(tempfile.mkdtemp(prefix="pd-router-", dir=_folder()))
    lifeline, alive = os.pipe()
    parent = os.getpid()
    tune_process()
    for handler in logging.getLogger().handlers:
        handler.flush()  # or every worker would write it again

    def work(number: int) -> None:
        os.close(alive)
        _close(each for place, mine in enumerate(listeners) if place != number for each in mine)
        mate = crew.join(number, os.getpid())
        server = Server(Router(settings, Worker(mate, counts)), lifeline)
        server.run(sockets=listeners[number])
        if os.getppid() != parent:  # which was killed, and can clean up no more
            shutil.rmtree(counts, ignore_errors=True)

    def ending() -> None:
        _close(each for mine in listeners for each in mine)  # or clients would wait in them

    try:
        return Supervisor(settings.workers, work, crew.left, ending, HURRY).run()
    finally:
        crew.close()
        shutil.rmtree(counts, ignore_errors=True)


def _close(listeners: Iterable[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


def _folder() -> Path | None:
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None


def _listeners(host: str, port: int, workers: int) -> list[list[socket.socket]]:
    """Listening sockets for each worker, on every address of the host.

    Each worker has its own (SO_REUSEPORT), and the kernel deals connections out. This process keeps
    them open: what waits in a worker's socket when it dies is answered by the next one.
    """
    listeners: list[list[socket.socket]] = [[] for _ in range(workers)]
    try:
        for family, address in _addresses(host, port):
            port = _free(family, address, port)
            for mine in listeners:
                mine.append(_bound(family, address, port, share=True))
    except OSError as error:
        raise _cannot_listen(host, port, error) from None
    for mine in listeners:
        for listener in mine:
            listener.listen(BACKLOG)
            listener.setblocking(False)
    return listeners


def _check_address(host: str, port: int) -> None:
    """Raise UsageError if it cannot be listened on: uvicorn would say an errno, and no option."""
    try:
        for family, address in _addresses(host, port):
            _free(family, address, port)
    except OSError as error:
        raise _cannot_listen(host, port, error) from None


def _addresses(host: str, port: int) -> list[tuple[int, str]]:
    """Family and address of everything that the host's name stands for. Raises OSError."""
    flags = socket.AI_PASSIVE | socket.AI_NUMERICSERV
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys((each[0], str(each[4][0])) for each in found))


def _cannot_listen(host: str, port: int, error: OSError) -> UsageError:
    """Which option to change."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"--port: {place} is taken by another process; 0 takes a free port")
    if error.errno == errno.EACCES:
        return UsageError(f"--port: cannot listen on {place}: ports below 1024 need privileges")
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return UsageError(f"--host: {host} is no address of this machine: {error.strerror}")
    return UsageError(f"--port: cannot listen on {place}: {error.strerror}")


def _free(family: int, address: str, port: int) -> int:
    """The port, or a free one for 0, if nobody listens there. Raises OSError.

    Sockets that share a port would share it with another router too, and its users with ours.
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
