"""`python -m benchmarks.overload`: its command line, and the causes of a stream's gaps."""

import asyncio
import os
import socket
import time

import pytest

from benchmarks.overload.__main__ import main
from benchmarks.overload.engine import EVENT
from benchmarks.overload.observers import Observers

STREAMS = 2
COMPUTED = 0.05
TICK = 0.01
"""Seconds in which the kernel counts."""


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--help"], 0), (["other"], 2), (["bodies", "many"], 2), (["goodput", "5"], 2)],
)
def test_help_and_bad_usage_are_printed(
    arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == status
    assert "python -m benchmarks.overload" in "".join(capsys.readouterr())


def event(sent: float) -> bytes:
    """As the engine sends it, at a time on the system's clock."""
    return EVENT % b"%d" % int(sent * 1e9)


async def test_a_gap_is_split_by_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.overload.observers.OBSERVERS", STREAMS)
    with socket.create_server(("127.0.0.1", 0)) as server:
        observers = Observers(server.getsockname()[1], os.getpid())
        observers.start()
        router = server.accept()[0]
        began = time.time()
        while not observers._streams[0].read:  # until the kernel notes when data comes
            reads = len(observers._times)
            router.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + event(began - 3.0))
            while len(observers._times) == reads:  # noqa: ASYNC110 - a turn of the event loop
                await asyncio.sleep(0)
        router.sendall(event(began - 1.0) + event(began))
        arrived = time.time()
        begun = time.thread_time()
        while (
            time.thread_time() < begun + COMPUTED
        ):  # this client, which is the router too, is late
            pass
        while not observers.events:  # noqa: ASYNC110
            await asyncio.sleep(0)
        router.close()
        while not observers.ended:  # noqa: ASYNC110
            await asyncio.sleep(0)
        observers.stop()
    [found] = observers.events
    assert found.step == pytest.approx(2.0, abs=1e-6)
    assert 1.0 <= found.held <= 1.0 + arrived - began
    assert found.unread >= COMPUTED - TICK
    assert COMPUTED - TICK <= found.computed <= found.held
    assert found.gap >= found.unread
    assert observers.ended == 1
