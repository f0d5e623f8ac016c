"""Tells the fleet four times a second that time passes, and the log what that led to."""

import asyncio
import logging
import time

from router.core.fleet import Fleet
from router.core.member import Aside, Member
from router.core.pace import TICK_SECONDS

__all__ = ["tick_for_ever"]

log = logging.getLogger(__name__)


async def tick_for_ever(fleet: Fleet) -> None:
    """Until it is cancelled."""
    while True:
        await asyncio.sleep(TICK_SECONDS)
        before = [member.aside for member in fleet]
        fleet.tick(time.monotonic())
        for member, was in zip(fleet, before, strict=True):
            if member.aside is not was:
                _tell(fleet, member)


def _tell(fleet: Fleet, member: Member) -> None:
    endpoint, aside = member.endpoint, member.aside
    if aside is None:
        log.info("%s %s is no longer set aside", endpoint.role, endpoint.url)
    elif aside is Aside.SLOW:
        times = f"{member.view.ratio:.1f}"
        usual = 1000 * (fleet.usual(endpoint.role) or 0.0)
        log.warning(
            "%s %s is slow: %s times the pool's %.3g ms per token",
            *(endpoint.role, endpoint.url, times, usual),
        )
    else:
        log.warning("%s %s is %s: it gets nothing new", endpoint.role, endpoint.url, aside)
