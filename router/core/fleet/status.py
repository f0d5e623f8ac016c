"""The status of engines for operators, with its cause, and the log lines about changes.

The status is the health or, while an engine is up, why it is excluded. Each change is logged,
whatever caused it, and there are reminders of engines that stay away.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from router.core.health import State
from router.core.judge.member import Member
from router.core.judge.verdict import Exclusion
from router.core.values import Endpoint, Role

__all__ = [
    "IS_ROUTER",
    "SERVER",
    "Notice",
    "StatusLog",
    "cause",
    "exclusion_since",
    "pool_status",
    "since",
    "status",
]

SERVER: Final = "pd-router"
"""`server` in a router's /version; vLLM has only `version` there."""

IS_ROUTER: Final = "this is a pd-router, not an engine: name the engines behind it"
"""Error of an engine that is a router, perhaps this one: its requests could go round in circles."""

FIRST_REMINDER_SECONDS: Final = 10.0
"""Seconds until the first reminder of an engine that is not up; the interval doubles with each
one."""

LONGEST_REMINDER_SECONDS: Final = 640.0

MAX_CHANGES: Final = 5
CHANGES_SECONDS: Final = 60.0
"""Period in seconds for MAX_CHANGES log lines of a flapping engine; further changes are only
counted."""

UNREAD_SECONDS: Final = 30.0
"""Seconds for which gauges have been unreadable before it is logged: a busy engine may be late."""

MAX_RECENT: Final = 20
"""Most changes that are kept to be shown later."""


def status(member: Member) -> State | Exclusion:
    """An engine's health or, while it is up, why it is excluded. A drained engine gets no requests
    whatever its probes say, so for it drained comes first."""
    if member.is_drained:
        return State.DRAINING
    state = member.health.state
    return (member.exclusion or state) if state is State.UP else state


def since(member: Member) -> float | None:
    """When the status began; None if unknown."""
    if member.is_drained:
        return member.drained_since
    return exclusion_since(member) if isinstance(status(member), Exclusion) else member.since


def exclusion_since(member: Member) -> float | None:
    """When the exclusion began; None if it is not excluded."""
    match member.exclusion:
        case Exclusion.EJECTED:
            return member.outlier.since
        case Exclusion.STALLED:
            return member.verdict.stall.since
        case Exclusion.SLOW:
            return member.verdict.slow_since
    return None


def cause(member: Member) -> str | None:
    """Why it is not fully in use; None if it is, or if the cause is unknown."""
    if member.entry.leaving_since is not None:
        return f"it was removed from the fleet, with {_requests(member)}"
    if member.is_drained:
        return f"its source or an operator drains it, with {_requests(member)}"
    match status(member):
        case State.UP:
            return None
        case State.SLEEPING:
            return "it sleeps or is paused, until its operator wakes it up"
        case Exclusion.STALLED:
            return "it has open streams and produces no tokens"
        case Exclusion.SLOW:
            return f"it takes {member.view.slowdown:.1f} times the pool's median"
        case Exclusion.EJECTED:
            return f"it fails too often; the last time {member.last_error}"
    if member.health.is_silent and member.endpoint.role is not Role.ENCODE:
        return f"{member.last_error}; it gets requests only while no other engine can"
    return member.last_error


def pool_status(pool: Sequence[Member]) -> str:
    """How many engines of a pool are up, and the status of the others: "0 of 3 up: 2 down, 1
    ejected"."""
    if not pool:
        return "none is known yet"
    text = f"{_up(pool)} of {len(pool)} up"
    found = [status(member) for member in pool]
    others = [f"{found.count(each)} {each}" for each in _NOT_UP if each in found]
    if routers := sum(m.last_error == IS_ROUTER and not m.in_rotation for m in pool):
        others.append(f"{routers} of them no engine but a pd-router")
    return f"{text}: {', '.join(others)}" if others else text


_NOT_UP: Final = (
    *(State.DOWN, State.DRAINING, State.SLEEPING, State.STARTING),
    *(Exclusion.EJECTED, Exclusion.STALLED),
)


def _up(pool: Iterable[Member]) -> int:
    """How many take new requests, including slow ones."""
    return sum(member.in_rotation and not member.is_ejected_or_stalled for member in pool)


def _requests(member: Member) -> str:
    count = member.view.in_flight
    return "no requests left" if not count else f"{count} request{'s' * (count > 1)} left"


class Notice(NamedTuple):
    """A line for the log."""

    is_bad: bool
    """Whether it is a warning."""
    text: str


@dataclass(slots=True)
class _Reported:
    """The logged state of one engine."""

    member: Member
    entered_at: float
    """When its current status was first seen."""
    due: float
    """When the next reminder is due, unless the status changes."""
    seen: State | Exclusion = State.STARTING
    logged: State | Exclusion = State.STARTING
    before: State | Exclusion = State.STARTING
    lasted: float = 0.0
    """How long the status before `seen` lasted, in seconds."""
    changes: int = 0
    """Changes since the last log line."""
    far_off_since: float | None = None
    """Since when predictions of its prefix cache are logged as far off; None if they are not."""
    is_unread: bool = False
    """Whether it was logged that its gauges cannot be read."""
    is_unprobed: bool = False
    """Whether it was logged that its speed probes fail."""
    lines: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_CHANGES))
    """Times of the last logged changes."""


class StatusLog:
    """The log lines about a fleet's changes. It compares states, so all changes are seen, whatever
    caused them. `pool` returns the members of a role, `is_panic` whether excluded ones of it are
    used, and `avoids_slow` whether slow ones are avoided. `time_of` formats a time. The initial
    members are not logged."""

    def __init__(
        self,
        members: Iterable[Member],
        pool: Callable[[Role], Sequence[Member]],
        is_panic: Callable[[Role], bool],
        now: float,
        *,
        avoids_slow: Callable[[Role], bool],
        time_of: Callable[[float], str],
    ) -> None:
        self._members = members
        self._pool = pool
        self._is_panic = is_panic
        self._avoids_slow = avoids_slow
        self._time_of = time_of
        self.recent: deque[tuple[float, Notice]] = deque(maxlen=MAX_RECENT)
        """The last changes with their times, oldest first, without reminders."""
        self._reported = {m.endpoint: _reported(m, now) for m in members}
        self._panics: set[Role] = set()
        """Roles whose panic was logged."""
        self._pools_up: dict[Role, str] = {}
        """Summaries of the pools, computed once per tick for all lines."""

    def notices(self, now: float) -> list[Notice]:
        """The lines to log now."""
        self._pools_up.clear()
        before, self._reported = self._reported, {}
        found: list[Notice | None] = []
        for member in self._members:
            reported = before.pop(member.endpoint, None)
            if reported is None or reported.member is not member:
                found.append(self._joined(member, now, is_another=reported is not None))
                reported = _reported(member, now)
            self._reported[member.endpoint] = reported
            found += [
                self._notice(member, reported, now),
                _prediction(member, reported, now),
                _gauges(member, reported, now),
                _speed_probes(member, reported),
            ]
        found += [self._gone(reported, now) for reported in before.values()]
        found += [self._panic(role, now) for role in Role]
        return [notice for notice in found if notice is not None]

    def _changed(self, notice: Notice, now: float) -> Notice:
        self.recent.append((now, notice))
        return notice

    def _joined(self, member: Member, now: float, *, is_another: bool) -> Notice:
        text = "is another engine now" if is_another else "joined"
        return self._changed(
            self._line(member.endpoint, f"{text} (named by {member.entry.source})"), now
        )

    def _gone(self, reported: _Reported, now: float) -> Notice:
        member = reported.member
        text = f"is gone after {_seconds(now - reported.entered_at)} s {reported.seen}"
        if member.view.in_flight:
            text += f", with {_requests(member)}, which go on"
        return self._changed(self._line(member.endpoint, text), now)

    def _notice(self, member: Member, reported: _Reported, now: float) -> Notice | None:
        current, lasted = status(member), now - reported.entered_at
        if current is not reported.seen:
            reported.before, reported.lasted = reported.seen, lasted
            reported.seen, reported.entered_at = current, now
            reported.due = now + FIRST_REMINDER_SECONDS
            reported.changes += 1
        if current is not reported.logged:
            return self._change(member, reported, now)
        if now >= reported.due and not (member.health.is_good or member.is_drained):
            reported.due = now + min(lasted, LONGEST_REMINDER_SECONDS)
            return self._status_line(member, f"is still {current}, for {_seconds(lasted)} s")
        return None

    def _change(self, member: Member, reported: _Reported, now: float) -> Notice | None:
        lines = reported.lines
        if len(lines) == MAX_CHANGES and now - lines[0] < CHANGES_SECONDS:
            return None
        skipped, reported.changes = reported.changes - 1, 0
        lines.append(now)
        reported.logged = reported.seen
        text = f"is {reported.seen}"
        if skipped > 0:
            text += f" after {skipped} changes that are not logged"
        elif reported.seen is State.UP and reported.before is not State.STARTING:
            text += f" again after {_seconds(reported.lasted)} s {reported.before}"
        return self._changed(self._status_line(member, text), now)

    def _panic(self, role: Role, now: float) -> Notice | None:
        """A line about the begin or end of a panic."""
        is_panic = self._is_panic(role)
        if is_panic is (role in self._panics):
            return None
        self._panics ^= {role}
        text = f"panic: too few {role} engines are up and in order, so others get requests too"
        if not is_panic:
            text = f"the panic of the {role} engines is over"
        return self._changed(Notice(is_panic, f"{text}; {pool_status(self._pool(role))}"), now)

    def _status_line(self, member: Member, text: str) -> Notice:
        found, until = [cause(member), self._treatment(member)], member.up_until
        if until is not None and status(member) is State.DOWN:
            found.insert(0, f"it was up until {self._time_of(until)}")
        why = "; ".join(each for each in found if each is not None)
        is_wanted = member.is_drained or member.health.state is State.SLEEPING
        is_bad = status(member) is not State.UP and not is_wanted
        return self._line(member.endpoint, f"{text}: {why}" if why else text, is_bad=is_bad)

    def _treatment(self, member: Member) -> str | None:
        """What the router does about an excluded engine."""
        role = member.endpoint.role
        match status(member):
            case Exclusion.SLOW if self._avoids_slow(role):
                return "it gets only requests that it would finish first, and speed probes"
            case Exclusion.SLOW:
                return "it gets its share of requests, because the strategy does not avoid it"
            case Exclusion.STALLED | Exclusion.EJECTED if self._is_panic(role):
                return "it gets requests all the same, because too few others are left"
            case Exclusion.STALLED:
                return "it gets no new requests until it produces a token"
            case Exclusion.EJECTED:
                return "it gets no new requests for a while"
        return None

    def _line(self, endpoint: Endpoint, text: str, *, is_bad: bool = False) -> Notice:
        role = endpoint.role
        if role not in self._pools_up:
            pool = self._pool(role)
            self._pools_up[role] = f"{_up(pool)} of {len(pool)} {role} engines up"
        return Notice(is_bad, f"{role} {endpoint.url} {text}; {self._pools_up[role]}")


def _reported(member: Member, now: float) -> _Reported:
    return _Reported(member, now, now + FIRST_REMINDER_SECONDS)


def _prediction(member: Member, reported: _Reported, now: float) -> Notice | None:
    """A line about the predictions of an engine's prefix cache, if there is a change to log."""
    trust, since = member.prompts.trust, reported.far_off_since
    if trust.is_far_off is (since is not None):
        return None
    name = f"{member.endpoint.role} {member.endpoint.url}"
    reported.far_off_since = now if trust.is_far_off else None
    if since is None:
        return Notice(
            True,
            f"{name} finds {trust.share:.0%} of the prompt tokens that its prefix cache is "
            "predicted to hold, so predictions count as much less: check that it runs with "
            "--enable-prefix-caching, and whether other clients fill its KV cache",
        )
    if not trust.is_measured:  # a new engine, without measurements yet
        return None
    return Notice(False, f"{name} finds what is predicted again after {_seconds(now - since)} s")


def _gauges(member: Member, reported: _Reported, now: float) -> Notice | None:
    """A line about gauges that cannot be read, or can be read again. Only for engines that are up;
    others are not scraped."""
    unread, up = member.scrapes.unread_since, member.since
    if not member.health.is_up or up is None:
        return None
    is_unread = unread is not None and now - max(unread, up) >= UNREAD_SECONDS
    if is_unread is reported.is_unread or (reported.is_unread and unread is not None):
        return None
    reported.is_unread = is_unread
    name = f"{member.endpoint.role} {member.endpoint.url}"
    if not is_unread:
        return Notice(False, f"the gauges of {name} are read again")
    why = "" if member.scrapes.error is None else f": {member.scrapes.error}"
    return Notice(
        True,
        f"the gauges of {name} cannot be read, so what others send there is not seen{why}",
    )


def _speed_probes(member: Member, reported: _Reported) -> Notice | None:
    """A line about speed probes that keep failing; once until one succeeds or none is needed."""
    was_unprobed, reported.is_unprobed = reported.is_unprobed, member.speed_probes_fail
    if was_unprobed or not member.speed_probes_fail:
        return None
    return Notice(
        True,
        f"the speed probes of {member.endpoint.role} {member.endpoint.url} fail, so only requests "
        f"of users can show that it has recovered: {member.last_error}",
    )


def _seconds(seconds: float) -> str:
    """A duration with at most three digits before the decimal point, and a decimal only if below
    10."""
    return f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"
