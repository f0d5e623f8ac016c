"""Ejects engines that fail and takes them back, within a limit on how much of a pool is excluded.

The rules of one engine are in `router.core.speed.outlier`; here they are applied to a pool.
"""

from collections.abc import Sequence

from router.core.events import Ejected
from router.core.fleet.member import Member
from router.core.speed import outlier

__all__ = ["ExclusionLimit", "OutlierDetector"]


class ExclusionLimit:
    """Counts the engines of a pool that are stalled or ejected, and limits their share (Envoy's
    max_ejection_percent). A panic means that so many are excluded that exclusions are ignored."""

    def __init__(self, max_excluded: float) -> None:
        self.max_excluded = max_excluded
        """Share of the pool, 0 to 1."""
        self.is_panic = False
        self._members: Sequence[Member] = ()
        self._up = self._blocked = 0
        """Engines that may get new requests, and how many of them are excluded."""
        self._is_counted = False
        """Whether both counts are current; exclusions keep them so."""

    def watch(self, members: Sequence[Member]) -> None:
        """Set the members of the pool."""
        self._members = members
        self._is_counted = False

    def health_changed(self) -> None:
        """Note that the number of engines that may get new requests has changed."""
        self._is_counted = False

    def allows(self, member: Member) -> bool:
        """Whether this engine may be excluded too. Uses kept counts, because all engines may stall
        or fail at once, each with a call of this."""
        if not self._is_counted:
            self._count()
        others = self._blocked - (member.is_usable and member.is_blocked)
        return others + 1 <= self.max_excluded * self._up

    def changed(self, member: Member, *, was_blocked: bool) -> None:
        """Update the count after an engine was excluded or taken back."""
        if member.is_usable:
            self._blocked += member.is_blocked - was_blocked

    def tick(self) -> None:
        """Count anew, and judge whether there is a panic."""
        self._count()
        self.is_panic = self._blocked > self.max_excluded * self._up

    def _count(self) -> None:
        up = [member for member in self._members if member.is_usable]
        self._up, self._blocked = len(up), sum(member.is_blocked for member in up)
        self._is_counted = True


class OutlierDetector:
    """Ejects the engines of one pool that fail, and takes them back."""

    def __init__(self, limit: ExclusionLimit, rules: outlier.OutlierConfig) -> None:
        self.rules = rules
        self._limit = limit
        self._members: Sequence[Member] = ()
        self._interval_ends: float | None = None

    def watch(self, members: Sequence[Member]) -> None:
        """Set the members of the pool."""
        self._members = members

    def answered(self, member: Member, now: float, *, is_good: bool) -> None:
        """Count an answer or a failure of the engine, and eject it if it has failed too often in a
        row."""
        rules = self.rules
        member.outlier = outlier.after(member.outlier, is_good=is_good)
        streak = member.outlier.streak
        if rules.consecutive and streak >= rules.consecutive and self._may_eject(member):
            others = (
                other.outlier
                for other in self._members
                if other is not member and other.is_usable and not other.is_blocked
            )
            if not outlier.is_chance(streak, others):
                self._eject(member, outlier.ejected(member.outlier, now, rules, streak))

    def ejected_elsewhere(self, member: Member, event: Ejected) -> None:
        """Eject the engine, as another worker process has done."""
        if self._may_eject(member):
            times = member.outlier.ejections + 1
            state = outlier.Outlier(
                ejections=times, since=event.since, until=event.until, ejected_by=event.streak
            )
            self._eject(member, state)

    def note_interval(self, now: float) -> None:
        """At the end of an interval, eject engines that fail more often than the others."""
        if self._interval_ends is None:
            self._interval_ends = now + self.rules.interval_seconds
        if now < self._interval_ends:
            return
        self._interval_ends = now + self.rules.interval_seconds
        if self.rules.consecutive:
            found = outlier.failing([member.outlier for member in self._members])
            self._take_back_if_failures_moved(found)
            for member in (self._members[place] for place in found):
                if self._may_eject(member):
                    self._eject(member, outlier.ejected(member.outlier, now, self.rules))
        for member in self._members:
            member.outlier = outlier.interval(member.outlier)

    def take_back(self, now: float) -> None:
        """Take back engines whose ejection is over, or whose failures turn out to be shared."""
        out = [member for member in self._members if member.outlier.until is not None]
        if not out:
            return
        usual = outlier.usual_failing(
            member.outlier for member in self._members if member.is_usable and not member.is_blocked
        )
        for member in out:
            if outlier.is_shared(member.outlier, usual):
                member.outlier = outlier.withdrawn(member.outlier)
                continue
            member.outlier = outlier.tick(member.outlier, now)
            if member.outlier.until is None:
                member.returned_at = now

    def _take_back_if_failures_moved(self, failing: Sequence[int]) -> None:
        """Take back engines that were ejected for their failure rate, if the others now fail more
        than before, not counting those at the indices `failing`. An engine that breaks by itself
        proves nothing."""
        out = [one for one in self._members if one.outlier.until is not None]
        others = outlier.together(
            one.outlier
            for place, one in enumerate(self._members)
            if place not in failing and not one.is_blocked
        )
        for member in out:
            if not member.outlier.ejected_by and outlier.have_moved(member.others_before, others):
                self._set(member, outlier.withdrawn(member.outlier))

    def _may_eject(self, member: Member) -> bool:
        return member.outlier.until is None and self._limit.allows(member)

    def _eject(self, member: Member, ejected: outlier.Outlier) -> None:
        member.others_before = outlier.together(
            one.outlier for one in self._members if one is not member and not one.is_blocked
        )
        self._set(member, ejected)

    def _set(self, member: Member, state: outlier.Outlier) -> None:
        was_blocked, member.outlier = member.is_blocked, state
        self._limit.changed(member, was_blocked=was_blocked)
