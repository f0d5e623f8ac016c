"""The count of excluded engines is kept in step with what excludes, adds and removes them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from router.core.events import (
    Ejected,
    LegAnswered,
    Probed,
)
from router.core.fleet.selection import Selection
from router.core.health import HealthSignal
from router.core.judge.member import Member
from router.core.membership.entry import Entry
from router.core.speed.tuning import TICK_SECONDS
from router.core.values import Endpoint, Role
from tests.core.fixtures import D0, D1, D2, D3, D4
from tests.core.fleets import fleet_up

# How many engines may be excluded is kept in step with what excludes them, adds them and so on.

ENGINES = (D0, D1, D2, D3, D4)
ONES = st.sampled_from(ENGINES)
STEPS = st.one_of(
    st.tuples(st.just("fails"), ONES),
    st.tuples(st.just("ejected elsewhere"), ONES),
    st.tuples(st.just("down"), ONES),
    st.tuples(st.just("up"), ONES),
    st.tuples(st.just("replaced"), ONES),
    st.tuples(st.just("in the fleet"), st.sets(ONES, min_size=1)),
    st.tuples(st.just("drained"), st.sets(ONES)),
    st.tuples(st.just("give tokens"), st.sets(ONES)),
)


class Decoding:
    """A decode pool with a stream on each engine, and what happens to it."""

    def __init__(self) -> None:
        self.fleet = fleet_up(*ENGINES)
        self.now, self.version = 0.0, 0
        self.here, self.drained = set(ENGINES), set[Endpoint]()
        for endpoint in ENGINES:
            self.happens("up", endpoint)
        self.open_streams()
        self.run(1.0, set(ENGINES))

    def open_streams(self) -> None:
        """One on each engine that is up."""
        for member in self.fleet:
            lease = Selection(self.fleet).lease(member.endpoint, 10)
            Selection(self.fleet).leg(lease, self.now, tracks_first_token=True).first_token(
                self.now
            )

    def run(self, seconds: float, giving: set[Endpoint]) -> None:
        """Let time pass, in which some engines give tokens."""
        for _ in range(round(seconds / TICK_SECONDS)):
            self.now += TICK_SECONDS
            for member in self.fleet:
                if member.endpoint in giving:
                    member.speed.counts.counter.tokens += 10
            self.fleet.tick(self.now)

    def happens(self, what: str, whom: Any) -> None:
        """One step."""
        now, fleet = self.now, self.fleet
        if what == "give tokens":
            self.run(3.0, whom)
        elif what == "in the fleet":
            self.here = whom
            self.apply()
            self.open_streams()
        elif what == "drained":
            self.drained = whom
            self.apply()
        elif what == "fails":
            for _ in range(5):
                fleet.observe(LegAnswered(whom, 500, 0.1), now)
        elif what == "ejected elsewhere":
            fleet.observe_shared(Ejected(whom, now, now + 4.0, "it failed"), now)
        elif what == "down":
            fleet.observe(Probed(whom, HealthSignal.UNAVAILABLE), now)
        else:
            self.version += what == "replaced"
            fleet.observe(Probed(whom, HealthSignal.OK, version=str(self.version)), now)

    def apply(self) -> None:
        """A new roster."""
        listed = [e for e in ENGINES if e in self.here]
        rows = [Entry(e, ENGINES.index(e), is_draining=e in self.drained) for e in listed]
        self.fleet.apply(rows, self.now)

    def may_exclude(self, member: Member) -> bool:
        """The definition: with it, no more than half are excluded."""
        up = [m for m in self.fleet if m.in_rotation]
        return sum(m.is_ejected_or_stalled for m in up if m is not member) + 1 <= 0.5 * len(up)


@given(st.lists(STEPS, max_size=15))
def test_the_exclusion_limit_equals_a_count_of_all_engines(steps: list[tuple[str, Any]]) -> None:
    pool = Decoding()
    for what, whom in steps:
        pool.happens(what, whom)
        for member in pool.fleet:
            expected = pool.may_exclude(member)
            assert pool.fleet.pools[Role.DECODE].judge.limit.allows(member) == expected, what
