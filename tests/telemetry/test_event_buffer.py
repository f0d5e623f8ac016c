"""The buffer passes every event on once, in order, and soon."""

import asyncio
from collections.abc import Sequence

from router.core.events import Event, FellBack
from router.core.values import Role
from router.telemetry import event_buffer
from router.telemetry.event_buffer import EventBuffer


def events(count: int) -> list[Event]:
    return [FellBack(Role.DECODE, str(number)) for number in range(count)]


async def test_each_listener_gets_events_in_order() -> None:
    first: list[Event] = []
    second: list[Event] = []
    one = EventBuffer([first.extend, second.extend])
    for event in events(5):
        one.add(event)
    assert first == second == []
    one.flush()
    one.flush()
    assert first == second == events(5)


async def test_many_events_do_not_wait() -> None:
    told: list[Event] = []
    one = EventBuffer([told.extend])
    for event in events(event_buffer.MAX_BATCH + 1):
        one.add(event)
    assert told == events(event_buffer.MAX_BATCH)
    one.flush()
    assert told == events(event_buffer.MAX_BATCH + 1)


async def test_an_event_is_published_without_a_request() -> None:
    told: asyncio.Queue[Sequence[Event]] = asyncio.Queue()
    one = EventBuffer([told.put_nowait])
    for event in events(2):
        one.add(event)
        assert await told.get() == [event]
