"""Connections are accepted many at a time, and their wait is measured."""

import asyncio
import errno
import math
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from router.net.client.client_connection import Handler
from router.net.watched_files import TLSFiles
from router.web.listener import MAX_PER_TURN, DeadlineSweep, Listener, listening_sockets
from tests.net.harness import eventually
from tests.net.tls import make_certificate, server_context


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    [[made]] = listening_sockets("127.0.0.1", 0, 1)
    with made:
        yield made


def _clients(listening: socket.socket, number: int) -> list[socket.socket]:
    return [socket.create_connection(listening.getsockname()) for _ in range(number)]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
def test_two_colons_are_for_both_families() -> None:
    [[made]] = listening_sockets("::", 0, 1)
    port = made.getsockname()[1]
    with made:
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port)).close()


async def test_waiting_connections_are_accepted_at_once(listening: socket.socket) -> None:
    waited: list[float] = []
    loop = asyncio.get_running_loop()
    listener = Listener(listening, asyncio.Protocol, waited.append, loop)
    clients = _clients(listening, MAX_PER_TURN + 6)
    listener._accept()
    assert len(waited) == MAX_PER_TURN
    listener._accept()
    assert len(waited) == MAX_PER_TURN + 6
    assert all(0 <= seconds < 60 for seconds in waited)
    await listener.wait_closed()
    assert not listener._connecting
    for client in clients:
        client.close()


async def test_a_client_that_begins_no_handshake_does_not_hold_up_the_end(
    listening: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.web.listener.LATE_SECONDS", 0.01)
    certificate = make_certificate(tmp_path)
    tls = TLSFiles("test", lambda: server_context(certificate), certificate)
    loop = asyncio.get_running_loop()
    listener = Listener(listening, asyncio.Protocol, lambda _: None, loop, tls)
    (client,) = _clients(listening, 1)
    listener._accept()
    listener.close()
    await listener.wait_closed()
    await eventually(lambda: not listener._connecting)
    client.setblocking(False)
    assert await loop.sock_recv(client, 1) == b""
    client.close()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "fs.file-max"),
        (errno.ENOBUFS, "short of memory"),
        (errno.ENOMEM, "short of memory"),
    ],
)
async def test_the_operators_message_has_the_remedy(
    listening: socket.socket, caplog: pytest.LogCaptureFixture, number: int, remedy: str
) -> None:
    loop = asyncio.get_running_loop()
    listener = Listener(listening, asyncio.Protocol, lambda _: None, loop)
    listener._failed(OSError(number, "why"))
    assert remedy in caplog.messages[0]
    assert "Errno" not in caplog.messages[0]
    listener.close()


async def test_without_file_descriptors_it_tries_again_later(
    listening: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    accepted: list[float] = []
    listener = Listener(listening, asyncio.Protocol, accepted.append, loop)
    listener.start()
    listener._failed(OSError(errno.EMFILE, "Too many open files"))
    assert caplog.messages[0].startswith("cannot accept connections: Too many open files; raise")
    assert listener._pause is not None  # it does not spin meanwhile
    listener._go_on()
    clients = _clients(listening, 1)
    await eventually(lambda: accepted)
    listener.close()
    listener.close()
    clients[0].close()


class Patient:
    """The time-outs of a handler."""

    body_seconds = stall_seconds = keep_alive_seconds = 3600.0


class Waiting:
    """A connection with a deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.was_late = False

    def on_deadline(self) -> None:
        self.was_late = True


async def test_only_due_deadlines_are_called() -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    late, in_time, never = Waiting(now - 1), Waiting(now + 3600), Waiting(math.inf)
    sweep = DeadlineSweep([late, in_time, never], cast("Handler", Patient()), loop)
    sweep._sweep()
    sweep.close()
    assert [each.was_late for each in (late, in_time, never)] == [True, False, False]
