"""KV-cache events over real ZeroMQ sockets on 127.0.0.1."""

import asyncio
import builtins
import contextlib
import errno
import logging
import sys
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
import zmq

from router.core.kv_events.block_index import BlockIndex
from router.core.kv_events.kv_sources import EngineCache, SourceState
from router.core.kv_events.parsing import BLOCKS_AT_A_TIME
from router.net.kv_events import subscriber as subscribing
from router.net.kv_events import subscription as subscribed
from router.net.kv_events.subscriber import KVEventSubscriber
from router.net.kv_events.subscription import KVAddress
from tests.net.harness import eventually
from tests.net.kv_events.followed import SOCKETS, Followed
from tests.net.kv_events.kv_publisher import Publisher, batch, stored


async def test_blocks_that_are_announced_are_held(heard: Followed) -> None:
    heard.publisher.publish(batch(stored(1, blocks=3), stored(4, parent=3)))
    await heard.until(lambda: heard.holds(1, 3))
    removed = {"type": "BlockRemoved", "block_hashes": [3], "medium": "GPU"}
    heard.publisher.publish(batch(removed))
    await heard.until(lambda: not heard.holds(1, 3))
    assert heard.holds(1)
    assert heard.source.stream.gaps == 0


@pytest.mark.parametrize("has_topic", [True, False], ids=["0.26", "0.25"])
async def test_a_late_worker_learns_the_earlier_state(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher], *, has_topic: bool
) -> None:
    publisher = publishers()
    publisher.has_topic = has_topic
    publisher.publish(*(batch(stored(number)) for number in range(20)))
    engine = Followed(subscriber, publisher)
    await engine.is_live()
    assert all(engine.holds(number) for number in range(20))
    assert engine.cache.is_whole
    assert publisher.asked == [0]
    await engine.hears(50)


async def test_lost_messages_are_requested_again(heard: Followed) -> None:
    lost = heard.publisher.seq
    heard.publisher.publish(*(batch(stored(number)) for number in (1, 2)), is_lost=True)
    heard.publisher.publish(batch(stored(3)))
    await heard.until(lambda: heard.holds(3))
    assert heard.holds(1)
    assert heard.holds(2)
    assert heard.publisher.asked[-1] == lost
    assert heard.cache.counts.gaps >= 1
    assert heard.cache.is_whole


async def test_a_gap_without_replay_drops_all(
    heard: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = heard.publisher.seq
    heard.publisher.publish(batch(stored(1)), is_lost=True)
    heard.publisher.publish(batch(stored(2)))

    def answered() -> bool:
        heard.publisher.answer(leave_out=[lost])
        return heard.holds(2)

    await eventually(answered)
    assert not heard.holds(0)
    assert heard.cache.counts.losses == 1


async def test_a_replay_that_never_ends_is_given_up(
    subscriber: KVEventSubscriber,
    publishers: Callable[..., Publisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscribed, "REPLAY_IDLE_SECONDS", 3600.0)
    publisher = publishers()
    publisher.publish(*(batch(stored(number)) for number in range(3)))
    engine = Followed(subscriber, publisher)
    await eventually(lambda: publisher.answer(ends=False))
    await eventually(lambda: all(engine.holds(number) for number in range(3)))
    [subscription] = subscriber._watched[engine.cache]
    timer = subscription._timer
    assert timer is not None
    assert timer.when() <= asyncio.get_running_loop().time() + 3600.0
    subscription._check_replay()  # too early
    assert engine.cache.state is SourceState.REPLAYING
    subscription._replay_idle = 0.0  # as when nothing has come for so long
    subscription._check_replay()
    await eventually(lambda: engine.cache.state is SourceState.LIVE)
    assert all(engine.holds(number) for number in range(3))


async def test_without_replay_knowledge_begins_with_new_events(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher]
) -> None:
    publisher = publishers()
    publisher.publish(batch(stored(0)))
    engine = Followed(subscriber, publisher, can_replay=False)
    await engine.is_live()
    await engine.hears(1)
    assert not engine.holds(0)
    assert not engine.cache.is_whole
    publisher.publish(batch(), is_lost=True)
    publisher.publish(batch(stored(2)))
    await engine.until(lambda: engine.holds(2))
    assert not engine.holds(1)


async def test_an_engine_that_restarts_is_forgotten_and_found_again(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher]
) -> None:
    first = publishers()
    engine = Followed(subscriber, first)
    await engine.is_live()
    await engine.hears(0)
    address = first.address
    first.close()
    await eventually(lambda: engine.cache.state is SourceState.CONNECTING)
    engine.publisher = publishers(address)
    # Past the number of the old one: the number alone does not show it.
    engine.publisher.publish(*(batch(stored(7)) for _ in range(first.seq + 5)))
    await engine.is_live()
    assert engine.holds(7)
    assert not engine.holds(0)
    await engine.hears(8)


async def test_a_source_can_be_exchanged_and_left(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher]
) -> None:
    one, other = publishers(), publishers()
    engine = Followed(subscriber, one)
    await engine.is_live()
    await engine.hears(0)
    before = engine.source
    subscriber.watch(engine.cache, [one.address])
    assert engine.source is before
    engine.publisher = other
    subscriber.watch(engine.cache, [other.address])
    await engine.is_live()
    await engine.hears(1)
    assert not engine.holds(0)
    assert engine.cache.counts.events >= 2
    subscriber.forget(engine.cache)
    assert engine.cache.state is None
    await eventually(lambda: not len(subscriber.index))


async def test_invalid_messages_are_logged_once_and_survived(
    heard: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = heard.publisher
    wrong = [b"", b"\xc1", msgpack.packb({"no": "events"}), msgpack.packb([1.5, [5], 0])]
    with caplog.at_level(logging.WARNING):
        for payload in wrong:
            publisher.publish(payload)
        publisher.send(b"short", b"x")
        publisher.send(b"alone")
        await heard.until(lambda: heard.source.unreadable == len(wrong) + 2)
    assert heard.cache.state is SourceState.UNREADABLE
    assert not heard.holds(0)
    assert not heard.cache.is_whole, "block 0 may still be there"
    [line] = [record.getMessage() for record in caplog.records]
    assert "cannot be read" in line
    await heard.hears(1)
    assert heard.source.error is None


async def test_a_replay_that_is_none_is_outlived(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher]
) -> None:
    publisher = publishers()
    engine = Followed(subscriber, publisher)
    await eventually(lambda: publisher.replay.poll(0))
    client, _, _ = publisher.replay.recv_multipart()
    publisher.replay.send_multipart([client, b"?"])
    await eventually(lambda: engine.source.unreadable == 1)
    publisher.replay.send_multipart([client, b"", b"", b"\xff" * 8, b""])
    await engine.until(lambda: not engine.source.stream.is_replaying)
    await engine.hears(0)


@pytest.mark.parametrize("place", [0, 1])
async def test_an_invalid_address_is_reported(
    subscriber: KVEventSubscriber,
    publishers: Callable[..., Publisher],
    caplog: pytest.LogCaptureFixture,
    place: int,
) -> None:
    field = KVAddress._fields[place]
    address = publishers().address._replace(**{field: "tcp://nowhere"})
    cache = EngineCache()
    with caplog.at_level(logging.WARNING):
        subscriber.watch(cache, [address])
        await eventually(lambda: caplog.records)
    assert "tcp://nowhere" in caplog.records[0].getMessage()


async def test_other_work_continues_between_events(
    heard: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribing, "TURN_SECONDS", 0.0)
    loop, turns = asyncio.get_running_loop(), 0

    def count() -> None:
        nonlocal turns
        turns += 1
        if not heard.holds(499):
            loop.call_soon(count)

    heard.publisher.publish(batch(*(stored(number) for number in range(1, 500))))
    loop.call_soon(count)
    await heard.until(lambda: heard.holds(499))
    assert turns > 400


async def test_a_long_message_takes_many_turns_and_the_next_one_waits(
    heard: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribing, "TURN_SECONDS", 0.0)
    most, held, loop = 0, 0, asyncio.get_running_loop()

    def look() -> None:
        nonlocal most, held
        most, held = max(most, heard.source.blocks.held - held), heard.source.blocks.held
        if not heard.holds(4_200):
            loop.call_soon(look)

    chain = stored(1, blocks=4_000)
    removal = {"type": "BlockRemoved", "block_hashes": [4_000], "medium": "GPU"}
    heard.publisher.publish(batch(chain), batch(removal), batch(stored(4_100), stored(4_200)))
    loop.call_soon(look)
    await heard.until(lambda: heard.holds(4_200))
    assert most <= BLOCKS_AT_A_TIME
    assert heard.holds(1, blocks=3_999)
    assert not heard.holds(1, blocks=4_000)
    assert heard.cache.is_whole


async def test_blocks_left_by_a_clear_are_swept_before_the_next_event(
    heard: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribing, "TURN_SECONDS", 60.0)  # the whole message in one turn
    index, most = heard.index, 0
    drop = index.drop

    def count(bit: int, size: int | None, keys: list[dict[Any, int]]) -> None:
        nonlocal most
        drop(bit, size, keys)
        most = max(most, len(index._dropped))

    monkeypatch.setattr(index, "drop", count)
    cleared = {"type": "AllBlocksCleared"}
    pairs = [event for number in range(1, 101) for event in (cleared, stored(number))]
    heard.publisher.publish(batch(*pairs))
    await heard.until(lambda: heard.holds(100))
    assert most == 1
    assert heard.source.blocks.bit <= 2, "of a single source, and of what it held before"
    assert len(index) == 1


async def test_an_engine_that_restarts_behind_a_long_message_is_forgotten(
    heard: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribing, "TURN_SECONDS", 0.0)
    heard.publisher.publish(batch(stored(1, blocks=4_000)))
    heard.publisher.seq = 0
    heard.publisher.publish(batch(stored(7)))
    await heard.until(lambda: heard.holds(7))
    assert heard.source.blocks.held == 1
    assert heard.source.stream.restarts == 1


@pytest.mark.parametrize("free", [SOCKETS, SOCKETS + 1, SOCKETS + 2])
async def test_sources_for_which_there_are_not_sockets_enough_leave_nothing_behind(
    subscriber: KVEventSubscriber,
    publishers: Callable[..., Publisher],
    monkeypatch: pytest.MonkeyPatch,
    free: int,
) -> None:
    monkeypatch.setattr(subscribing, "MAX_SOCKETS", free)
    cache, addresses = EngineCache(), [publishers().address for _ in range(2)]
    with pytest.raises(zmq.ZMQError) as failed:  # which keeps all that it names
        subscriber.watch(cache, addresses)
    assert failed.value.errno == errno.EMFILE
    assert cache.state is None
    await eventually(lambda: not subscriber.index._bits)

    def are_free() -> bool:
        with contextlib.ExitStack() as taken:
            try:
                for _ in range(free):
                    taken.enter_context(subscriber.context.socket(zmq.PAIR))
            except zmq.ZMQError:  # closed sockets take a moment to be free again
                return False
        return True

    await eventually(are_free)


async def test_a_missing_package_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def without(name: str, *others: Any, **more: Any) -> Any:
        if name == "msgpack":
            raise ImportError(name=name)
        return real(name, *others, **more)

    monkeypatch.delitem(sys.modules, "msgpack")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"need msgpack: pip install 'pd-router\[kv\]'"):
        KVEventSubscriber(BlockIndex())
