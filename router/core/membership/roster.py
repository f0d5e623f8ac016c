"""The list of engines of the fleet: those that sources list, modified by operators' orders.

A source lists all of its engines each time. An engine that no source lists any more, and that no
operator added, leaves: it gets no new requests, and is removed when its last request has ended or
after a time-out. An operator's order takes precedence over the sources until it is undone, or until
another engine (with another identity) appears at the URL.

Each engine has a row, the number by which worker processes share its load. An engine that replaces
another one at the same URL gets another row. A row is reused only when no process needs it any
more.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from router.core.membership.entry import (
    EVERY,
    OPERATOR,
    Entry,
    Order,
    Target,
    endpoint_of,
    fields_of,
)
from router.core.urls import split_rank, with_rank
from router.core.values import Endpoint

__all__ = ["MAX_ENDPOINTS", "MAX_NAME", "Roster", "engine_of"]

MAX_ENDPOINTS: Final = 1024
"""Most endpoints, including leaving ones: limits the memory that sources and operators can make the
router use. A few times the largest pools of one router."""

MAX_NAME: Final = 1024
"""Longest URL or identity in characters."""

Standing = tuple[Order, str]
"""An order in force (one of DRAINS or REMOVE), and the identity of the engine that it applies
to."""

DRAINS: Final = (Order.DRAIN, Order.MOVE)


class Roster:
    """All entries. `rows` is the most entries at a time.

    `leave_seconds`: time-out for leaving engines that still have requests.
    """

    def __init__(self, rows: int, leave_seconds: float) -> None:
        self.entries: tuple[Entry, ...] = ()
        self.version = 0
        """Number of changes of `entries` and of acknowledgements."""
        self.left_out = 0
        """Number of listed engines that are not used: there is no row, or the name is too long."""
        self.rows = rows
        self._leave_seconds = leave_seconds
        self._sources: dict[str, tuple[Target, ...]] = {}
        self._beyond: dict[str, int] = {}
        """For each source, the number of listed engines beyond the number of rows, or with too long
        a name; these are not kept."""
        self._added: dict[Endpoint, None] = {}
        self._standing: dict[Endpoint, Standing] = {}
        self._ranks: dict[str, tuple[int, ...]] = {}
        """The data-parallel ranks of engines that have several, by URL."""
        self._given_up: dict[int, int] = {}
        """Released rows that may still be in use, with the version that released each."""
        self._obeyed: dict[int, int] = {}
        """The number of each worker process's last executed order."""

    def set_targets(self, source: str, targets: Iterable[Target], now: float) -> bool:
        """Set all engines of a source. Returns whether the fleet changes."""
        listed = list(targets)
        fit = [t for t in listed if max(len(t.endpoint.url), len(t.identity)) <= MAX_NAME]
        self._sources[source] = tuple(fit[: self.rows])
        self._beyond[source] = len(listed) - len(self._sources[source])
        return self._update(now)

    def named_by(self, source: str) -> tuple[Target, ...] | None:
        """The engines that a source listed last; None if it has listed none yet."""
        return self._sources.get(source)

    def set_ranks(self, url: str, ranks: tuple[int, ...], now: float) -> bool:
        """Set the data-parallel ranks of an engine, each of which becomes an endpoint; with one or
        none the engine is one endpoint. Returns whether the fleet changes."""
        if len(ranks) > 1:
            self._ranks[url] = ranks
        else:
            self._ranks.pop(url, None)
        return self._update(now)

    def refusal(self, order: Order, endpoint: Endpoint) -> str | None:
        """Why an order cannot be executed; None if it can."""
        if endpoint.url == EVERY:
            return None
        entry = self._entry(endpoint)
        if order is Order.ADD:
            if len(endpoint.url) > MAX_NAME:
                return f"the URL is longer than {MAX_NAME} characters"
            if entry is None and len(self.entries) + len(self._given_up) >= self.rows:
                return f"the fleet has {self.rows} endpoints already: remove others first"
            return None
        if entry is None and endpoint not in self._standing:
            return "there is no such engine; GET /admin/engines lists them"
        is_used = entry is not None and entry.leaving_since is None  # another one at its URL
        if order in DRAINS and self._is_removed(endpoint) and not is_used:
            return "it was removed; add it first"
        return None

    def obey(self, order: Order, endpoint: Endpoint, now: float) -> None:
        """Execute an operator's order, for which `refusal` must be None."""
        standing = self._standing.get(endpoint)
        if order is Order.ADD:
            self._added[endpoint] = None
            if self._is_removed(endpoint):
                del self._standing[endpoint]
        elif order is Order.UNDRAIN:
            if standing is not None and standing[0] in DRAINS:
                del self._standing[endpoint]
        else:
            entry = self._entry(endpoint)
            before = "" if standing is None else standing[1]
            identity = before if entry is None else entry.identity
            self._standing.pop(endpoint, None)
            if order is Order.REMOVE:
                self._added.pop(endpoint, None)
            if order in DRAINS or standing is not None or self._is_named(endpoint):
                self._standing[endpoint] = (order, identity)
            if len(self._standing) > self.rows:  # orders for engines that are long gone
                del self._standing[next(iter(self._standing))]
        self._update(now)

    def acknowledge(self, worker: int, number: int) -> None:
        """Note that a worker's order has been executed; its numbers increase."""
        self._obeyed[worker] = number
        self.version += 1

    def has_obeyed(self, worker: int, number: int) -> bool:
        """Whether a worker's order has been executed."""
        return self._obeyed.get(worker, 0) >= number

    def settle(self, now: float, is_idle: Callable[[int, int], bool]) -> bool:
        """Remove engines that have left, and add those that had no row. Returns whether there were
        any.

        `is_idle(row, version)`: whether all processes have seen that version and none has requests
        in that row.
        """
        idle = [row for row, version in self._given_up.items() if is_idle(row, version)]
        for row in idle:
            del self._given_up[row]
        stay: list[Entry] = []
        gone: list[Entry] = []
        for entry in self.entries:
            since = entry.leaving_since
            is_over = since is not None and (
                now - since >= self._leave_seconds or is_idle(entry.row, entry.changed_in)
            )
            (gone if is_over else stay).append(entry)
        if gone:
            self.version += 1
            self.entries = tuple(stay)
            self._given_up |= dict.fromkeys((entry.row for entry in gone), self.version)
        has_room = bool(idle and self.left_out)
        return (has_room and self._update(now)) or bool(gone)

    def orders(self) -> list[tuple[Endpoint, Order]]:
        """The orders in force."""
        return [(endpoint, order) for endpoint, (order, _) in self._standing.items()]

    def _entry(self, endpoint: Endpoint) -> Entry | None:
        """The entry of an endpoint, or of one of its ranks."""
        found = (entry for entry in self.entries if entry.endpoint == endpoint)
        of_ranks = (entry for entry in self.entries if engine_of(entry.endpoint) == endpoint)
        return next(found, None) or next(of_ranks, None)

    def _is_removed(self, endpoint: Endpoint) -> bool:
        """Whether an operator has removed it."""
        standing = self._standing.get(endpoint)
        return standing is not None and standing[0] is Order.REMOVE

    def _is_named(self, endpoint: Endpoint) -> bool:
        """Whether a source lists it, or it is a rank of an engine that an operator added."""
        named = {t.endpoint for targets in self._sources.values() for t in targets}
        engine = engine_of(endpoint)
        return endpoint in named or engine in named or engine in self._added

    def _update(self, now: float) -> bool:
        """Rebuild the entries from the sources' lists and the operators' orders."""
        before = {entry.endpoint: entry for entry in self.entries}
        wanted = self._wanted()
        version = self.version + 1
        used = {entry.row for entry in self.entries} | self._given_up.keys()
        free = (row for row in range(self.rows) if row not in used)
        found = [
            self._renewed(before.get(endpoint), source, target, free)
            for endpoint, (source, target) in wanted.items()
        ]
        entries = [entry for entry in found if entry is not None]
        self.left_out = len(found) - len(entries) + sum(self._beyond.values())
        there = {entry.endpoint for entry in entries}
        entries += [
            entry if entry.leaving_since is not None else entry.left(now, version)
            for endpoint, entry in before.items()
            if endpoint not in there
        ]
        if tuple(entries) == self.entries:
            return False
        # The rows of engines that were replaced.
        lost = {entry.row for entry in self.entries} - {entry.row for entry in entries}
        self._given_up |= dict.fromkeys(lost, version)
        self.entries, self.version = tuple(entries), version
        return True

    def _renewed(
        self, before: Entry | None, source: str, target: Target, free: Iterator[int]
    ) -> Entry | None:
        """The entry for a target; None without a free row."""
        hands_over = target.hands_over or self._stands(Order.MOVE, target)
        is_draining = target.is_draining or hands_over or self._stands(Order.DRAIN, target)
        place = self._place(target.endpoint.url)
        if before is not None and before.identity == target.identity:
            if before.is_as_wanted(
                source, target, is_draining=is_draining, hands_over=hands_over, place=place
            ):
                return before
            return before._replace(
                source=source,
                is_draining=is_draining,
                hands_over=hands_over,
                leaving_since=None,
                changed_in=0,
                place=place,
                receiver=target.receiver,
                kv_events_port=target.kv_events_port,
                zone=target.zone,
            )
        row = next(free, None)
        if row is None:
            return None
        return Entry(
            target.endpoint,
            row,
            target.identity,
            source,
            is_draining,
            hands_over,
            place=place,
            receiver=target.receiver,
            kv_events_port=target.kv_events_port,
            zone=target.zone,
        )

    def _place(self, name: str) -> int | None:
        """The place of a rank behind its URL. An API server for some ranks of an engine (hybrid
        load balancing) labels its metrics by their numbers in the engine, and counts from 0 in
        requests."""
        url, rank = split_rank(name)
        return None if rank is None else rank - self._ranks.get(url, (0,))[0]

    def _wanted(self) -> dict[Endpoint, tuple[str, Target]]:
        """The source and target of each engine. If several sources list it, the first one
        counts."""
        named: dict[Endpoint, tuple[str, Target]] = {}
        for source, targets in self._sources.items():
            for target in targets:
                named.setdefault(target.endpoint, (source, target))
        wanted = {
            endpoint: (source, target)
            for endpoint, (source, target) in named.items()
            if not self._stands(Order.REMOVE, target)
        }
        missing = [endpoint for endpoint in self._added if endpoint not in wanted]
        entries = self._by_engine() if missing else {}
        for endpoint in missing:
            known = entries.get(endpoint)
            target = (
                Target(endpoint)
                if known is None
                else Target(
                    endpoint,
                    known.identity,
                    receiver=known.receiver,
                    kv_events_port=known.kv_events_port,
                    zone=known.zone,
                )
            )
            wanted[endpoint] = (OPERATOR, target)
        urls = {split_rank(e.url)[0] for e in wanted}
        self._ranks = {url: ranks for url, ranks in self._ranks.items() if url in urls}
        return self._by_rank(wanted) if self._ranks else wanted

    def _by_engine(self) -> dict[Endpoint, Entry]:
        """The entry of each endpoint, and of each engine with data-parallel ranks that of a rank.
        Where an engine leaves as a whole or was replaced, those that stay take precedence."""
        last = sorted(self.entries, key=lambda entry: entry.leaving_since is None)
        of_endpoints = {entry.endpoint: entry for entry in self.entries}
        return of_endpoints | {engine_of(entry.endpoint): entry for entry in last}

    def _by_rank(
        self, wanted: dict[Endpoint, tuple[str, Target]]
    ) -> dict[Endpoint, tuple[str, Target]]:
        """The same with the data-parallel ranks of engines instead of the engines."""
        found: dict[Endpoint, tuple[str, Target]] = {}
        for endpoint, (source, target) in wanted.items():
            for rank in self._ranks.get(endpoint.url, (None,)):
                if rank is None:
                    found[endpoint] = source, target
                    continue
                own = Endpoint(with_rank(endpoint.url, rank), endpoint.role)
                one = replace(target, endpoint=own)
                if not self._stands(Order.REMOVE, one):
                    found[own] = source, one
        return found

    def _stands(self, order: Order, target: Target) -> bool:
        """Whether an order is in force for this endpoint or for all ranks of its engine."""
        if not self._standing:
            return False
        due = order, target.identity
        endpoint = target.endpoint
        return due in (
            self._standing.get(endpoint),
            self._standing.get(engine_of(endpoint)),
        ) or self._standing.get(Endpoint(EVERY, endpoint.role)) == (order, "")

    # For other processes, and for the next leader.

    def encode(self) -> bytes:
        """The complete state; the inverse of `restore`."""
        return json.dumps(
            {
                "rows": self.rows,
                "version": self.version,
                "left_out": self.left_out,
                "entries": self.entries,
                "sources": {
                    source: [
                        (
                            *(t.endpoint, t.identity, t.is_draining, t.hands_over),
                            *(t.receiver, t.kv_events_port, t.zone),
                        )
                        for t in targets
                    ]
                    for source, targets in self._sources.items()
                },
                "added": list(self._added),
                "standing": list(self._standing.items()),
                "given_up": list(self._given_up.items()),
                "obeyed": list(self._obeyed.items()),
                "ranks": list(self._ranks.items()),
            }
        ).encode()

    def restore(self, data: bytes) -> None:
        """Set the state that another process has encoded; the time-out stays the same. The number
        of rows is that of the tables that the processes share, whatever the settings are now."""
        state: dict[str, Any] = json.loads(data)
        self.rows = state["rows"]
        self.version, self.left_out = state["version"], state["left_out"]
        self.entries = tuple(
            Entry(endpoint_of(endpoint), *fields_of(others))
            for endpoint, *others in state["entries"]
        )
        self._sources = {
            source: tuple(
                Target(endpoint_of(endpoint), *fields_of(others)) for endpoint, *others in targets
            )
            for source, targets in state["sources"].items()
        }
        self._added = dict.fromkeys(map(endpoint_of, state["added"]))
        self._standing = {
            endpoint_of(endpoint): (Order(order), identity)
            for endpoint, (order, identity) in state["standing"]
        }
        self._given_up = dict(state["given_up"])
        self._obeyed = dict(state["obeyed"])
        self._ranks = {url: tuple(ranks) for url, ranks in state["ranks"]}


def engine_of(endpoint: Endpoint) -> Endpoint:
    """The engine of which an endpoint is a rank, or the endpoint itself."""
    url, rank = split_rank(endpoint.url)
    return endpoint if rank is None else Endpoint(url, endpoint.role)
