"""Detects that this process has run out of file descriptors, ports or memory, which is not the
fault of an engine."""

import contextlib
import errno
import os
from typing import Final, TypeGuard

__all__ = ["EXHAUSTED", "check_descriptors", "is_exhaustion", "remedy"]

EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of accept(), socket(), connect() and fork()."""

NO_PORT: Final = errno.EADDRNOTAVAIL
"""Error of connect(): all local ports are in use for connections to this address."""


def is_exhaustion(error: BaseException) -> TypeGuard[OSError]:
    """Whether an error means that no connection was tried, or no process started, for lack of
    resources."""
    return isinstance(error, OSError) and (error.errno in EXHAUSTED or error.errno == NO_PORT)


def check_descriptors(number: int) -> None:
    """Raise OSError unless this process can open `number` more file descriptors."""
    with contextlib.ExitStack() as opened:
        for _ in range(number):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))


def remedy(error: OSError) -> str:
    """What an operator can do about such an error."""
    if error.errno == errno.EMFILE:
        return "raise this process's limit of open files (ulimit -n, LimitNOFILE)"
    if error.errno == errno.ENFILE:
        return "raise the machine's limit of open files (sysctl fs.file-max)"
    if error.errno == NO_PORT:
        return "no local port is free: widen net.ipv4.ip_local_port_range"
    return "the machine is short of memory"
