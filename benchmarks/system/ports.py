"""Ports for the processes of a bench."""

import contextlib
import random
import socket

__all__ = ["free_port"]


def free_port() -> int:
    """A port that is free now, and the next one; below the range that the system assigns from, so
    that no connection gets it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", port))
            two.bind(("127.0.0.1", port + 1))
            return port
