"""Events that the worker processes of one host exchange; used by the network and by the
simulator."""

from collections.abc import Iterator
from dataclasses import replace

from router.core.events import Ejected, Event, LegFailed, Probed, Scraped, SharedEvent, SpeedProbed
from router.core.fleet.fleet import Fleet
from router.core.judge.member import Member
from router.core.judge.verdict import Exclusion
from router.core.values import Endpoint, FailureKind

__all__ = ["FleetChanges", "for_workers"]


SHUTTING_DOWN = FailureKind.SHUTTING_DOWN

OF_PROBES = (Probed, Scraped, SpeedProbed)
"""Events of probes, which the leader makes; any worker lists models."""


def for_workers(event: Event) -> SharedEvent | None:
    """The event if other workers need it, else None."""
    if isinstance(event, OF_PROBES):
        return event
    # A model's name may be long.
    if isinstance(event, LegFailed) and (event.is_unreachable or event.kind is SHUTTING_DOWN):
        return event if event.model is None else replace(event, model=None)
    return None


class FleetChanges:
    """What a fleet has found out by itself and other processes need to know."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known = _exclusions(fleet)

    def take(self) -> Iterator[SharedEvent]:
        """News since the last call: prompts that engines hold, and ejections."""
        yield from self._fleet.held_prefixes()
        before, self._known = self._known, _exclusions(self._fleet)
        for member in self._fleet:
            if member.exclusion is not before.get(member.endpoint):
                since, until = member.outlier.since, member.outlier.until
                if since is not None and until is not None:
                    yield _ejected(member, since, until)

    def repeat(self) -> None:
        """Let the next call name all ejections that are in force: a process has been started and
        does not know them."""
        self._known = {}


def _exclusions(fleet: Fleet) -> dict[Endpoint, Exclusion | None]:
    return {member.endpoint: member.exclusion for member in fleet}


def _ejected(member: Member, since: float, until: float) -> Ejected:
    cause, streak = member.last_error or "", member.outlier.ejected_by
    return Ejected(member.endpoint, since, until, cause, streak)
