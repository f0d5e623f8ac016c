"""Ports for processes that cannot choose one themselves."""

import contextlib
import random
import socket
from collections.abc import Sequence

__all__ = ["own_port", "own_ports"]


def own_port() -> int:
    """A port reserved for this process."""
    return own_ports([0])[0]


def own_ports(wanted: Sequence[int]) -> list[int]:
    """As many, as far from each other as the wanted ones, which ascend.

    They lie below those that the system hands out. Each stays bound here, so that no other call
    finds it free, in whichever process. Who binds it with SO_REUSEADDR, as every server does, gets
    it all the same, since nothing listens here.
    """
    while wanted:
        first = random.SystemRandom().randrange(15_000, 30_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            sockets = [held.enter_context(socket.socket()) for _ in wanted]
            for each, port in zip(sockets, wanted, strict=True):
                each.bind(("127.0.0.1", first + port - wanted[0]))
            found = [each.getsockname()[1] for each in sockets]
            for each in sockets:  # only now: two that have it could bind the same port
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                each.detach()
            return found
    return []
