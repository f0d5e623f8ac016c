"""Admission: how many requests are served at a time, and the order in which the others wait.

The order is strict priority and, within a priority, start-time fair queueing (Goyal, Vin and Cheng,
1996): each key (a tenant) has an account of the work begun for it, and the key with the lowest
account goes first. Work that a request turned out to cost beyond its estimate is added when it
ends. Requests of one key and priority are served in the order of arrival. When the queue is full,
the newest request of the key with the most waiting requests is refused, so one tenant can fill the
queue only while no other sends requests.

A request's group (its model) determines which engines can take it. While the engines of one group
are full, requests of other groups pass. Groups with the same engines are merged for as long as that
is so, since clients may name any number of models that no engine lists.

Each worker process has its own queue (`queue_share`); the requests that they serve are counted
together (`admitted`).
"""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final

from router.core.limits.places import Place

__all__ = ["GONE", "IN_FLIGHT", "PRIORITIES", "WAITING", "Admission", "Ticket"]

WAITING: Final = 0
IN_FLIGHT: Final = 1
GONE: Final = 2

PRIORITIES: Final = (-100, 100)
"""The highest and the lowest priority; values beyond are clamped. As in vLLM, the lower number goes
first."""

ACCOUNTS_PER_PLACE: Final = 4
"""Accounts kept per place in the queue: clients may name any number of keys."""


class Ticket:
    """A request in the queue or in flight. `cost`: its work, in estimated tokens; `since`: its
    time of arrival, in seconds; `group`: which engines can take it; `place`: where it is counted.
    """

    __slots__ = ("cost", "group", "key", "place", "priority", "since", "state")

    def __init__(
        self,
        key: Hashable,
        priority: int,
        cost: float,
        since: float,
        group: Hashable = None,
        place: Place | None = None,
    ) -> None:
        highest, lowest = PRIORITIES
        self.group = group
        self.place = place
        self.key = key
        self.priority = min(max(priority, highest), lowest)
        self.cost = cost
        self.since = since
        self.state = GONE


class _Flow:
    """The waiting requests of one key, priority and group, in order of arrival; `since` is the
    virtual time at which the first of them arrived."""

    __slots__ = ("group", "key", "priority", "since", "tickets")

    def __init__(self, key: Hashable, priority: int, group: Hashable, since: float) -> None:
        self.key = key
        self.priority = priority
        self.group = group
        self.since = since
        self.tickets: dict[Ticket, None] = {}

    @property
    def first(self) -> Ticket:
        """The next to be served."""
        return next(iter(self.tickets))

    @property
    def newest(self) -> Ticket:
        """The last to arrive."""
        return next(reversed(self.tickets))


_Owner = tuple[int, Hashable]
"""A priority and a key."""


Room = Callable[[Hashable], bool]
"""Whether the engines that can take a group's requests can take one more."""


Merge = Callable[[Hashable], Hashable]
"""Maps a group to its current representative: the same for groups with the same engines."""


def _everywhere(_: Hashable) -> bool:
    return True


def _apart(group: Hashable) -> Hashable:
    return group


class Admission:
    """Up to `queue_size` requests wait. The limit of requests in flight is an argument, since it
    may change at any time. Choosing the next one takes time in proportion to the number of waiting
    keys, and asks for the room of each merged group once."""

    def __init__(self, queue_size: int, merged: Merge = _apart) -> None:
        self.queue_size = queue_size
        self._merged = merged
        self.in_flight = 0
        self._waiting: dict[Ticket, None] = {}
        """All waiting requests, in the order of arrival."""
        self._flows: dict[tuple[int, Hashable, Hashable], _Flow] = {}
        self._virtual = 0.0
        """The account of the request that was begun last."""
        self._accounts: dict[Hashable, float] = {}
        """Work begun for each key, in virtual time; keys without an account start at the current
        virtual time."""

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @property
    def groups(self) -> set[Hashable]:
        """The merged groups of the waiting requests."""
        return {self._merged(flow.group) for flow in self._flows.values()}

    @property
    def accounts(self) -> int:
        """How many keys have an account."""
        return len(self._accounts)

    def offer(
        self,
        ticket: Ticket,
        limit: int,
        has_room: Room = _everywhere,
        most: int | None = None,
    ) -> Ticket | None:
        """Admit an arriving request, or queue it. Returns the request that is refused for it, which
        may be `ticket` itself, or None. `most`: how many may wait now, if not `queue_size`."""
        if self.in_flight < limit and has_room(ticket.group) and not self._with_room(has_room):
            if not self._waiting:  # no competition: earlier use does not matter
                self._virtual = 0.0
                self._accounts.clear()
            self._begin(ticket)
            return None
        refused = None
        if len(self._waiting) >= (self.queue_size if most is None else most):
            refused = self._refused_for(ticket)
            if refused is ticket:
                return ticket
            self._remove(refused)
        self._add(ticket)
        return refused

    def next(self, limit: int, has_room: Room = _everywhere) -> Ticket | None:
        """Admit the next waiting request and return it; None if there is no room or none waits."""
        if not self._flows or self.in_flight >= limit:
            return None
        flows = self._with_room(has_room)
        if not flows:
            return None
        flow = min(flows, key=self._order)
        tag = self._tag(flow)
        ticket = flow.first
        self._remove(ticket)
        self._virtual = max(self._virtual, tag)
        self._accounts[flow.key] = tag + ticket.cost
        self._forget_some()
        self._begin(ticket)
        return ticket

    def leave(self, ticket: Ticket, more: float = 0.0) -> None:
        """Remove a request that has ended or no longer waits. `more`: its work beyond its cost.
        Idempotent."""
        if ticket.state == WAITING:
            self._remove(ticket)
        elif ticket.state == IN_FLIGHT:
            self.in_flight -= 1
            if more and self._flows:  # otherwise there is no competition
                before = self._accounts.get(ticket.key, 0.0)
                self._accounts[ticket.key] = max(before, self._virtual) + more
                self._forget_some()
        ticket.state = GONE

    def refuse_beyond(self, most: int) -> Ticket | None:
        """Refuse and return one waiting request if more than `most` wait; None otherwise."""
        if len(self._waiting) <= most:
            return None
        refused = self._newest_of(self._longest(self._lengths()))
        self._remove(refused)
        return refused

    def came_before(self, time: float) -> list[Ticket]:
        """Remove and return the waiting requests that arrived before `time`."""
        late = []
        for ticket in self._waiting:
            if ticket.since >= time:
                break
            late.append(ticket)
        for ticket in late:
            self._remove(ticket)
        return late

    def longest_wait(self, now: float) -> float:
        """Seconds that the oldest waiting request has waited; 0 if none waits."""
        return now - next(iter(self._waiting)).since if self._waiting else 0.0

    def _begin(self, ticket: Ticket) -> None:
        ticket.state = IN_FLIGHT
        self.in_flight += 1

    def _with_room(self, has_room: Room) -> list[_Flow]:
        """The flows whose engines have room. Each merged group is asked for once."""
        rooms: dict[Hashable, bool] = {}
        found = []
        for flow in self._flows.values():
            group = self._merged(flow.group)
            if group not in rooms:
                rooms[group] = has_room(group)
            if rooms[group]:
                found.append(flow)
        return found

    def _add(self, ticket: Ticket) -> None:
        ticket.state = WAITING
        self._waiting[ticket] = None
        name = _name(ticket)
        flow = self._flows.get(name)
        if flow is None:
            flow = _Flow(ticket.key, ticket.priority, ticket.group, self._start(ticket.group))
            self._flows[name] = flow
        flow.tickets[ticket] = None

    def _start(self, group: Hashable) -> float:
        """The virtual time of a group. While the group is full, others advance the global virtual
        time; requests that join it later must not be ordered behind all that wait in it."""
        merged, flows = self._merged(group), self._flows.values()
        tags = [self._tag(flow) for flow in flows if self._merged(flow.group) == merged]
        return min([self._virtual, *tags])

    def _remove(self, ticket: Ticket) -> None:
        ticket.state = GONE
        del self._waiting[ticket]
        name = _name(ticket)
        flow = self._flows[name]
        del flow.tickets[ticket]
        if not flow.tickets:
            del self._flows[name]

    def _tag(self, flow: _Flow) -> float:
        return max(flow.since, self._accounts.get(flow.key, 0.0))

    def _order(self, flow: _Flow) -> tuple[int, float, float]:
        return flow.priority, self._tag(flow), flow.first.since

    def _refused_for(self, ticket: Ticket) -> Ticket:
        """The newest request of the key with the most waiting requests at the lowest priority, if
        that priority is below that of `ticket`, or if that key would still have more waiting than
        the key of `ticket` after losing one; otherwise `ticket`."""
        if not self._flows:
            return ticket
        lengths = self._lengths()
        victim = self._longest(lengths)
        own = lengths[ticket.priority, ticket.key]
        is_longer = victim[0] == ticket.priority and lengths[victim] > own + 1
        if victim[0] > ticket.priority or is_longer:
            return self._newest_of(victim)
        return ticket

    def _lengths(self) -> Counter[_Owner]:
        """How many requests wait, by priority and key."""
        lengths: Counter[_Owner] = Counter()
        for flow in self._flows.values():
            lengths[flow.priority, flow.key] += len(flow.tickets)
        return lengths

    def _longest(self, lengths: Counter[_Owner]) -> _Owner:
        """The key with the most waiting requests at the lowest priority."""
        return max(lengths, key=lambda owner: (owner[0], lengths[owner]))

    def _newest_of(self, owner: _Owner) -> Ticket:
        flows = [each for each in self._flows.values() if (each.priority, each.key) == owner]
        return max([flow.newest for flow in flows], key=lambda newest: newest.since)

    def _forget_some(self) -> None:
        """Drop accounts that the virtual time has passed and, if there are still too many, the
        lowest ones."""
        most = ACCOUNTS_PER_PLACE * (self.queue_size + 1)
        if len(self._accounts) <= most:
            return
        ahead = {key: value for key, value in self._accounts.items() if value > self._virtual}
        highest = sorted(ahead, key=ahead.__getitem__)[-most // 2 :]
        self._accounts = {key: ahead[key] for key in highest}


def _name(ticket: Ticket) -> tuple[int, Hashable, Hashable]:
    return ticket.priority, ticket.key, ticket.group
