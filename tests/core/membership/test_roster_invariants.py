"""Invariants of the roster and its fleet for any actions of sources and operators."""

from collections import Counter
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Lease, Ledger
from router.core.fleet.selection import Selection
from router.core.health import Health, HealthThresholds, State
from router.core.membership.entry import Order, Target
from router.core.membership.roster import Roster
from router.core.values import Endpoint, Receiver, Role
from tests.core.fixtures import D0, D1, D2, P0

LEAVE_SECONDS = 60.0
NO_ENDPOINTS: frozenset[Endpoint] = frozenset()

ENDPOINTS = (P0, D0, D1, D2)
targets = st.builds(
    Target,
    st.sampled_from(ENDPOINTS),
    st.sampled_from(["", "a", "b"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, Receiver("d0", (1, 2), (3, 4))]),
)


class Fleets(RuleBasedStateMachine):
    """Sources and operators change the fleet while requests start and end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.roster = Roster(5, LEAVE_SECONDS)
        self.fleet = Fleet((), Ledger(), HealthThresholds(), 5.0)
        self.open: list[tuple[Lease, object]] = []
        """Leases, with the member that each is on."""
        self.rows: Counter[int] = Counter()
        """Open leases by row."""
        self.places: dict[int, int] = {}
        """The row of each lease's member, by the lease's id."""
        self.sources: dict[str, tuple[Target, ...]] = {}

    def is_idle(self, row: int, _: int) -> bool:
        """There is one process, which has seen every version."""
        return not self.rows[row]

    def apply(self) -> None:
        """As FleetSync does."""
        self.fleet.apply(self.roster.entries, self.now)
        for member in self.fleet:
            member.health = Health(State.UP)

    @rule(source=st.sampled_from(["file", "dns"]), found=st.lists(targets, max_size=5))
    def name(self, source: str, found: list[Target]) -> None:
        """A source names its set."""
        self.sources[source] = tuple(found)
        taken = {entry.endpoint: entry for entry in self.roster.entries}
        self.roster.set_targets(source, found, self.now)
        for entry in self.roster.entries:
            if taken.get(entry.endpoint, entry).row != entry.row or entry.endpoint not in taken:
                assert not self.rows[entry.row], "a row is given away that has requests"
        self.apply()

    @rule(order=st.sampled_from(Order), endpoint=st.sampled_from(ENDPOINTS))
    def order(self, order: Order, endpoint: Endpoint) -> None:
        """An operator orders."""
        if self.roster.refusal(order, endpoint) is None:
            self.roster.obey(order, endpoint, self.now)
            self.apply()

    @rule(role=st.sampled_from(Role), chance=st.integers(0, 99))
    def lease(self, role: Role, chance: int) -> None:
        """A request begins."""
        found = Selection(self.fleet).candidates(role, None, NO_ENDPOINTS, self.now)
        if found:
            endpoint = Random(chance).choice(found).endpoint
            member = self.fleet.member(endpoint)
            lease = Selection(self.fleet).lease(endpoint, 10)
            self.open.append((lease, member))
            self.places[id(lease)] = member.entry.row
            self.rows[member.entry.row] += 1

    @precondition(lambda self: self.open)
    @rule(chance=st.integers(0, 99))
    def release(self, chance: int) -> None:
        """A request ends."""
        lease, _ = self.open.pop(chance % len(self.open))
        lease.release()
        self.rows[self.places.pop(id(lease))] -= 1

    @rule(seconds=st.sampled_from([0.25, LEAVE_SECONDS]))
    def settle(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        if self.roster.settle(self.now, self.is_idle):
            self.apply()

    @rule()
    def succeed(self) -> None:
        """Another leader continues with the roster of its predecessor."""
        data = self.roster.encode()
        heir = Roster(5, LEAVE_SECONDS)
        heir.restore(data)
        assert (heir.encode(), heir.entries) == (data, self.roster.entries)
        self.roster = heir

    @invariant()
    def rows_are_unique(self) -> None:
        """No two engines share one, and there are only so many."""
        rows = [entry.row for entry in self.roster.entries]
        assert len(set(rows)) == len(rows)
        assert all(0 <= row < 5 for row in rows)

    @invariant()
    def the_fleet_is_the_roster(self) -> None:
        """Also in what is counted."""
        entries = {entry.endpoint: entry for entry in self.roster.entries}
        assert {member.endpoint for member in self.fleet} == entries.keys()
        assert self.fleet.ledger._loads.keys() == entries.keys()
        for member in self.fleet:
            assert member.entry.row == entries[member.endpoint].row
            assert member.view.load.requests == sum(m is member for _, m in self.open)

    @invariant()
    def only_wanted_engines_take_requests(self) -> None:
        """Listed or added engines that are not drained."""
        wanted = {t.endpoint for found in self.sources.values() for t in found}
        wanted |= self.roster._added.keys()
        for role in Role:
            for found in Selection(self.fleet).candidates(role, None, NO_ENDPOINTS, self.now):
                assert found.endpoint in wanted
                member = self.fleet.member(found.endpoint)
                assert not member.is_drained
                standing = self.roster._standing.get(found.endpoint)
                assert standing is None or standing[1] != member.entry.identity

    def teardown(self) -> None:
        """After the last request no state of removed engines remains."""
        for lease, _ in self.open:
            lease.release()
        self.rows.clear()
        while self.roster.settle(self.now, self.is_idle) or self.roster._given_up:
            pass
        self.apply()
        assert not self.roster._given_up
        assert all(entry.leaving_since is None for entry in self.roster.entries)
        assert self.fleet.ledger.total() == 0


TestFleets = Fleets.TestCase
TestFleets.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
