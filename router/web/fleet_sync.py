"""Keeps the fleet in step with the roster, in every worker process.

The leader, or the only process, changes the roster: from what sources list and what operators
order. Other workers read it from shared memory at each tick. An order received by another worker is
sent to the leader.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Sequence

from router.core.errors import Conflict, NotFound, Unhealthy
from router.core.events import Ordered
from router.core.fleet.fleet import Fleet
from router.core.membership.entry import Entry, Order, Target
from router.core.membership.roster import MAX_NAME, Roster
from router.core.values import Endpoint
from router.net.processes.shared_state import WorkerContext

__all__ = ["FleetSync"]

log = logging.getLogger(__name__)

ORDER_TIMEOUT_SECONDS = 5.0
"""Seconds to wait until the leader has obeyed an order: its restart takes a second or two."""

POLL_SECONDS = 0.02


class FleetSync:
    """This process's copy of the roster, applied to the fleet."""

    def __init__(self, roster: Roster, fleet: Fleet, context: WorkerContext | None) -> None:
        self.roster = roster
        self._fleet = fleet
        self._context = context
        self._on_changed: Callable[[Sequence[Entry]], None] | None = None
        self._left_out = 0
        self._read_version = 0
        self._asking = asyncio.Lock()
        """One order at a time: the result of a later one does not show whether an earlier one was
        lost."""
        if context is not None:
            self._read(context)
        self._update_fleet()

    @property
    def is_leader(self) -> bool:
        """Whether this process changes the roster."""
        return self._context is None or self._context.is_leader

    def start(self, on_changed: Callable[[Sequence[Entry]], None]) -> None:
        """Call `on_changed` with the current entries now, and with those of each new version, for
        what depends on the fleet."""
        self._on_changed = on_changed
        self._applied()

    def follow(self) -> None:
        """Apply changes of the roster to the fleet."""
        if self.is_leader:
            if self.roster.settle(time.monotonic(), self._is_idle()):
                self._changed()
        elif self._context is not None and self._read(self._context):
            self._applied()

    def on_targets(self, source: str, targets: tuple[Target, ...]) -> None:
        """Set the complete list of engines of a source. Only in the leader."""
        is_first = self.roster.named_by(source) is None
        if self.roster.set_targets(source, targets, time.monotonic()) or is_first:
            self._changed()  # an empty first list too: a restarted leader has to know it
        left_out, self._left_out = self._left_out, self.roster.left_out
        if self._left_out and self._left_out != left_out:
            log.warning(
                "%d engines are left out: the router holds at most %d endpoints, with names of at "
                "most %d characters; name fewer, or divide them among several routers",
                self._left_out,
                self.roster.rows,
                MAX_NAME,
            )

    def on_ranks(self, url: str, ranks: tuple[int, ...]) -> None:
        """Set the data-parallel ranks of an engine. Only in the leader."""
        if self.roster.set_ranks(url, ranks, time.monotonic()):
            log.info("%s has %d data-parallel ranks, each an endpoint", url, max(1, len(ranks)))
            self._changed()

    async def order(self, order: Order, endpoint: Endpoint) -> None:
        """Execute an operator's order, in this process or by the leader. Raises NotFound, Conflict,
        or Unhealthy if the leader does not answer."""
        self.follow()
        if (why := self.roster.refusal(order, endpoint)) is not None:
            kind = Conflict if order is Order.ADD else NotFound
            raise kind(f"Cannot {order} {endpoint.role} {endpoint.url}: {why}.")
        log.info("admin API request: %s %s %s", order, endpoint.role, endpoint.url)
        if self._context is None or self.is_leader:
            self.roster.obey(order, endpoint, time.monotonic())
            self._changed()
        else:
            async with self._asking:
                await self._ask_leader(self._context, order, endpoint)

    def obey(self, ordered: Ordered) -> None:
        """Execute an order that another worker received. Only in the leader. One for which nobody
        waits any more was answered with an error, and is not executed."""
        age = (time.monotonic_ns() - ordered.number) / 1e9
        if self.is_leader and age < ORDER_TIMEOUT_SECONDS:
            if self.roster.refusal(ordered.order, ordered.endpoint) is None:
                self.roster.obey(ordered.order, ordered.endpoint, time.monotonic())
            self.roster.acknowledge(ordered.worker, ordered.number)
            self._changed()

    async def _ask_leader(self, context: WorkerContext, order: Order, endpoint: Endpoint) -> None:
        number = time.monotonic_ns()
        context.bus.publish(Ordered(context.number, number, order, endpoint))
        try:
            async with asyncio.timeout(ORDER_TIMEOUT_SECONDS):
                while not self.roster.has_obeyed(context.number, number):
                    await asyncio.sleep(POLL_SECONDS)
                    self.follow()
        except TimeoutError:
            raise Unhealthy(
                "The worker process that changes the fleet did not answer; try again."
            ) from None

    def _read(self, context: WorkerContext) -> bool:
        """Read the roster of the leader or of its predecessor. Returns whether it has changed."""
        if context.roster.version == self._read_version:
            return False
        found = context.roster.read()
        if found is None:  # it is being changed
            return False
        self._read_version, data = found
        self.roster.restore(data)
        return True

    def _changed(self) -> None:
        # Publish a new engine before this process probes it, because the others must know it when
        # they receive the result.
        if self._context is not None:
            self._context.roster.write(self.roster.encode())
        self._applied()

    def _applied(self) -> None:
        self._update_fleet()
        if self._on_changed is not None:
            self._on_changed(self.roster.entries)
        if self._context is not None:
            self._context.column.table.saw(self._context.number, self.roster.version)

    def _update_fleet(self) -> None:
        entries = self.roster.entries
        if self._context is not None:
            self._context.column.place({entry.endpoint: entry.row for entry in entries})
        self._fleet.apply(entries, time.monotonic())

    def _is_idle(self) -> Callable[[int, int], bool]:
        """Returns a function that tells whether a row of the roster is without requests, for
        `Roster.settle`."""
        if self._context is not None:
            return self._context.column.table.is_idle
        busy = functools.cache(self._busy_rows)  # computed at most once, and only if a row is left
        return lambda row, _version: row not in busy()

    def _busy_rows(self) -> set[int]:
        return {member.entry.row for member in self._fleet if member.view.in_flight}
