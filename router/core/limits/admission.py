"""Admission: how many requests are served at a time, and in which order the others wait.

The order is strict priority and, within a priority, start-time fair queueing (Goyal, Vin and Cheng,
1996): each key (a tenant) has an account of the work that was begun for it, and the lowest account
goes first. What a request cost more than was known when it was begun is added at its end. Of one
key and priority the first to come is the first to go. A full queue pushes out the newest request of
the key that has most of them waiting, so one tenant can fill it only while nobody else comes.

Which engines can take a request its group says (its model). While those of one group are full the
others go on: who has no room is passed over. Groups that the same engines can take are one for as
long as that is so: of models that no engine lists clients may name any number.

Each process of a router has a queue of its own (`queue_share`); what they serve is counted together
(`admitted`).
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
"""The highest and the lowest; what is beyond them counts as one of them. As in vLLM the lower
number goes first."""

ACCOUNTS_PER_PLACE: Final = 4
"""Keys whose accounts are kept, by places in the queue: clients may name any number of keys."""


class Ticket:
    """One request's place, or its wait for one. `cost`: its work, in estimated tokens; `since`:
    when it came, in seconds; `group`: which engines can take it; `place`: where it is counted."""

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
    """The waiting requests of one key, priority and group, in order; `since` is the virtual time at
    which the first of them came."""

    __slots__ = ("group", "key", "priority", "since", "tickets")

    def __init__(self, key: Hashable, priority: int, group: Hashable, since: float) -> None:
        self.key = key
        self.priority = priority
        self.group = group
        self.since = since
        self.tickets: dict[Ticket, None] = {}

    @property
    def first(self) -> Ticket:
        """Whose turn it is."""
        return next(iter(self.tickets))

    @property
    def newest(self) -> Ticket:
        """Who came last."""
        return next(reversed(self.tickets))


_Owner = tuple[int, Hashable]
"""A priority and a key."""


Room = Callable[[Hashable], bool]
"""Whether the engines that can take a group's requests can take one more."""


Merge = Callable[[Hashable], Hashable]
"""What stands for a group now: the same for all that the same engines can take."""


def _everywhere(_: Hashable) -> bool:
    return True


def _apart(group: Hashable) -> Hashable:
    return group


class Admission:
    """Up to `queue_size` requests wait. The limit of requests in flight is handed in: it may change
    at any time. Choosing takes time in proportion to the keys that wait, and asks once for the room
    of each group that does, as they are merged now."""

    def __init__(self, queue_size: int, merged: Merge = _apart) -> None:
        self.queue_size = queue_size
        self._merged = merged
        self.in_flight = 0
        self._waiting: dict[Ticket, None] = {}
        """All that wait, in the order in which they came."""
        self._flows: dict[tuple[int, Hashable, Hashable], _Flow] = {}
        self._virtual = 0.0
        """The account of the request that was begun last."""
        self._accounts: dict[Hashable, float] = {}
        """Work that was begun for a key, in virtual time; nothing is known of other keys."""

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def groups(self) -> set[Hashable]:
        """The groups of those that wait, merged."""
        return {self._merged(flow.group) for flow in self._flows.values()}

    @property
    def accounts(self) -> int:
        """How many keys are remembered."""
        return len(self._accounts)

    def offer(
        self,
        ticket: Ticket,
        limit: int,
        has_room: Room = _everywhere,
        most: int | None = None,
    ) -> Ticket | None:
        """A request comes: it is in flight now or waits. Returns the one that is refused for it,
        itself perhaps; None if none is. `most`: how many may wait now, if not `queue_size`."""
        if self.in_flight < limit and has_room(ticket.group) and not self._with_room(has_room):
            if not self._waiting:  # nobody competes: who had how much before does not matter
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
        """Begin the next that waits; None while there is no room or nobody waits."""
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
        """It has ended, and was so much more work than its cost, or waits no longer. Idempotent."""
        if ticket.state == WAITING:
            self._remove(ticket)
        elif ticket.state == IN_FLIGHT:
            self.in_flight -= 1
            if more and self._flows:  # else nobody competes
                before = self._accounts.get(ticket.key, 0.0)
                self._accounts[ticket.key] = max(before, self._virtual) + more
                self._forget_some()
        ticket.state = GONE

    def refuse_beyond(self, most: int) -> Ticket | None:
        """The one that waits no longer if more than `most` do, as if another had come."""
        if len(self._waiting) <= most:
            return None
        refused = self._newest_of(self._longest(self._lengths()))
        self._remove(refused)
        return refused

    def came_before(self, time: float) -> list[Ticket]:
        """Those that wait and came before `time`; they wait no longer."""
        late = []
        for ticket in self._waiting:
            if ticket.since >= time:
                break
            late.append(ticket)
        for ticket in late:
            self._remove(ticket)
        return late

    def longest_wait(self, now: float) -> float:
        """Seconds for which the first to come has waited; 0 while nobody waits."""
        return now - next(iter(self._waiting)).since if self._waiting else 0.0

    def _begin(self, ticket: Ticket) -> None:
        ticket.state = IN_FLIGHT
        self.in_flight += 1

    def _with_room(self, has_room: Room) -> list[_Flow]:
        """The flows that may go on. Each group is asked for once."""
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
        """The virtual time of a group. While it is full others go on: those that come to it later
        must not stand behind all that it has waiting."""
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
        """The newest of the key that has most waiting with the lowest priority, if that priority is
        lower than the newcomer's or it would have more than the newcomer's even without it."""
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
        """How many wait of each key and priority."""
        lengths: Counter[_Owner] = Counter()
        for flow in self._flows.values():
            lengths[flow.priority, flow.key] += len(flow.tickets)
        return lengths

    def _longest(self, lengths: Counter[_Owner]) -> _Owner:
        """The key that has most waiting with the lowest priority."""
        return max(lengths, key=lambda owner: (owner[0], lengths[owner]))

    def _newest_of(self, owner: _Owner) -> Ticket:
        flows = [each for each in self._flows.values() if (each.priority, each.key) == owner]
        return max([flow.newest for flow in flows], key=lambda newest: newest.since)

    def _forget_some(self) -> None:
        """Accounts that say nothing any more and, if there are still too many, the lowest."""
        most = ACCOUNTS_PER_PLACE * (self.queue_size + 1)
        if len(self._accounts) <= most:
            return
        ahead = {key: value for key, value in self._accounts.items() if value > self._virtual}
        highest = sorted(ahead, key=ahead.__getitem__)[-most // 2 :]
        self._accounts = {key: ahead[key] for key in highest}


def _name(ticket: Ticket) -> tuple[int, Hashable, Hashable]:
    return ticket.priority, ticket.key, ticket.group
