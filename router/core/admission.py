"""Admission: how many requests are served at a time, and in which order the others wait.

The order is strict priority and, within a priority, start-time fair queueing (Goyal, Vin and Cheng,
1996): each key (a tenant) has an account of the work that was begun for it, and the lowest account
goes first. What a request cost more than was known when it was begun is added at its end. Of one
key and priority the first to come is the first to go. A full queue pushes out the newest request of
the key that has most of them waiting, so one tenant can fill it only while nobody else comes.
"""

from collections.abc import Hashable
from typing import Final

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
    when it came, in seconds."""

    __slots__ = ("cost", "key", "priority", "since", "state")

    def __init__(self, key: Hashable, priority: int, cost: float, since: float) -> None:
        highest, lowest = PRIORITIES
        self.key = key
        self.priority = min(max(priority, highest), lowest)
        self.cost = cost
        self.since = since
        self.state = GONE


class _Flow:
    """The waiting requests of one key and priority, in order; `since` is the virtual time at which
    the first of them came."""

    __slots__ = ("key", "priority", "since", "tickets")

    def __init__(self, key: Hashable, priority: int, since: float) -> None:
        self.key = key
        self.priority = priority
        self.since = since
        self.tickets: dict[Ticket, None] = {}


class Admission:
    """Up to `queue_size` requests wait. The limit of requests in flight is handed in: it follows
    the engines that are there. Choosing takes time in proportion to the keys that wait."""

    def __init__(self, queue_size: int) -> None:
        self.queue_size = queue_size
        self.in_flight = 0
        self._waiting: dict[Ticket, None] = {}
        """All that wait, in the order in which they came."""
        self._flows: dict[tuple[int, Hashable], _Flow] = {}
        self._virtual = 0.0
        """The account of the request that was begun last."""
        self._accounts: dict[Hashable, float] = {}
        """Work that was begun for a key, in virtual time; nothing is known of other keys."""

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def accounts(self) -> int:
        """How many keys are remembered."""
        return len(self._accounts)

    def offer(self, ticket: Ticket, limit: int) -> Ticket | None:
        """A request comes: it is in flight now or waits. Returns the one that is refused for it,
        itself perhaps; None if none is."""
        if not self._waiting and self.in_flight < limit:
            self._virtual = 0.0  # nobody competes: who had how much before does not matter
            self._accounts.clear()
            self._begin(ticket)
            return None
        refused = None
        if len(self._waiting) >= self.queue_size:
            refused = self._refused_for(ticket)
            if refused is ticket:
                return ticket
            self._remove(refused)
        self._add(ticket)
        return refused

    def next(self, limit: int) -> Ticket | None:
        """Begin the next that waits; None while there is no room or nobody waits."""
        if not self._flows or self.in_flight >= limit:
            return None
        flow = min(self._flows.values(), key=self._order)
        tag = self._tag(flow)
        ticket = next(iter(flow.tickets))
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

    def _add(self, ticket: Ticket) -> None:
        ticket.state = WAITING
        self._waiting[ticket] = None
        name = ticket.priority, ticket.key
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = _Flow(ticket.key, ticket.priority, self._virtual)
        flow.tickets[ticket] = None

    def _remove(self, ticket: Ticket) -> None:
        ticket.state = GONE
        del self._waiting[ticket]
        name = ticket.priority, ticket.key
        flow = self._flows[name]
        del flow.tickets[ticket]
        if not flow.tickets:
            del self._flows[name]

    def _tag(self, flow: _Flow) -> float:
        return max(flow.since, self._accounts.get(flow.key, 0.0))

    def _order(self, flow: _Flow) -> tuple[int, float]:
        return flow.priority, self._tag(flow)

    def _refused_for(self, ticket: Ticket) -> Ticket:
        """The newest of the longest flow with the lowest priority, if that priority is lower than
        the newcomer's or the flow would be longer than the newcomer's even without it."""
        if not self._flows:
            return ticket
        victim = max(self._flows.values(), key=lambda flow: (flow.priority, len(flow.tickets)))
        own = self._flows.get((ticket.priority, ticket.key))
        length = 0 if own is None else len(own.tickets)
        is_longer = victim.priority == ticket.priority and len(victim.tickets) > length + 1
        if victim.priority > ticket.priority or is_longer:
            return next(reversed(victim.tickets))
        return ticket

    def _forget_some(self) -> None:
        """Accounts that say nothing any more and, if there are still too many, the lowest."""
        most = ACCOUNTS_PER_PLACE * (self.queue_size + 1)
        if len(self._accounts) <= most:
            return
        ahead = {key: value for key, value in self._accounts.items() if value > self._virtual}
        highest = sorted(ahead, key=ahead.__getitem__)[-most // 2 :]
        self._accounts = {key: ahead[key] for key in highest}
