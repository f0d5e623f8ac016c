"""Hands the listening sockets of a router over to its successor.

They connect through a Unix socket. The old router sends a line that describes what follows, and the
descriptors of its listening sockets. The new one answers `ready` once it accepts connections on
them, and only then the old one stops. If the new one disconnects before that, nothing changes. The
sockets stay open all the time, so no connection in their backlogs is lost.
"""

import contextlib
import json
import logging
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["Predecessor", "Succession", "deal"]

log = logging.getLogger(__name__)

SECONDS: Final = 10.0
"""Time-out in seconds for the old router's answer; it polls four times a second."""

BATCH: Final = 200
"""Descriptors per message; Linux allows 253."""

MAX_LINE: Final = 200
READY: Final = b"ready\n"
CREDENTIALS: Final = struct.Struct("3i")
"""Linux's struct ucred: process, user and group of the peer."""


class Predecessor:
    """The router that is listening, and its sockets for clients and for operators."""

    def __init__(
        self, connection: socket.socket, public: list[socket.socket], admin: list[socket.socket]
    ) -> None:
        self._connection = connection
        self.public = public
        self.admin = admin

    @classmethod
    def find(cls, path: Path) -> "Predecessor | None":
        """The router that waits at `path`; None if there is none. Raises OSError (including
        TimeoutError) or ValueError if it does not answer correctly."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(SECONDS)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        sockets: list[socket.socket] = []
        try:
            public, admin = _counts(_line(connection))
            while len(sockets) < public + admin:
                sockets += _sockets(connection)
        except BaseException:
            for each in (connection, *sockets):
                each.close()
            raise
        connection.setblocking(False)
        return cls(connection, sockets[:public], sockets[public:])

    def is_there(self) -> bool:
        """Whether it has neither ended nor aborted the takeover. Never blocks."""
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except BlockingIOError:  # it has sent nothing
            return True
        except OSError:
            return False

    def replace(self) -> None:
        """Have it stop accepting, if it is still running."""
        with contextlib.suppress(OSError), self._connection as connection:
            connection.sendall(READY)


class Succession:
    """The place of a router in a sequence of takeovers. `predecessor`: the router that it replaces,
    if any. Its own successor connects to `path` and gets the sockets `public` and `admin`."""

    def __init__(
        self,
        path: Path,
        predecessor: Predecessor | None,
        public: Sequence[socket.socket],
        admin: Sequence[socket.socket],
    ) -> None:
        self._path = path
        self._predecessor = predecessor
        self._public = public
        self._admin = admin
        self._meeting: socket.socket | None = None
        self._inode = 0
        self._successor: socket.socket | None = None

    def is_preceded(self) -> bool:
        """Whether the previous router is still serving."""
        return self._predecessor is not None and self._predecessor.is_there()

    def begin(self) -> None:
        """Replace the previous router and wait for a successor. Call it when this router accepts
        connections."""
        try:
            self._meeting = _meeting_at(self._path)
            self._inode = self._path.stat().st_ino
        except OSError as error:
            text = "--takeover: no router can take over from this one: %s: %s"
            log.error(text, self._path, error.strerror)  # noqa: TRY400
        if self._predecessor is not None:
            self._predecessor.replace()
            self._predecessor = None

    def poll(self) -> bool:
        """Talk to a connected successor. Returns whether it accepts connections now. Never
        blocks."""
        if self._successor is None and self._meeting is not None:
            self._greet(self._meeting)
        if self._successor is None:
            return False
        try:
            said = self._successor.recv(len(READY))
        except BlockingIOError:
            return False
        except OSError:
            said = b""
        if said == READY:
            return True
        self._successor.close()  # it has failed
        self._successor = None
        return False

    def close(self) -> None:
        """Stop waiting for a successor."""
        for each in (self._meeting, self._successor):
            if each is not None:
                each.close()
        with contextlib.suppress(OSError):
            if self._meeting is not None and self._path.stat().st_ino == self._inode:
                self._path.unlink()
        self._meeting = self._successor = None

    def forget(self) -> None:
        """Close the sockets in a forked process, without effect on the other one."""
        for each in (self._meeting, self._successor):
            if each is not None:
                each.close()

    def _greet(self, meeting: socket.socket) -> None:
        try:
            successor, _ = meeting.accept()
        except OSError:  # no router has connected
            return
        successor.setblocking(False)
        try:
            if not _is_trusted(successor):
                raise PermissionError
            successor.sendall(b"[%d,%d]\n" % (len(self._public), len(self._admin)))
            numbers = [each.fileno() for each in (*self._public, *self._admin)]
            for first in range(0, len(numbers), BATCH):
                socket.send_fds(successor, [b"."], numbers[first : first + BATCH])
        except OSError:
            successor.close()
        else:
            self._successor = successor


def deal(sockets: Sequence[socket.socket], workers: int) -> list[list[socket.socket]]:
    """Distribute listening sockets among workers. All are used, because connections to a socket
    that no worker accepts from would wait forever. With fewer sockets than workers, some are
    shared."""
    by_address: dict[tuple[object, ...], list[socket.socket]] = {}
    for each in sockets:
        by_address.setdefault(each.getsockname()[:2], []).append(each)
    dealt: list[list[socket.socket]] = [[] for _ in range(workers)]
    for group in by_address.values():
        shared = [each.dup() for each in (group * workers)[len(group) : max(workers, len(group))]]
        for place, each in enumerate((*group, *shared)):
            dealt[place % workers].append(each)
    return dealt


def _meeting_at(path: Path) -> socket.socket:
    """Listen at `path`, replacing any previous listener. Only this user may connect."""
    meeting = socket.socket(socket.AF_UNIX)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    try:
        meeting.bind(str(beside))
        beside.chmod(0o600)
        meeting.listen(1)
        meeting.setblocking(False)
        beside.replace(path)
    except OSError:
        meeting.close()
        beside.unlink(missing_ok=True)
        raise
    return meeting


def _is_trusted(peer: socket.socket) -> bool:
    """Whether the peer runs as this user or as root."""
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return CREDENTIALS.unpack(found)[1] in (os.geteuid(), 0)


def _line(connection: socket.socket) -> bytes:
    """The first line, read byte by byte because descriptors follow immediately."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > MAX_LINE:
            raise ValueError("it is busy, or no router")
        line += byte
    return line


def _counts(line: bytes) -> tuple[int, int]:
    """The numbers of sockets for clients and for operators. Raises ValueError."""
    found: object = json.loads(line)
    match found:
        case [int(public), int(admin)]:
            return public, admin
    raise ValueError("it is no router")


def _sockets(connection: socket.socket) -> list[socket.socket]:
    """The sockets in the next message."""
    data, numbers, _, _ = socket.recv_fds(connection, 1, BATCH)
    if not data:
        raise ValueError("it ended")
    return [socket.socket(fileno=number) for number in numbers]
