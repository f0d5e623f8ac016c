"""KV-cache events over real ZeroMQ sockets on 127.0.0.1."""

import asyncio
import builtins
import contextlib
import errno
import logging
import sys
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgpack
import pytest
import zmq

from router.core.prefix import kv_stream
from router.core.prefix.block_index import BlockIndex
from router.core.prefix.kv_events import BLOCKS_AT_A_TIME
from router.core.prefix.kv_source import EngineCache, KVSource, SourceState
from router.core.prefix.prompt_tokens import PromptTokens
from router.net.kv import kv_events, kv_subscription
from router.net.kv.kv_events import KVEventSubscriber
from router.net.kv.kv_subscription import KVAddress
from tests.net.harness import eventually
from tests.net.kv_publisher import Publisher, batch, ids_of, stored


@pytest.fixture
async def subscriber() -> AsyncIterator[KVEventSubscriber]:
    subscriber = KVEventSubscriber(BlockIndex())
    yield subscriber
    subscriber.close()


@pytest.fixture
def publishers() -> Iterator[Callable[..., Publisher]]:
    made: list[Publisher] = []

    def make(address: KVAddress | None = None) -> Publisher:
        made.append(Publisher(address))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()


class Followed:
    """An engine whose events are followed."""

    def __init__(
        self, subscriber: KVEventSubscriber, publisher: Publisher, *, can_replay: bool = True
    ) -> None:
        self.publisher = publisher
        self.index = subscriber.index
        self.cache = EngineCache()
        address = publisher.address
        subscriber.watch(
            self.cache, [address if can_replay else address._replace(replay_endpoint=None)]
        )

    @property
    def source(self) -> KVSource:
        """Its only source."""
        [source] = self.cache.sources
        return source

    def holds(self, number: int, blocks: int = 1) -> bool:
        """Whether it holds the blocks that `stored` announces."""
        ids = array("I", ids_of(number, blocks)).tobytes()
        prompt = PromptTokens(ids, blocks * 16, None, None, is_whole=False)
        return self.index.match(prompt).get(self.source.blocks.bit, 0) == blocks * 16

    async def is_live(self) -> None:
        """Until it is connected and all replays are over; they are answered."""
        await self.until(lambda: self.cache.state is SourceState.LIVE)

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait, and answer replays meanwhile."""
        await eventually(lambda: (self.publisher.answer(), holds())[1], lambda: self.cache.state)

    async def hears(self, number: int) -> None:
        """Publish a block until it is held: a subscription takes a moment to arrive."""

        def publish() -> bool:
            self.publisher.publish(batch(stored(number)))
            return self.holds(number)

        await self.until(publish)


@pytest.fixture
def no_idle_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays that are not answered do not end."""
    monkeypatch.setattr(kv_subscription, "REPLAY_IDLE_SECONDS", 1e4)


@pytest.fixture
async def heard(subscriber: KVEventSubscriber, publishers: Callable[..., Publisher]) -> Followed:
    """An engine that is followed, and has announced its first block."""
    engine = Followed(subscriber, publishers())
    await engine.is_live()
    await engine.hears(0)
    return engine


async def test_blocks_that_are_announced_are_held(heard: Followed) -> None:
    heard.publisher.publish(batch(stored(1, blocks=3), stored(4, parent=3)))
    await heard.until(lambda: heard.holds(1, 3))
    removed = {"type": "BlockRemoved", "block_hashes": [3], "medium": "GPU"}
    heard.publisher.publish(batch(removed))
    await heard.until(lambda: not heard.holds(1, 3))
    assert heard.holds(1)
    assert heard.source.stream.gaps == 0


@pytest.mark.parametrize("has_topic", [True, False], ids=["0.26", "0.25"])
async def test_who_joins_late_is_told_what_was_before(
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


async def test_what_gets_lost_is_asked_for_again(heard: Followed) -> None:
    lost = heard.publisher.seq
    heard.publisher.publish(*(batch(stored(number)) for number in (1, 2)), is_lost=True)
    heard.publisher.publish(batch(stored(3)))
    await heard.until(lambda: heard.holds(3))
    assert heard.holds(1)
    assert heard.holds(2)
    assert heard.publisher.asked[-1] == lost
    assert heard.cache.counts.gaps >= 1
    assert heard.cache.is_whole


async def test_what_cannot_be_had_again_drops_all(
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
    monkeypatch.setattr(kv_subscription, "REPLAY_IDLE_SECONDS", 3600.0)
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


async def test_without_replay_all_begins_with_what_comes(
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
    # Past the number that the old one had reached: it cannot be told by its number alone.
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


async def test_messages_that_are_none_are_said_to_be_so_once_and_outlived(
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
async def test_an_address_that_is_none_is_said_to_be_so(
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


async def test_other_work_goes_on_between_events(
    heard: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "TURN_SECONDS", 0.0)
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


async def test_a_long_message_is_taken_in_many_turns_and_what_follows_waits(
    heard: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "TURN_SECONDS", 0.0)
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


async def test_what_a_clear_leaves_is_swept_before_the_next_event_is_taken(
    heard: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "TURN_SECONDS", 60.0)  # the whole message in one turn
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
    monkeypatch.setattr(kv_events, "TURN_SECONDS", 0.0)
    heard.publisher.publish(batch(stored(1, blocks=4_000)))
    heard.publisher.seq = 0
    heard.publisher.publish(batch(stored(7)))
    await heard.until(lambda: heard.holds(7))
    assert heard.source.blocks.held == 1
    assert heard.source.stream.restarts == 1


async def asked_and_waiting(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher], waiting: int = 1
) -> tuple[Followed, list[Followed]]:
    """An engine that is asked for a replay, and others that wait for theirs."""
    engines = [Followed(subscriber, publishers()) for _ in range(waiting + 1)]
    await eventually(lambda: len(subscriber._waiting) == waiting)
    await eventually(lambda: any(e.publisher.replay.poll(0) for e in engines))
    [asked] = [e for e in engines if e.publisher.replay.poll(0)]
    return asked, [e for e in engines if e is not asked]


@pytest.mark.usefixtures("no_idle_timeout")
async def test_one_replay_runs_at_a_time(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher]
) -> None:
    asked, rest = await asked_and_waiting(subscriber, publishers, 4)
    assert subscriber._replaying is not None
    subscriber._replaying._end_replay()
    await eventually(lambda: any(e.publisher.replay.poll(0) for e in rest))
    subscriber.forget(asked.cache)

    def are_live() -> bool:
        for each in rest:
            each.publisher.answer()
        return all(each.cache.state is SourceState.LIVE for each in rest)

    await eventually(are_live)
    assert subscriber._replaying is None


@pytest.mark.usefixtures("no_idle_timeout")
async def test_replays_that_cannot_begin_hold_up_no_other(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher]
) -> None:
    first = Followed(subscriber, publishers())
    await eventually(lambda: first.publisher.replay.poll(0))
    others = [Followed(subscriber, publishers()) for _ in range(2)]
    await eventually(lambda: len(subscriber._waiting) == 2)
    waiting = next(iter(subscriber._waiting))
    waiting.address = waiting.address._replace(replay_endpoint="tcp://127.0.0.1:x")
    for engine in (first, *others):
        await engine.is_live()


SOCKETS = 3
"""ZeroMQ sockets of a subscription without a replay: its own, and two of its monitor."""


@pytest.mark.usefixtures("no_idle_timeout")
async def test_replays_for_which_there_is_no_socket_hold_up_no_other(
    subscriber: KVEventSubscriber,
    publishers: Callable[..., Publisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_events, "MAX_SOCKETS", 2 * SOCKETS)
    engines = [Followed(subscriber, publishers()) for _ in range(2)]
    for engine in engines:
        await engine.is_live()
        await engine.hears(0)
    assert [engine.publisher.asked for engine in engines] == [[], []]
    assert [engine.source.stream.replays for engine in engines] == [1, 1]


@pytest.mark.usefixtures("no_idle_timeout")
async def test_a_replay_that_live_batches_end_makes_room_for_the_next(
    subscriber: KVEventSubscriber,
    publishers: Callable[..., Publisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, [other] = await asked_and_waiting(subscriber, publishers)
    monkeypatch.setattr(kv_stream, "MAX_AHEAD", 0)

    def has_lost() -> bool:
        asked.publisher.publish(batch())
        return asked.source.stream.losses > 0

    await eventually(has_lost)
    await eventually(lambda: other.publisher.replay.poll(0))


async def begins_anew(engine: Followed, times: int) -> None:
    """Its numbers go back so often, and its replays are not answered."""

    def has_begun_anew() -> bool:
        for seq in (9, 8):
            engine.publisher.send(seq.to_bytes(8, "big"), batch())
        return engine.source.stream.restarts >= times

    await eventually(has_begun_anew)


@pytest.mark.usefixtures("no_idle_timeout")
async def test_an_engine_that_begins_anew_again_and_again_waits_for_one_replay(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher]
) -> None:
    asked, [waiting] = await asked_and_waiting(subscriber, publishers)
    await begins_anew(waiting, 5)
    assert len(subscriber._waiting) == 1
    await asked.is_live()
    await waiting.is_live()


@pytest.mark.usefixtures("no_idle_timeout")
async def test_an_engine_that_begins_anew_while_it_is_asked_is_asked_again_at_once(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher]
) -> None:
    engine = Followed(subscriber, publishers())
    await eventually(lambda: engine.publisher.answer(ends=False))
    await begins_anew(engine, 1)
    await eventually(lambda: engine.publisher.answer())
    await engine.is_live()


@pytest.mark.usefixtures("no_idle_timeout")
async def test_an_engine_that_begins_anew_again_and_again_keeps_no_other_from_its_replay(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher]
) -> None:
    asked, [other] = await asked_and_waiting(subscriber, publishers)
    await begins_anew(asked, 1)
    await other.is_live()
    await asked.is_live()


@pytest.mark.parametrize("free", [SOCKETS, SOCKETS + 1, SOCKETS + 2])
async def test_sources_for_which_there_are_not_sockets_enough_leave_nothing_behind(
    subscriber: KVEventSubscriber,
    publishers: Callable[..., Publisher],
    monkeypatch: pytest.MonkeyPatch,
    free: int,
) -> None:
    monkeypatch.setattr(kv_events, "MAX_SOCKETS", free)
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


async def test_a_missing_package_is_named_with_what_to_install(
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
