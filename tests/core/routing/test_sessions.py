"""Sessions stay on their engine, as far as load, speed and health allow."""

from random import Random

import pytest

from router.core.errors import NoEngine
from router.core.events import LegFailed, Probed
from router.core.fleet.fleet import Fleet
from router.core.fleet.pool import SUBSET_SIZE
from router.core.health import HealthSignal
from router.core.policies import POLICIES
from router.core.request_facts import Facts, session_keys
from router.core.routing.schedule import SESSION_REQUESTS, SESSION_SHARE, Scheduler
from router.core.values import Endpoint, FailureKind, Role
from tests.core.fixtures import D0, D1, D2, request
from tests.core.fleets import down, fleet_up, up
from tests.core.prefix.test_choice import fleet_of

NO_ENDPOINTS: frozenset[Endpoint] = frozenset()
NAMES = tuple(POLICIES)


def facts_of(session: bytes | None, prompt: str = "a b") -> Facts:
    """A request of a session."""
    facts = request(prompt=prompt)
    facts.session = None if session is None else session_keys(session)
    return facts


def scheduler_of(
    fleet: Fleet, name: str = "shortest_expected_delay", *, uses_history: bool = False
) -> Scheduler:
    """A scheduler with one policy for both roles."""
    cached_roles = frozenset(Role if uses_history else ())
    return Scheduler(fleet, dict.fromkeys(Role, POLICIES[name]), 0, Random(0), cached_roles)


def ask(scheduler: Scheduler, facts: Facts, role: Role = Role.DECODE) -> Endpoint:
    """The engine of a request that is over before the next."""
    with scheduler.lease(role, facts, NO_ENDPOINTS, 0.0) as lease:
        return lease.endpoint


def busy(fleet: Fleet, endpoint: Endpoint, requests: int) -> None:
    """Let an engine have further requests."""
    fleet.member(endpoint).view.load.add(requests, 0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_session_stays_where_it_began_and_others_are_spread(name: str) -> None:
    scheduler = scheduler_of(fleet_up(D0, D1, D2), name)
    sessions = (b"a", b"b", b"c")
    homes = {session: ask(scheduler, facts_of(session)) for session in sessions}
    assert set(homes.values()) == {D0, D1, D2}
    for session in sessions * 5:
        assert ask(scheduler, facts_of(session)) == homes[session]
    assert {ask(scheduler, facts_of(None)) for _ in range(3)} == {D0, D1, D2}


def test_a_session_stays_in_each_role() -> None:
    engines = [Endpoint(f"http://{role}-{number}", role) for role in Role for number in (0, 1)]
    scheduler = scheduler_of(fleet_up(*engines))
    for role in Role:
        assert len({ask(scheduler, facts_of(b"a"), role) for _ in range(4)}) == 1


@pytest.mark.parametrize("name", ["least_loaded", "shortest_expected_delay"])
def test_a_session_leaves_an_engine_with_many_more_requests(name: str) -> None:
    fleet = fleet_up(D0, D1)
    scheduler = scheduler_of(fleet, name)
    assert ask(scheduler, facts_of(b"a")) == D0
    busy(fleet, D0, int(SESSION_REQUESTS) - 1)
    assert ask(scheduler, facts_of(b"a")) == D0
    busy(fleet, D0, 2)
    assert ask(scheduler, facts_of(b"a")) == D1


def test_a_session_leaves_a_full_and_a_slow_engine() -> None:
    fleet = fleet_up(D0, D1)
    scheduler, view = scheduler_of(fleet, "round_robin"), fleet.member(D0).view
    assert ask(scheduler, facts_of(b"a")) == D0
    view.slots = 1.0
    busy(fleet, D0, 1)
    assert ask(scheduler, facts_of(b"a")) == D1
    view.slots = 2.0
    fleet.member(D1).view.is_slow = True
    assert [ask(scheduler, facts_of(b"a")) for _ in range(2)] == [D0, D0]


def test_a_session_leaves_an_engine_that_fails_and_need_not_return() -> None:
    fleet = fleet_up(D0, D1)
    scheduler = scheduler_of(fleet)
    assert ask(scheduler, facts_of(b"a")) == D0
    down(fleet, D0)
    assert ask(scheduler, facts_of(b"a")) == D1
    fleet.observe(up(D0), 1.0)  # a new process, with an empty cache
    assert [ask(scheduler, facts_of(b"a")) for _ in range(3)] == [D1] * 3


def test_without_history_a_session_shows_what_is_cached() -> None:
    """So a long prompt stays where many more requests are than a short one would."""
    fleet = fleet_of(D0, D1)
    scheduler, facts = scheduler_of(fleet), facts_of(b"a", "x" * 40_000)
    assert ask(scheduler, facts) == D0
    busy(fleet, D0, 2 * int(SESSION_REQUESTS))
    ranking = scheduler.rank(Role.DECODE, facts)
    assert dict(zip((c.endpoint for c in ranking.candidates), ranking.uncached, strict=True)) == {
        D0: facts.tokens // SESSION_SHARE,
        D1: facts.tokens,
    }
    assert ranking.endpoint == D0


def test_history_knows_better_than_a_session_what_is_cached() -> None:
    fleet = fleet_of(D0, D1)
    scheduler = scheduler_of(fleet, uses_history=True)
    assert ask(scheduler, facts_of(b"a", "x" * 40_000)) == D0
    other = facts_of(b"a", "y" * 40_000)
    assert set(scheduler.rank(Role.DECODE, other).uncached) == {other.tokens}


def test_other_processes_know_where_a_session_is() -> None:
    own, other = fleet_of(D0, D1), fleet_of(D0, D1)
    mine, theirs = scheduler_of(own), scheduler_of(other)
    assert ask(theirs, facts_of(None)) == D0
    assert ask(mine, facts_of(b"a")) == D0
    [event] = own.held_prefixes()
    other.observe_shared(event, 0.0)
    assert [ask(theirs, facts_of(b"a")) for _ in range(3)] == [D0] * 3


def test_a_large_pool_finds_the_engine_of_a_session() -> None:
    """Each request considers a random sample of the engines."""
    engines = [Endpoint(f"http://d{number}", Role.DECODE) for number in range(4 * SUBSET_SIZE)]
    scheduler = scheduler_of(fleet_up(*engines))
    home = ask(scheduler, facts_of(b"a"))
    assert {ask(scheduler, facts_of(b"a")) for _ in range(20)} == {home}
    for endpoint in engines:
        down(scheduler.fleet, endpoint)
    with pytest.raises(NoEngine):
        ask(scheduler, facts_of(b"a"))


def test_a_failed_request_leaves_its_session_to_the_next_engine() -> None:
    fleet = fleet_up(D0, D1)
    scheduler = scheduler_of(fleet)
    assert ask(scheduler, facts_of(b"a")) == D0
    fleet.observe(LegFailed(D0, FailureKind.REFUSED), 0.0)
    with scheduler.lease(Role.DECODE, facts_of(b"a"), frozenset({D0}), 0.0) as lease:
        assert lease.endpoint == D1
    fleet.observe(Probed(D0, HealthSignal.OK), 0.0)
    assert ask(scheduler, facts_of(b"a")) in (D0, D1)
