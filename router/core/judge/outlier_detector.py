"""Ejects engines that fail and takes them back, within a limit on how much of a pool is excluded.

The rules of one engine are in `outlier.py`; here they are applied to a pool.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from router.core.events import Ejected
from router.core.judge import outlier
from router.core.judge.member import Member

__all__ = ["ExclusionLimit", "OutlierDetector"]


class ExclusionLimit:
    """Counts the engines of a pool that are stalled or ejected, and limits their share (Envoy's
    max_ejection_percent). In a panic either too many are excluded, and exclusions are ignored, or
    none is up, and silent engines are used."""

    def __init__(self, max_excluded: float) -> None:
        self.max_excluded = max_excluded
        """Share of the pool, 0 to 1."""
        self.is_panic = False
        self._members: Sequence[Member] = ()
        self._up = self._excluded = 0
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
        others = self._excluded - (member.in_rotation and member.is_ejected_or_stalled)
        return others + 1 <= self.max_excluded * self._up

    def changed(self, member: Member, *, was_excluded: bool) -> None:
        """Update the count after an engine was excluded or taken back."""
        if member.in_rotation:
            self._excluded += member.is_ejected_or_stalled - was_excluded

    def tick(self) -> None:
        """Count anew, and judge whether there is a panic."""
        self._count()
        silent = any(one.health.is_silent and not one.is_drained for one in self._members)
        self.is_panic = self._excluded > self.max_excluded * self._up or (silent and not self._up)

    def _count(self) -> None:
        up = [member for member in self._members if member.in_rotation]
        self._up, self._excluded = len(up), sum(member.is_ejected_or_stalled for member in up)
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

    def answered(
        self, member: Member, now: float, model: str | None = None, *, is_good: bool
    ) -> None:
        """Count an answer or a failure of the engine for a model, and eject it if it has failed too
        often in a row."""
        member.outlier.count(is_good=is_good)
        models = member.models
        if models is not None and len(models) > 1:
            by_model, key = member.outlier_by_model, model if model in models else None
            by_model.setdefault(key, outlier.Outlier()).count(is_good=is_good)
        if is_good:
            member.timeouts = 0
            return
        rules, streak = self.rules, member.outlier.streak
        if rules.consecutive and streak >= rules.consecutive and self._may_eject(member):
            streaks = _streaks(member)
            others = [one for one in self._taking_requests() if one is not member]
            shares = {
                model: _share(others, model, outlier.mean_failure_rate, nobody=1.0)
                for model in streaks
            }
            if not outlier.is_chance(streak, _weighted(streaks, shares)):
                self._eject(member, outlier.ejected(member.outlier, now, rules, streak))

    def timed_out(self, member: Member, now: float) -> None:
        """Eject an encode engine if it has let too many requests in a row time out, for longer with
        each of them. Whatever the others do: requests need none of them."""
        member.timeouts += 1
        consecutive = self.rules.consecutive
        if consecutive and member.timeouts >= consecutive and self._may_eject(member):
            before = outlier.Outlier(ejections=member.timeouts - consecutive)
            self._eject(member, outlier.ejected(before, now, self.rules))

    def ejected_elsewhere(self, member: Member, event: Ejected) -> None:
        """Eject the engine, as another worker process has done."""
        if self._may_eject(member):
            times = member.outlier.ejections + 1
            state = outlier.Outlier(
                ejections=times, since=event.since, until=event.until, ejected_by=event.streak
            )
            self._eject(member, state)

    def note_interval(self, now: float, groups: Sequence[Sequence[Member]]) -> None:
        """At the end of an interval, eject engines that fail more often than others of their group
        do with the same models."""
        if self._interval_ends is None:
            self._interval_ends = now + self.rules.interval_seconds
        if now < self._interval_ends:
            return
        self._interval_ends = now + self.rules.interval_seconds
        if self.rules.consecutive:
            found = [member for members in groups for member in _failing(members)]
            self._take_back_if_failures_moved(found)
            for member in found:
                if self._may_eject(member):
                    self._eject(member, outlier.ejected(member.outlier, now, self.rules))
        for member in self._members:
            member.outlier = outlier.next_interval(member.outlier)
            member.outlier_by_model = {
                model: outlier.next_interval(one)
                for model, one in member.outlier_by_model.items()
                if _serves(member, model)
            }

    def take_back(self, now: float) -> None:
        """Take back engines whose ejection is over, or whose failures turn out to be shared."""
        out = [member for member in self._members if member.outlier.until is not None]
        if not out:
            return
        serving = self._taking_requests()
        shares = {
            model: _share(serving, model, outlier.usual_failure_rate, nobody=0.0)
            for model in {model for member in out for model in member.ejection.streaks}
        }
        for member in out:
            usual = _weighted(member.ejection.streaks, shares)
            if outlier.is_shared(member.outlier, usual):
                member.set_outlier(outlier.without_ejection(member.outlier))
            elif (after := outlier.tick(member.outlier, now)) is not member.outlier:
                member.set_outlier(after)
                member.returned_at = now

    def _take_back_if_failures_moved(self, failing: Sequence[Member]) -> None:
        """Take back engines that were ejected for their failure rate, if the others now fail more
        than before with the same models, not counting those in `failing`. An engine that breaks by
        itself proves nothing."""
        out = [one for one in self._members if one.outlier.until is not None]
        alone = {id(member) for member in failing}
        others = [
            one for one in self._members if id(one) not in alone and not one.is_ejected_or_stalled
        ]
        for member in out:
            if not member.outlier.ejected_by and outlier.failures_follow_requests(
                member.ejection.others, _answers(others, member)
            ):
                self._set(member, outlier.without_ejection(member.outlier))

    def _taking_requests(self) -> list[Member]:
        return [one for one in self._members if one.in_rotation and not one.is_ejected_or_stalled]

    def _may_eject(self, member: Member) -> bool:
        return member.outlier.until is None and self._limit.allows(member)

    def _eject(self, member: Member, ejected: outlier.Outlier) -> None:
        others = [
            one for one in self._members if one is not member and not one.is_ejected_or_stalled
        ]
        member.ejection = outlier.Ejection(_answers(others, member), _streaks(member))
        self._set(member, ejected)

    def _set(self, member: Member, state: outlier.Outlier) -> None:
        was_excluded = member.is_ejected_or_stalled
        member.set_outlier(state)
        self._limit.changed(member, was_excluded=was_excluded)


def _failing(members: Sequence[Member]) -> list[Member]:
    """The engines of a group that fail more often than the others do with the same models."""
    places = outlier.outlier_indexes([_by_model(member) for member in members])
    return [members[place] for place in places]


def _by_model(member: Member) -> Mapping[str | None, outlier.Outlier]:
    """An engine's answers and failures by model; None stands for requests that name none of its
    models, and for all if they are unknown."""
    models = member.models
    if models is not None and len(models) > 1:
        return member.outlier_by_model
    return {next(iter(models or ()), None): member.outlier}


def _serves(member: Member, model: str | None) -> bool:
    return model is None or member.models is None or model in member.models


def _streaks(member: Member) -> dict[str | None, int]:
    """The engine's failures in a row for each model; 1 for each if they are not known here, because
    another process ejected it."""
    by_model = _by_model(member)
    streaks = {model: one.streak for model, one in by_model.items() if one.streak}
    return streaks or dict.fromkeys(by_model or member.models or (None,), 1)


def _share(
    engines: Iterable[Member],
    model: str | None,
    average: Callable[[Iterable[outlier.Outlier]], float],
    nobody: float,
) -> float:
    """The average failure share of engines for a model; `nobody` if none of them serves it."""
    those = [one for one in engines if _serves(one, model)]
    return average(_by_model(one).get(model, outlier.HEALTHY) for one in those) if those else nobody


def _weighted(streaks: Mapping[str | None, int], shares: Mapping[str | None, float]) -> float:
    """The failure shares of models, weighted by an engine's failures in a row for each."""
    return sum(streak * shares[model] for model, streak in streaks.items()) / sum(streaks.values())


def _answers(engines: Iterable[Member], like: Member) -> outlier.Outlier:
    """What the engines answered in this interval for the models of one."""
    return outlier.summed(
        one
        for engine in engines
        for model, one in _by_model(engine).items()
        if _serves(like, model)
    )
