"""Replays of KV-cache events: one at a time, and none keeps another from its own."""

from collections.abc import Callable

import pytest

from router.core.kv_events import ordering
from router.core.kv_events.kv_sources import SourceState
from router.net.kv_events import subscriber as subscribing
from router.net.kv_events import subscription as subscribed
from router.net.kv_events.subscriber import KVEventSubscriber
from tests.net.harness import eventually
from tests.net.kv_events.followed import SOCKETS, Followed
from tests.net.kv_events.kv_publisher import Publisher, batch


@pytest.fixture(autouse=True)
def no_idle_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays that are not answered do not end."""
    monkeypatch.setattr(subscribed, "REPLAY_IDLE_SECONDS", 1e4)


async def asked_and_waiting(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher], waiting: int = 1
) -> tuple[Followed, list[Followed]]:
    """An engine that is asked for a replay, and others that wait for theirs."""
    engines = [Followed(subscriber, publishers()) for _ in range(waiting + 1)]
    await eventually(lambda: len(subscriber._waiting) == waiting)
    await eventually(lambda: any(e.publisher.replay.poll(0) for e in engines))
    [asked] = [e for e in engines if e.publisher.replay.poll(0)]
    return asked, [e for e in engines if e is not asked]


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


async def test_replays_for_which_there_is_no_socket_hold_up_no_other(
    subscriber: KVEventSubscriber,
    publishers: Callable[..., Publisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscribing, "MAX_SOCKETS", 2 * SOCKETS)
    engines = [Followed(subscriber, publishers()) for _ in range(2)]
    for engine in engines:
        await engine.is_live()
        await engine.hears(0)
    assert [engine.publisher.asked for engine in engines] == [[], []]
    assert [engine.source.stream.replays for engine in engines] == [1, 1]


async def test_a_replay_that_live_batches_end_makes_room_for_the_next(
    subscriber: KVEventSubscriber,
    publishers: Callable[..., Publisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, [other] = await asked_and_waiting(subscriber, publishers)
    monkeypatch.setattr(ordering, "MAX_AHEAD", 0)

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


async def test_an_engine_that_begins_anew_again_and_again_waits_for_one_replay(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher]
) -> None:
    asked, [waiting] = await asked_and_waiting(subscriber, publishers)
    await begins_anew(waiting, 5)
    assert len(subscriber._waiting) == 1
    await asked.is_live()
    await waiting.is_live()


async def test_an_engine_restarted_during_a_query_is_queried_again_at_once(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher]
) -> None:
    engine = Followed(subscriber, publishers())
    await eventually(lambda: engine.publisher.answer(ends=False))
    await begins_anew(engine, 1)
    await eventually(lambda: engine.publisher.answer())
    await engine.is_live()


async def test_an_engine_that_begins_anew_again_and_again_keeps_no_other_from_its_replay(
    subscriber: KVEventSubscriber, publishers: Callable[..., Publisher]
) -> None:
    asked, [other] = await asked_and_waiting(subscriber, publishers)
    await begins_anew(asked, 1)
    await other.is_live()
    await asked.is_live()
