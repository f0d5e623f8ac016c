"""Admits requests up to a limit and queues the others; the queue is in
`core/limits/admission.py`."""

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, cast

from router.core.candidate import Candidate
from router.core.errors import Overloaded, QueueFull, RouterError
from router.core.fleet.fleet import Fleet
from router.core.fleet.selection import Selection
from router.core.limits.admission import IN_FLIGHT, WAITING, Admission, Ticket
from router.core.limits.places import Group, Place, Places, group_of
from router.core.request_facts import Facts
from router.core.shared_memory import Count, QueueShare
from router.core.values import DECODE
from router.net.limits.start_limiter import StartLimiter

__all__ = ["AdmissionGate", "AdmissionLimits", "DecodeEngines", "QueueMetrics", "Waiter"]

SWEEP_SECONDS: Final = 0.1
"""Seconds between checks for requests that have waited too long and for engines that have
joined."""

POLL_SECONDS: Final = 0.005
"""The same if other processes may release places; a quarter of a decode step."""

UNLIMITED: Final = 1 << 30

REQUEST_COST: Final = 256
"""Tokens that a request costs in addition to its prompt: for its slot, and for the beginning of its
answer, whose length is not known yet."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits of requests in flight and in queues, over all processes. None: no limit."""

    in_flight: int | None
    in_flight_per_engine: int | None
    """Requests in flight on each decode engine."""
    queue_size: int
    queue_seconds: float
    tenant_header: bytes
    """The header whose value identifies the tenant, unless the API key does."""
    priority_from: str
    """Where the priority comes from: `none`, `body`, or the name of a header."""


class QueueMetrics(Protocol):
    """Metrics of the queue."""

    def queue_length(self, waiting: int) -> None:
        """Set the number of requests in the queue."""

    def queue_waited(self, seconds: float) -> None:
        """Count a request that was admitted after it had waited."""

    def queue_rejected(self, reason: str) -> None:
        """Count a rejected request; `reason` is full, pushed_out or timeout."""


class Waiter(Protocol):
    """A request in the queue."""

    def on_turn(self, waited: float) -> None:
        """The request is admitted, after it waited for so many seconds."""

    def on_refused(self, error: RouterError) -> None:
        """The request is rejected."""


class DecodeEngines:
    """The decode engines of a fleet, by the groups of requests that they can take."""

    def __init__(self, fleet: Fleet) -> None:
        self._models = fleet.models
        self._selection = Selection(fleet)

    def usable(self, group: Group, now: float) -> Sequence[Candidate]:
        """Those that may take a group's requests now."""
        model, named = group
        if named is not None:
            return self._selection.usable_of(named, frozenset())
        return self._selection.candidates(DECODE, model, frozenset(), now)

    def merged(self, group: Group) -> Group:
        """A group that represents all groups with the same engines."""
        model, named = group
        return (self._models.listed(model) if named is None else None), named


class AdmissionGate:
    """Admits requests and queues those above the limits. Needs a running event loop.

    `total`: requests in flight of all processes. `share`: how much of the queue this process may
    use.
    """

    def __init__(
        self,
        limits: AdmissionLimits,
        engines: DecodeEngines,
        start_limiter: StartLimiter,
        metrics: QueueMetrics,
        total: Count | None = None,
        share: QueueShare | None = None,
    ) -> None:
        self.limits = limits
        self.admission = Admission(
            limits.queue_size, cast("Callable[[Hashable], Hashable]", engines.merged)
        )
        self.places = Places(limits.in_flight_per_engine)
        self._total = total or Count()
        self._share = share or QueueShare()
        self._keeps_all = False
        """Whether requests beyond the queue's size stay in it, because a reload has lowered the
        limit."""
        self._awaited: set[Count] = set()
        """The counts on which other processes see that requests are waiting here for a place."""
        self._decode_engines = engines
        self._start_limiter = start_limiter
        self._metrics = metrics
        self._waiters: dict[Ticket, Waiter] = {}
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None

    def configure(self, limits: AdmissionLimits) -> None:
        """Set new limits. Requests in the queue stay in it if there is no room for them."""
        self._keeps_all = limits.queue_size < self.limits.queue_size or self._keeps_all
        self.limits = limits
        self.admission.queue_size = limits.queue_size
        self.places.per_engine = limits.in_flight_per_engine
        self._let_in()

    def ticket(self, facts: Facts, fields: Mapping[bytes, bytes], tenant: str | None) -> Ticket:
        """Create a request's ticket. `fields` are its headers, `tenant` is the name of its API
        key."""
        key: Hashable = tenant
        if key is None:
            # Only a hash of a credential is kept.
            key = hash(fields.get(self.limits.tenant_header, b""))
        priority, cost = self._priority(facts, fields), float(REQUEST_COST + facts.tokens)
        return Ticket(key, priority, cost, _now(), group_of(facts), Place(self.places))

    def _priority(self, facts: Facts, fields: Mapping[bytes, bytes]) -> int:
        source = self.limits.priority_from
        if source == "none":
            return 0
        if source == "body":
            given = facts.body.get("priority")
            return given if type(given) is int else 0
        try:
            return int(fields.get(source.encode(), b"0")[:8])
        except ValueError:
            return 0

    def enter(self, ticket: Ticket, waiter: Waiter) -> bool:
        """Whether a request is admitted at once. If not, `waiter` is called later. Raises QueueFull
        if there is no place in the queue either."""
        admission = self.admission
        most = self._share.limit(self.limits.queue_size)
        refused = admission.offer(ticket, self._limit(), self._has_room, most)
        if refused is ticket:
            self._metrics.queue_rejected("full")
            raise self._full()
        if refused is not None:
            self._metrics.queue_rejected("pushed_out")
            self._waiters.pop(refused).on_refused(self._full())
        if ticket.state != WAITING:
            self._begin(ticket)
            return True
        self._waiters[ticket] = waiter
        self._tell_length()
        self._watch()
        return False

    def leave(self, ticket: Ticket, answer_tokens: int = 0) -> None:
        """Release the place of a request that has ended after `answer_tokens` tokens, or has left
        the queue."""
        if ticket.state == IN_FLIGHT:
            self._total.add(-1)
        self.admission.leave(ticket, float(max(0, answer_tokens - REQUEST_COST)))
        if ticket.place is not None:
            ticket.place.move(None)
        if self._waiters.pop(ticket, None) is not None:
            self._tell_length()
        if self._waiters and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._let_in)

    def close(self) -> None:
        """Stop the timer that checks the queue."""
        if self._timer is not None:
            self._timer.cancel()

    def _limit(self) -> int:
        """How many requests this process may have in flight now."""
        limit = self.limits.in_flight
        if limit is None:
            return UNLIMITED
        return self.admission.in_flight + self._total.room(limit, _now())

    def _has_room(self, group: Hashable) -> bool:
        """Whether an engine has room for one more request of a group. If no engine may take any,
        all are admitted, to be answered with 503."""
        if self.places.per_engine is None:
            return True
        engines, now = self._engines(group)
        return not engines or self.places.with_room(engines, now) is not None

    def _engines(self, group: Hashable) -> tuple[Sequence[Candidate], float]:
        """The engines that may take a group's requests, and the current time."""
        now = _now()
        return self._decode_engines.usable(cast("Group", group), now), now

    def _begin(self, ticket: Ticket) -> None:
        """Count an admitted request, and reserve a place on an engine until its plan has leased
        one."""
        self._total.add(1)
        if ticket.place is None or self.places.per_engine is None:
            return
        engine = self.places.with_room(*self._engines(ticket.group))
        if engine is not None:
            ticket.place.move(engine.load)

    def _full(self) -> QueueFull:
        seconds = math.ceil(self.admission.longest_wait(_now()))
        return QueueFull("Too many requests are waiting.", retry_after=max(1, seconds))

    def _let_in(self) -> None:
        self._is_due = False
        now, loop = _now(), asyncio.get_running_loop()
        while (ticket := self.admission.next(self._limit(), self._has_room)) is not None:
            self._begin(ticket)
            waited = now - ticket.since
            self._metrics.queue_waited(waited)
            waiter = self._waiters.pop(ticket)
            self._start_limiter.submit(loop, partial(waiter.on_turn, waited))
        self._tell_length()
        if self._total.is_shared:
            self._tell_others(now)

    def _tell_length(self) -> None:
        waiting = self.admission.waiting
        self._metrics.queue_length(waiting)
        self._share.publish(waiting)
        if not waiting:
            self._keeps_all = False

    def _tell_others(self, now: float) -> None:
        """Show other processes for which places requests are waiting here."""
        groups = self.admission.groups
        awaited: set[Count] = set()
        if any(map(self._has_room, groups)):  # they wait for the total limit
            awaited.add(self._total)
        if self.places.per_engine is not None:
            for group in groups:
                awaited.update(each.load.own.admitted for each in self._engines(group)[0])
        for count in self._awaited - awaited:
            count.stop_waiting()
        for count in awaited:
            count.wait(now)
        self._awaited = awaited

    def _watch(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            seconds = POLL_SECONDS if self._total.is_shared else SWEEP_SECONDS
            self._timer = loop.call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        seconds, loop = self.limits.queue_seconds, asyncio.get_running_loop()
        for ticket in self.admission.came_before(_now() - seconds):
            self._metrics.queue_rejected("timeout")
            error = Overloaded(f"The request waited {seconds:g} s for its turn.")
            # A thousand requests that arrived together time out together, and each response takes
            # about 0.1 ms.
            refuse = partial(self._waiters.pop(ticket).on_refused, error)
            self._start_limiter.submit(loop, refuse)
        self._let_in()
        if not self._keeps_all:
            self._give_back()
        if self._waiters:
            self._watch()

    def _give_back(self) -> None:
        """Reject requests that use other processes' share of the queue, now that these need it."""
        most, loop = self._share.limit(self.limits.queue_size), asyncio.get_running_loop()
        while (ticket := self.admission.refuse_beyond(most)) is not None:
            self._metrics.queue_rejected("pushed_out")
            refuse = partial(self._waiters.pop(ticket).on_refused, self._full())
            self._start_limiter.submit(loop, refuse)
            self._tell_length()


def _now() -> float:
    return time.monotonic()
