"""KV-ready notifications over real ZeroMQ sockets on 127.0.0.1.

A message is known to have been read when a later one on the same connection has had its effect:
ZeroMQ keeps the order of a connection.
"""

import asyncio
import builtins
import itertools
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgpack
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from router.net import kv_ready
from router.net.kv_ready import KVReadySocket

LONG = 60.0
"""Seconds that no test waits in full."""


class Rank:
    """One tensor-parallel rank of a prefill engine."""

    def __init__(self, context: "zmq.Context[Any]", address: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.linger = 0
        self._socket.connect(address)

    def notify(self, *transfer_ids: str) -> None:
        for transfer_id in transfer_ids:
            self.send(msgpack.packb({"type": "ProxyNotif", "req_id": transfer_id}))

    def send(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def close(self) -> None:
        self._socket.close()


class Engine:
    """A prefill engine: hands out ranks and closes them."""

    def __init__(self, listener: KVReadySocket) -> None:
        self._listener = listener
        self._context: zmq.Context[Any] = zmq.Context()
        self._ranks: list[Rank] = []
        self._numbers = itertools.count()

    def rank(self) -> Rank:
        self._ranks.append(Rank(self._context, self._listener.address))
        return self._ranks[-1]

    async def has_been_read(self, rank: Rank) -> None:
        """Until everything that the rank has sent has been read."""
        mark = f"mark-{next(self._numbers)}"
        rank.notify(mark)
        assert await self._listener.wait(mark, 1, LONG)

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()
        self._context.term()


@pytest.fixture
async def listener() -> AsyncIterator[KVReadySocket]:
    listener = KVReadySocket("tcp://127.0.0.1:*")
    listener.start()
    yield listener
    listener.close()


@pytest.fixture
def engine(listener: KVReadySocket) -> Iterator[Engine]:
    engine = Engine(listener)
    yield engine
    engine.close()


async def begun(listener: KVReadySocket, transfer_id: str, count: int) -> "asyncio.Task[bool]":
    """A wait that has got to its waiting."""
    task = asyncio.create_task(listener.wait(transfer_id, count, LONG))
    await asyncio.sleep(0)  # it runs until it has something to wait for
    assert transfer_id in listener._waits
    return task


def failures_of_callbacks() -> list[dict[str, Any]]:
    """What goes wrong in the loop's callbacks from now on."""
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    return failures


def close_with_the_first(listener: KVReadySocket, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Close in the same callback that takes the first message."""
    closed, take = asyncio.Event(), listener._take

    def take_and_close(frames: list[bytes]) -> None:
        take(frames)
        listener.close()
        closed.set()

    monkeypatch.setattr(listener, "_take", take_and_close)
    return closed


async def test_a_notification_ends_the_wait(listener: KVReadySocket, engine: Engine) -> None:
    task = await begun(listener, "t1", 1)
    engine.rank().notify("t1")
    assert await task is True
    assert listener.received == 1


async def test_notifications_may_precede_the_wait(listener: KVReadySocket, engine: Engine) -> None:
    rank = engine.rank()
    rank.notify("t1")
    await engine.has_been_read(rank)
    assert await listener.wait("t1", 1, LONG) is True


async def test_every_rank_is_counted(listener: KVReadySocket, engine: Engine) -> None:
    early, late = engine.rank(), engine.rank()
    early.notify("t1")
    await engine.has_been_read(early)
    task = await begun(listener, "t1", 3)
    late.notify("t1")
    await engine.has_been_read(late)
    assert not task.done()
    late.notify("t1", "t1")
    assert await task is True


async def test_transfers_are_distinguished(listener: KVReadySocket, engine: Engine) -> None:
    first, second = await begun(listener, "t1", 1), await begun(listener, "t2", 1)
    engine.rank().notify("t2")
    assert await second is True
    assert not first.done()
    engine.rank().notify("t1")
    assert await first is True


async def test_a_time_out_is_an_answer_and_leaves_nothing_behind(
    listener: KVReadySocket, engine: Engine
) -> None:
    assert await listener.wait("t1", 2, timeout=0) is False
    assert await listener.wait("t2", 1, timeout=0.01) is False
    assert not listener._waits
    rank = engine.rank()
    rank.notify("t1")  # no waiter is left
    await engine.has_been_read(rank)
    assert not listener._waits


async def test_a_cancelled_wait_leaves_nothing_behind(
    listener: KVReadySocket, engine: Engine
) -> None:
    task = await begun(listener, "t1", 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not listener._waits
    rank = engine.rank()
    rank.notify("t1")
    await engine.has_been_read(rank)


async def test_counts_are_reset(listener: KVReadySocket, engine: Engine) -> None:
    rank = engine.rank()
    rank.notify("t1")
    await engine.has_been_read(rank)
    assert await listener.wait("t1", 1, LONG) is True
    assert not listener._early
    assert await listener.wait("t1", 1, timeout=0) is False


async def test_the_oldest_unknown_transfers_are_forgotten(
    listener: KVReadySocket, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_ready, "MAX_EARLY", 3)
    rank = engine.rank()
    rank.notify("a", "b", "c", "a", "d")
    await engine.has_been_read(rank)
    assert list(listener._early) == ["c", "a", "d"]
    assert await listener.wait("a", 2, LONG) is True
    assert await listener.wait("b", 1, timeout=0) is False


async def test_a_flood_does_not_keep_the_loop_busy(
    listener: KVReadySocket, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_ready, "BATCH", 2)
    rank = engine.rank()
    rank.notify(*(str(number) for number in range(25)))
    await engine.has_been_read(rank)
    assert listener.received == 26


GARBAGE = [
    b"",
    b"\xc1",
    b"\x91" * 2000,
    b"\x81\xa4type",
    b"\xdf\xff\xff\xff\xff",
    b"\x81\x90\x01",
    msgpack.packb(7),
    msgpack.packb(["ProxyNotif", "t1"]),
    msgpack.packb({"type": "AllocRequest", "req_id": "t1"}),
    msgpack.packb({"type": "CancelNotif", "req_id": "t1", "keys": []}),
    msgpack.packb({"type": "ProxyNotif"}),
    msgpack.packb({"type": "ProxyNotif", "req_id": 1}),
    msgpack.packb({"type": "ProxyNotif", "req_id": b"t1"}),
    msgpack.packb({"type": ["ProxyNotif"], "req_id": "t1"}),
    b'{"type":"ProxyNotif","req_id":"t1"}',
    msgpack.packb({"type": "ProxyNotif", "req_id": "t1"}) + b"\x00",
]


async def test_garbage_is_counted_and_ignored(listener: KVReadySocket, engine: Engine) -> None:
    rank = engine.rank()
    for message in GARBAGE:
        rank.send(message)
    rank.send(msgpack.packb({"type": "ProxyNotif", "req_id": "t1"}), b"a second frame")
    await engine.has_been_read(rank)
    assert listener.ignored == len(GARBAGE) + 1
    assert listener.received == 1
    assert not listener._early


async def test_unknown_keys_are_not_minded(listener: KVReadySocket, engine: Engine) -> None:
    rank = engine.rank()
    rank.send(msgpack.packb({"type": "ProxyNotif", "req_id": "t1", "rank": 3, "seconds": 0.5}))
    assert await listener.wait("t1", 1, LONG) is True


async def test_a_client_that_sends_too_much_is_cut_off(
    listener: KVReadySocket, engine: Engine
) -> None:
    loud, quiet = engine.rank(), engine.rank()
    loud.notify("x" * kv_ready.MAX_MESSAGE_BYTES)
    await engine.has_been_read(quiet)
    assert listener.ignored == 0
    assert not listener._early


@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("type"), inner),
).map(msgpack.packb))  # fmt: skip
def test_no_message_does_harm(message: bytes) -> None:
    listener = KVReadySocket("tcp://127.0.0.1:*")
    listener._take([message])
    assert listener.received + listener.ignored == 1


# Starting and stopping.


async def test_waiting_requests_are_answered_at_shutdown(listener: KVReadySocket) -> None:
    task = await begun(listener, "t1", 1)
    listener.close()
    assert await task is False
    listener.close()


async def test_a_wait_that_is_over_stays_so_when_it_closes(
    listener: KVReadySocket, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = failures_of_callbacks()
    close_with_the_first(listener, monkeypatch)
    task = await begun(listener, "t1", 1)
    engine.rank().notify("t1")
    assert await task is True
    assert failures == []


@pytest.mark.parametrize("batch", [1, 256])
async def test_closing_amid_a_flood_is_clean(
    batch: int, listener: KVReadySocket, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_ready, "BATCH", batch)
    failures = failures_of_callbacks()
    closed = close_with_the_first(listener, monkeypatch)
    engine.rank().notify(*(str(number) for number in range(25)))
    await closed.wait()
    await asyncio.sleep(0)  # a read that was planned before finds no socket
    assert listener.received == 1
    assert failures == []


def test_one_that_was_never_started_can_be_closed() -> None:
    KVReadySocket("tcp://127.0.0.1:*").close()


async def test_a_taken_address_is_named(listener: KVReadySocket) -> None:
    assert listener.address.startswith("tcp://127.0.0.1:")
    second = KVReadySocket(listener.address)
    with pytest.raises(OSError, match=f"cannot listen on {listener.address}: Address already"):
        second.start()
    assert second._socket is None
    assert second._context is None


async def test_the_address_is_free_again_after_a_close() -> None:
    listener = KVReadySocket("tcp://127.0.0.1:*")
    listener.start()
    address = listener.address
    listener.close()
    listener = KVReadySocket(address)
    listener.start()
    assert listener.address == address
    listener.close()


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_ipv6_addresses_are_taken() -> None:
    listener = KVReadySocket("tcp://[::1]:*")
    listener.start()
    assert listener.address.startswith("tcp://[::1]:")
    listener.close()


@pytest.mark.parametrize("missing", ["msgpack", "zmq"])
def test_a_missing_package_names_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=rf"need {missing}: pip install 'pd-router\[lmcache\]'"):
        KVReadySocket("tcp://127.0.0.1:7500")
