"""Engines in vLLM's sleep mode: not used, not failing, and back as soon as they wake up."""

from router.core.events import LegFailed, Probed, Scraped
from router.core.fleet.fleet import Fleet
from router.core.fleet.status import cause, pool_status
from router.core.health import HealthSignal, State
from router.core.values import Endpoint, FailureKind, Gauges, Role
from tests.core.fixtures import D0, D1, D2
from tests.core.fleets import eject, fleet_up, taking


def probed(fleet: Fleet, endpoint: Endpoint = D0, *, is_asleep: bool | None) -> State:
    """The state after a good probe with this answer to /is_sleeping."""
    fleet.observe(Probed(endpoint, HealthSignal.OK, version="1", is_asleep=is_asleep), 1.0)
    return fleet.member(endpoint).health.state


def scraped(fleet: Fleet, *, is_asleep: bool | None) -> State:
    """The state after a scrape; None: a failed one."""
    gauges = None if is_asleep is None else Gauges(running=0, is_asleep=is_asleep)
    fleet.observe(Scraped(D0, gauges, 0), 1.0)
    return fleet.member(D0).health.state


def test_a_sleeping_engine_gets_nothing_and_is_back_with_its_first_answer() -> None:
    fleet = fleet_up(D0, D1)
    assert probed(fleet, is_asleep=True) is State.SLEEPING
    assert (taking(fleet, Role.DECODE), fleet.pools[Role.DECODE].usable()) == ([D1], 1)
    assert probed(fleet, is_asleep=False) is State.UP
    assert taking(fleet, Role.DECODE) == [D0, D1]
    assert fleet.member(D0).version == "1"


def test_a_gauge_shows_sleep_where_there_is_no_route() -> None:
    fleet = fleet_up(D0)
    assert scraped(fleet, is_asleep=True) is State.SLEEPING
    assert probed(fleet, is_asleep=None) is State.SLEEPING
    assert scraped(fleet, is_asleep=None) is State.SLEEPING
    assert scraped(fleet, is_asleep=False) is State.UP


def test_only_a_change_of_the_gauge_outweighs_the_route() -> None:
    """A paused engine's gauge says awake, that of one which /resume woke up says asleep."""
    fleet = fleet_up(D0)
    scraped(fleet, is_asleep=False)
    assert probed(fleet, is_asleep=True) is State.SLEEPING
    assert scraped(fleet, is_asleep=False) is State.SLEEPING
    assert scraped(fleet, is_asleep=True) is State.SLEEPING
    assert probed(fleet, is_asleep=False) is State.UP
    assert scraped(fleet, is_asleep=True) is State.UP


def test_an_engine_that_was_restarted_does_not_sleep_any_more() -> None:
    fleet = fleet_up(D0)
    scraped(fleet, is_asleep=True)
    for _ in range(3):
        fleet.observe(Probed(D0, HealthSignal.FAILED), 1.0)
    assert fleet.member(D0).health.state is State.DOWN
    assert scraped(fleet, is_asleep=True) is State.DOWN
    fleet.observe(Probed(D0, HealthSignal.FAILED), 1.0)
    assert probed(fleet, is_asleep=None) is State.UP


def test_sleeping_engines_do_not_count_in_the_limit_of_exclusions() -> None:
    fleet = fleet_up(D0, D1, D2)
    probed(fleet, D2, is_asleep=True)
    eject(fleet, D0)
    fleet.tick(0.0)
    assert taking(fleet, Role.DECODE) == [D1]
    assert not fleet.is_panic(Role.DECODE)


def test_what_a_sleeping_engine_aborted_is_forgotten_when_it_wakes_up() -> None:
    """It is not ejected for the streams that ended when it fell asleep."""
    fleet = fleet_up(D0, D1)
    for _ in range(6):
        fleet.observe(LegFailed(D0, FailureKind.BROKEN, asked_at=0.0), 1.0)
        probed(fleet, is_asleep=True)
        probed(fleet, is_asleep=False)
    assert taking(fleet, Role.DECODE) == [D0, D1]


def test_streams_leave_a_sleeping_engine() -> None:
    fleet = fleet_up(D0)
    counts = fleet.member(D0).speed.counts
    probed(fleet, is_asleep=True)
    assert counts.hands_over
    probed(fleet, is_asleep=False)
    assert not counts.hands_over


def test_where_all_sleep_the_error_says_so() -> None:
    fleet = fleet_up(D0, D1)
    probed(fleet, D0, is_asleep=True)
    probed(fleet, D1, is_asleep=True)
    assert not fleet.is_ready
    assert pool_status(fleet.pool(Role.DECODE)) == "0 of 2 up: 2 sleeping"
    assert cause(fleet.member(D0)) == "it sleeps or is paused, until its operator wakes it up"
