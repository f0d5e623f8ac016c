"""Ports for processes that cannot choose one themselves."""

import contextlib
import random
import socket

__all__ = ["own_port"]


def own_port() -> int:
    """A free one below those that the system hands out, so that nobody else gets it meanwhile."""
    while True:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", random.SystemRandom().randrange(15_000, 30_000)))
            return int(probe.getsockname()[1])
