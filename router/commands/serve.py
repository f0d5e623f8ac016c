"""`pd-router serve`: one process, or several that share the port and their state."""

import errno
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from router import __version__
from router.commands.supervisor import Supervisor
from router.commands.usage import UsageError
from router.net.shared_state import SharedState
from router.settings import Settings
from router.web.app import Router, Worker
from router.web.server import FORCE_STOP, Server, tune_process
from router.web.sockets import listening_sockets
from router.web.sources import first_roster, sources_of

__all__ = ["run"]

log = logging.getLogger(__name__)

MAX_NAMED = 16
"""Engines of a pool that the first line of the log names."""

SHARED_MEMORY = Path("/dev/shm")
"""Folder of the shared metrics: in memory, and writable in a read-only container."""


def run(settings: Settings, configured_by: str = "") -> int:
    """Serve until a signal says to stop; returns the exit status. `configured_by`: where the
    settings come from, for the log."""
    listeners, admin = _listeners(settings), _admin_listeners(settings)
    _announce(settings, configured_by)
    if settings.workers > 1:
        return _run_several(settings, listeners, admin)
    server = Server(Router(settings), admin_sockets=admin[0])
    tune_process()
    server.run(sockets=listeners[0])
    return 0


def _run_several(
    settings: Settings,
    listeners: Sequence[list[socket.socket]],
    admin: Sequence[list[socket.socket]],
) -> int:
    shared_state = SharedState(settings.workers, first_roster(settings))
    counts = Path(tempfile.mkdtemp(prefix="pd-router-", dir=_folder()))
    lifeline, alive = os.pipe()
    parent = os.getpid()
    tune_process()
    for handler in logging.getLogger().handlers:
        handler.flush()  # or every worker would write the buffered lines again

    def work(number: int) -> None:
        os.close(alive)
        for sockets in (listeners, admin):
            _close(each for place, mine in enumerate(sockets) if place != number for each in mine)
        context = shared_state.join(number, os.getpid())
        router = Router(settings, Worker(context, counts))
        Server(router, lifeline, admin[number]).run(sockets=listeners[number])
        router.metrics.close()
        if os.getppid() != parent:  # the parent was killed and cannot clean up
            shutil.rmtree(counts, ignore_errors=True)

    def ending() -> None:
        # Or clients would wait in their backlogs.
        _close(each for mine in (*listeners, *admin) for each in mine)

    try:
        return Supervisor(
            settings.workers, work, shared_state.worker_left, ending, FORCE_STOP
        ).run()
    finally:
        shared_state.close()
        shutil.rmtree(counts, ignore_errors=True)


def _announce(settings: Settings, configured_by: str) -> None:
    """One line about what is started."""
    strategies: list[str] = [settings.load_balancing_strategy]
    for role, own in (
        ("prefill", settings.prefill_load_balancing_strategy),
        ("decode", settings.decode_load_balancing_strategy),
    ):
        if own is not None:
            strategies.append(f"{role}:{own}")
    fields: dict[str, object] = {
        "version": __version__,
        "prefill": _names(settings.prefill),
        "decode": _names(settings.decode),
        "threshold": settings.routing_threshold,
        "strategy": ",".join(strategies),
        "connector": settings.disagg_connector_type,
        "workers": settings.workers,
        "configuration": configured_by or None,
    }
    if found := [source.name for source in sources_of(settings)]:
        fields["discovery"] = ",".join(found)
    log.info("starting", extra={"fields": fields})


def _names(urls: Sequence[str]) -> str:
    """Engines, not more than a line holds."""
    text = ",".join(urls[:MAX_NAMED])
    return f"{text},and {len(urls) - MAX_NAMED} more" if len(urls) > MAX_NAMED else text or "none"


def _close(listeners: Iterable[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


def _folder() -> Path | None:
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None


def _listeners(settings: Settings) -> list[list[socket.socket]]:
    return _bound(settings.host, settings.port, settings.workers, "--")


def _admin_listeners(settings: Settings) -> list[list[socket.socket]]:
    """Those of each worker; none where no admin port is set."""
    if settings.admin_port is None:
        return [[] for _ in range(settings.workers)]
    host = settings.listening_admin_host
    return _bound(host, settings.admin_port, settings.workers, "--admin-")


def _bound(host: str, port: int, workers: int, flags: str) -> list[list[socket.socket]]:
    try:
        return listening_sockets(host, port, workers)
    except OSError as error:
        raise _cannot_listen(host, port, error, flags) from None


def _cannot_listen(host: str, port: int, error: OSError, flags: str) -> UsageError:
    """Which option to change; `flags` is what the names of host and port begin with."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"{flags}port: {place} is taken by another process; 0 takes a free port")
    if error.errno == errno.EACCES:
        return UsageError(
            f"{flags}port: cannot listen on {place}: ports below 1024 need privileges"
        )
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return UsageError(f"{flags}host: {host} is no address of this machine: {error.strerror}")
    return UsageError(f"{flags}port: cannot listen on {place}: {error.strerror}")
