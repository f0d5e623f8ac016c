"""Requests of other clients, as an engine's gauges show them beside this router's own."""

import math

import pytest

from router.core.events import (
    Scraped,
)
from router.core.fleet.fleet import Fleet
from router.core.fleet.selection import Selection
from router.core.speed.tuning import TICK_SECONDS
from router.core.values import Gauges, Role
from tests.core.fixtures import D0, P0
from tests.core.fleets import NO_ENDPOINTS, fleet_up


def others(gauges: Gauges | None, own: int = 0, at: float = 0.0, now: float = 0.0) -> int | None:
    """The fleet's count of other clients' requests after one scrape."""
    fleet = fleet_up(D0)
    fleet.observe(Scraped(D0, gauges, own), at)
    (it,) = Selection(fleet).candidates(Role.DECODE, None, NO_ENDPOINTS, now)
    return None if it.other_requests is None else round(it.other_requests)


@pytest.mark.parametrize(
    ("gauges", "own", "expected"),
    [
        (Gauges(running=5, waiting=2), 3, 4),
        (Gauges(running=5), 3, 2),
        (Gauges(running=5, waiting=2), 0, 7),
        (Gauges(running=1, waiting=0), 3, 0),
        (Gauges(waiting=2), 0, None),
        (Gauges(), 0, None),
        (None, 0, None),
    ],
)
def test_other_requests_are_the_gauges_less_our_own(
    gauges: Gauges | None, own: int, expected: int | None
) -> None:
    assert others(gauges, own) == expected


@pytest.mark.parametrize(("now", "expected"), [(10.0, 7), (15.0, 7), (15.001, None), (99.0, None)])
def test_a_scrape_expires_by_age(now: float, expected: int | None) -> None:
    assert others(Gauges(running=7), at=10.0, now=now) == expected


def test_a_failed_scrape_takes_the_last_one_back() -> None:
    fleet = fleet_up(D0)
    fleet.observe(Scraped(D0, Gauges(running=7), 0), 0.0)
    fleet.observe(Scraped(D0, None, 0), 1.0)
    assert fleet.member(D0).scrapes.gauges is None
    (it,) = Selection(fleet).candidates(Role.DECODE, None, NO_ENDPOINTS, 1.0)
    assert it.other_requests is None


def scraped(fleet: Fleet, now: float, running: int, waiting: int) -> float:
    """The slots after a scrape and a tick."""
    own = fleet.ledger.in_flight(D0)
    fleet.observe(Scraped(D0, Gauges(running=running, waiting=waiting), own), now)
    for tick in range(4):
        fleet.tick(now + tick * TICK_SECONDS)
    return fleet.member(D0).view.slots


def test_other_clients_queue_in_the_gauges_reveals_the_slots() -> None:
    fleet = fleet_up(D0)
    assert scraped(fleet, 0.0, 64, 5) == math.inf
    assert scraped(fleet, 1.0, 64, 5) == 64
    assert scraped(fleet, 2.0, 60, 0) == 64


def test_gauges_reveal_no_slots_while_requests_wait_for_kv_caches() -> None:
    fleet = fleet_up(D0, P0)
    assert scraped(fleet, 0.0, 64, 5) == math.inf
    assert scraped(fleet, 1.0, 64, 5) == math.inf


def test_own_streams_need_no_gauges() -> None:
    """Its own streams are better evidence: at the start of a wave a gauge shows a false queue."""
    fleet = fleet_up(D0)
    for number in range(9):
        Selection(fleet).leg(
            Selection(fleet).lease(D0, 1), number / 10, tracks_first_token=True
        ).first_token(1.0)
    for now in (1.0, 2.0, 3.0):
        assert scraped(fleet, now, 4, 5) == math.inf


def test_others_follow_the_gauges_half_way_at_a_time() -> None:
    fleet = fleet_up(D0)
    seen = []
    for running in (10, 90, 90, 90, 90, 89, 0, 44, 45):
        fleet.observe(Scraped(D0, Gauges(running=running, waiting=0), 0), 0.0)
        seen.append(fleet.member(D0).view.other_requests)
    assert seen == [10, 50, 70, 80, 85, 87, 43.5, 43.75, 44.375]
    assert fleet.member(D0).other_requests == 44


@pytest.mark.parametrize(("step", "expected"), [(0, 0), (1, 30)])
def test_requests_in_gauges_that_an_engine_left_standing_are_gone(step: int, expected: int) -> None:
    """All its requests were aborted; engines that generate are believed."""
    fleet = fleet_up(D0)
    for number in range(20):
        gauges = Gauges(running=30, waiting=0, generated=900 + step * number)
        fleet.observe(Scraped(D0, gauges, 0), float(number))
    assert fleet.member(D0).other_requests == expected


def test_gauges_stand_for_a_request_that_waits_there() -> None:
    fleet = fleet_up(D0)
    for number in range(20):
        fleet.observe(Scraped(D0, Gauges(running=30, waiting=0, generated=9), 1), float(number))
    assert fleet.member(D0).other_requests == 29


def test_recently_ended_requests_are_not_counted_as_other_clients() -> None:
    """A scrape finds the gauges of a moment ago; half a second later they must be true."""
    fleet = fleet_up(D0)
    leases = [Selection(fleet).lease(D0, 1) for _ in range(100)]
    fleet.tick(0.25)
    for lease in leases:
        lease.release()
    for tick in (0.25, 0.5):
        fleet.tick(tick)
        fleet.observe(Scraped(D0, Gauges(running=105, waiting=0), 0), tick)
        assert fleet.member(D0).other_requests == 5 if tick == 0.25 else 55
