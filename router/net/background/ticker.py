"""Ticks the fleet four times a second, and logs what changed since the last tick."""

import asyncio
import logging
import time
from collections.abc import Callable

from router.core.events import SharedEvent
from router.core.fleet.fleet import Fleet
from router.core.fleet.status import StatusLog
from router.core.fleet.worker_events import FleetNews
from router.core.speed.speed_estimator import TICK_SECONDS

__all__ = ["note_changes", "tick_for_ever"]

log = logging.getLogger(__name__)


async def tick_for_ever(
    fleet: Fleet,
    publish: Callable[[SharedEvent], None],
    status_log: StatusLog,
    follow: Callable[[], None] = lambda: None,
    *,
    is_logged: bool,
) -> None:
    """Run until cancelled. What others should know is passed to `publish`; of several workers
    only the leader logs what `status_log` tells of changes. `follow` brings the fleet up to date
    with the roster."""
    news = FleetNews(fleet)
    while True:
        await asyncio.sleep(TICK_SECONDS)
        follow()
        fleet.tick(time.monotonic())
        for event in news.take():
            publish(event)
        note_changes(status_log, is_logged=is_logged)


def note_changes(status_log: StatusLog, *, is_logged: bool) -> None:
    """Note what has changed by now, and log it."""
    for notice in status_log.notices(time.monotonic()):
        if is_logged:
            log.log(logging.WARNING if notice.is_bad else logging.INFO, "%s", notice.text)
