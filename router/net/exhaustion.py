"""This process has no file descriptor, port or memory left for a connection, which is no engine's
fault, or for a process of its own."""

import contextlib
import errno
import os
from typing import Final, TypeGuard

__all__ = ["EXHAUSTED", "check_descriptors", "is_exhaustion", "remedy"]

EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Of accept(), socket(), connect() and fork()."""

NO_PORT: Final = errno.EADDRNOTAVAIL
"""Of connect(): all local ports are in use for connections to that address."""


def is_exhaustion(error: BaseException) -> TypeGuard[OSError]:
    """Whether a connection was not even tried, or a process not started."""
    return isinstance(error, OSError) and (error.errno in EXHAUSTED or error.errno == NO_PORT)


def check_descriptors(number: int) -> None:
    """Raise OSError if this process cannot open so many files more."""
    with contextlib.ExitStack() as opened:
        for _ in range(number):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))


def remedy(error: OSError) -> str:
    """What an operator can do about it."""
    if error.errno == errno.EMFILE:
        return "raise this process's limit of open files (ulimit -n, LimitNOFILE)"
    if error.errno == errno.ENFILE:
        return "raise the machine's limit of open files (sysctl fs.file-max)"
    if error.errno == NO_PORT:
        return "no local port is free: widen net.ipv4.ip_local_port_range"
    return "the machine is short of memory"
