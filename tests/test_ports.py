"""Ports of processes: no two get the same, and a server can have its own."""

import random
import socket
from collections.abc import Sequence

import pytest

from tests.ports import own_port, own_ports


@pytest.mark.parametrize("wanted", [[], [0], [8000, 8001, 9090]])
def test_they_lie_as_wanted(wanted: Sequence[int]) -> None:
    found = own_ports(wanted)
    assert [port - found[0] for port in found] == [port - wanted[0] for port in wanted]


def test_a_reserved_port_is_exclusive_and_a_server_can_listen_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = own_port()
    tried = iter([mine, mine - 1, *range(29_000, 15_000, -1)])
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: next(tried))
    assert not {mine} & {*own_ports([0, 1]), own_port()}  # also beside a neighbour
    with socket.socket() as first, socket.socket() as second:
        for server in (first, second):
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        first.bind(("127.0.0.1", mine))
        first.listen()
        with pytest.raises(OSError, match="in use"):
            second.bind(("127.0.0.1", mine))
