"""Ticks the fleet four times a second, and logs the changes since the previous tick."""

import asyncio
import logging
import time
from collections.abc import Callable

from router.core.events import SharedEvent
from router.core.fleet.fleet import Fleet
from router.core.fleet.status import StatusLog
from router.core.fleet.worker_events import FleetChanges
from router.core.speed.tuning import TICK_SECONDS

__all__ = ["note_changes", "tick_for_ever"]

log = logging.getLogger(__name__)


async def tick_for_ever(
    fleet: Fleet,
    publish: Callable[[SharedEvent], None],
    status_log: StatusLog,
    follow: Callable[[], None] = lambda: None,
    *,
    begun: Callable[[], int] = lambda: 0,
    is_logged: bool,
) -> None:
    """Run until cancelled. `publish` is called with events for other processes, and with the
    ejections in force again when `begun` changes, because a worker has begun to run: before that
    its engines are not up, and it would eject none. Of several workers only the leader logs the
    changes that `status_log` reports. `follow` adapts the fleet to the roster."""
    changes = FleetChanges(fleet)
    begun_before = begun()
    while True:
        await asyncio.sleep(TICK_SECONDS)
        follow()
        fleet.tick(time.monotonic())
        if (begun_now := begun()) != begun_before:
            begun_before = begun_now
            changes.tell_again()
        for event in changes.take():
            publish(event)
        note_changes(status_log, is_logged=is_logged)


def note_changes(status_log: StatusLog, *, is_logged: bool) -> None:
    """Collect the changes so far, and log them if `is_logged`."""
    for notice in status_log.notices(time.monotonic()):
        if is_logged:
            log.log(logging.WARNING if notice.is_bad else logging.INFO, "%s", notice.text)
