"""Ticks the fleet four times a second, and logs changes of exclusions."""

import asyncio
import logging
import time
from collections.abc import Callable

from router.core.events import Ejected, SharedEvent
from router.core.fleet import Fleet
from router.core.member import Exclusion, Member
from router.core.speed_estimator import TICK_SECONDS

__all__ = ["tick_for_ever"]

log = logging.getLogger(__name__)


async def tick_for_ever(
    fleet: Fleet, publish: Callable[[SharedEvent], None], *, is_leader: bool = True
) -> None:
    """Run until cancelled. What other workers should know is passed to `publish`; only the leader
    of several workers logs."""
    known = [member.exclusion for member in fleet]
    while True:
        await asyncio.sleep(TICK_SECONDS)
        fleet.tick(time.monotonic())
        for held in fleet.held_prefixes():
            publish(held)
        for place, member in enumerate(fleet):
            if member.exclusion is not known[place]:
                known[place] = member.exclusion
                if is_leader:
                    _log(fleet, member)
                _publish_ejection(member, publish)


def _publish_ejection(member: Member, publish: Callable[[SharedEvent], None]) -> None:
    since, until = member.outlier.since, member.outlier.until
    if since is not None and until is not None:
        publish(Ejected(member.endpoint, since, until))


def _log(fleet: Fleet, member: Member) -> None:
    endpoint, exclusion = member.endpoint, member.exclusion
    if exclusion is None:
        log.info("%s %s is no longer excluded", endpoint.role, endpoint.url)
    elif exclusion is Exclusion.SLOW:
        slowdown = f"{member.view.slowdown:.1f}"
        median = 1000 * (fleet.pool_median(endpoint.role) or 0.0)
        log.warning(
            "%s %s is slow: %s times the pool's %.3g ms per token",
            *(endpoint.role, endpoint.url, slowdown, median),
        )
    else:
        log.warning("%s %s is %s: it gets nothing new", endpoint.role, endpoint.url, exclusion)
