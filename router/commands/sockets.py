"""The listening sockets of `pd-router serve`: newly bound, or taken over from a previous router."""

import errno
import socket
from collections.abc import Sequence
from pathlib import Path

from router.commands.flags import UsageError
from router.net.processes.takeover import Predecessor, Succession, deal
from router.settings import Settings
from router.web.listener import addresses_of, listening_sockets

__all__ = ["Sockets"]


class Sockets:
    """The sockets of each worker: `public` for clients, `admin` for operators. With --takeover
    another router can take them over through `succession`. Raises UsageError."""

    def __init__(self, settings: Settings) -> None:
        workers = settings.workers
        predecessor = _predecessor(settings)
        if predecessor is not None:
            admin_host = settings.listening_admin_host
            self.public = _taken(predecessor.public, settings.host, settings.port, workers, "--")
            self.admin = _taken(
                predecessor.admin, admin_host, settings.admin_port, workers, "--admin-"
            )
        else:
            self.public = _bound(settings, settings.host, settings.port, "--")
            self.admin = _admin(settings)
        self.succession = None
        if settings.takeover is not None:
            public, admin = _flat(self.public), _flat(self.admin)
            self.succession = Succession(settings.takeover, predecessor, public, admin)

    def is_preceded(self) -> bool:
        """Whether the previous router still listens on them."""
        return self.succession is not None and self.succession.is_preceded()

    def close(self, *, keep: int | None = None) -> None:
        """Close all sockets except those of worker `keep`."""
        for sockets in (self.public, self.admin):
            for number, mine in enumerate(sockets):
                if number != keep:
                    for each in mine:
                        each.close()


def _flat(sockets: Sequence[list[socket.socket]]) -> list[socket.socket]:
    return [each for mine in sockets for each in mine]


def _predecessor(settings: Settings) -> Predecessor | None:
    """The router that is replaced, if any."""
    if settings.takeover is None:
        return None
    try:
        return Predecessor.find(settings.takeover)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--takeover: the router at {settings.takeover} does not hand over ({error}): wait if "
            "another one takes over just now, or end it"
        ) from None


def _taken(
    found: Sequence[socket.socket], host: str, port: int | None, workers: int, flags: str
) -> list[list[socket.socket]]:
    """The previous router's sockets, if they listen on `host` and `port`."""
    ports = {each.getsockname()[1] for each in found}
    if (port is None and ports) or (
        port is not None and ports != {port or next(iter(ports), None)}
    ):
        now = ", ".join(map(str, sorted(ports))) or "none"
        raise UsageError(
            f"{flags}port: the router whose place is taken (--takeover) has {now}; a port can "
            "change at a restart only"
        )
    hosts = {each.getsockname()[0] for each in found}
    if hosts and hosts != _addresses(host, flags):
        raise UsageError(
            f"{flags}host: the router whose place is taken (--takeover) has "
            f"{', '.join(sorted(hosts))}; a host can change at a restart only"
        )
    return deal(found, workers)


def _addresses(host: str, flags: str) -> set[str]:
    try:
        return {address for _, address in addresses_of(host, 0)}
    except OSError as error:
        raise _cannot_listen(host, 0, error, flags, None) from None


def _admin(settings: Settings) -> list[list[socket.socket]]:
    """The sockets of the admin listener; None if no admin port is set."""
    if settings.admin_port is None:
        return [[] for _ in range(settings.workers)]
    host = settings.listening_admin_host
    return _bound(settings, host, settings.admin_port, "--admin-")


def _bound(settings: Settings, host: str, port: int, flags: str) -> list[list[socket.socket]]:
    try:
        return listening_sockets(host, port, settings.workers)
    except OSError as error:
        raise _cannot_listen(host, port, error, flags, settings.takeover) from None


def _cannot_listen(
    host: str, port: int, error: OSError, flags: str, takeover: Path | None
) -> UsageError:
    """The error with the options that can be changed; `flags` is the prefix of the names of the
    host and port options."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE and takeover is not None:
        return UsageError(
            f"{flags}port: {place} is taken, and nobody hands it over at {takeover}: a router that "
            "has just started does so when all of its workers listen; else end what listens there"
        )
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"{flags}port: {place} is taken by another process; 0 takes a free port")
    if error.errno == errno.EACCES:
        return UsageError(
            f"{flags}port: cannot listen on {place}: ports below 1024 need privileges"
        )
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return UsageError(f"{flags}host: {host} is no address of this machine: {error.strerror}")
    return UsageError(f"{flags}port: cannot listen on {place}: {error.strerror}")
