"""Engines whose /health times out: no evidence while they produce tokens, and a last resort."""

import pytest

from router.core.events import Event, LegAnswered, LegFailed, Probed, SpeedProbed
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.leg_timer import LegTimer
from router.core.fleet.selection import Selection
from router.core.health import HealthSignal, HealthThresholds, State
from router.core.judge.tuning import REPEATED_FAILURES
from router.core.membership.entry import Entry
from router.core.shared_table import SharedTable
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.speed.tuning import TICK_SECONDS
from router.core.values import Endpoint, FailureKind, Role
from tests.core.fixtures import D0, D1, D2, P0, P1
from tests.core.fleets import card, down, eject, fleet_of, fleet_up, taking, up

TIMEOUT_SECONDS = 2.0


def timed_out(fleet: Fleet, endpoint: Endpoint, asked_at: float) -> None:
    """A probe that was sent then is not answered."""
    event = Probed(endpoint, HealthSignal.TIMED_OUT, error="no answer", asked_at=asked_at)
    fleet.observe(event, asked_at + TIMEOUT_SECONDS)


def silence(fleet: Fleet, *endpoints: Endpoint, asked_at: float = 0.0) -> None:
    """Bring engines down by time-outs alone."""
    for endpoint in endpoints:
        for probe in range(3):
            timed_out(fleet, endpoint, asked_at + 3.0 * probe)


def produce(fleet: Fleet, endpoint: Endpoint, now: float) -> None:
    """A token of an open stream comes, and the next tick sees it."""
    speed = fleet.member(endpoint).speed
    if not speed.counts.streams:
        LegTimer(speed.counts, None, 10, now, tracks_first_token=True).first_token(now)
    speed.counts.counter.tokens += 1
    fleet.tick(now + TICK_SECONDS)


def state(fleet: Fleet, endpoint: Endpoint = D0) -> State:
    """The engine's health."""
    return fleet.member(endpoint).health.state


def test_an_engine_that_produces_tokens_stays_up_however_long_its_health_is_silent() -> None:
    fleet = fleet_up(D0)
    for probe in range(20):
        produce(fleet, D0, 3.0 * probe + 1.0)
        timed_out(fleet, D0, 3.0 * probe)
    assert state(fleet) is State.UP
    assert fleet.member(D0).last_error == "no answer"


def test_tokens_between_two_probes_count_too() -> None:
    """A step of many prompts takes seconds, and its tokens come together."""
    fleet = fleet_up(D0)
    for probe in range(20):
        timed_out(fleet, D0, 3.0 * probe)
        produce(fleet, D0, 3.0 * probe + 2.5)
    assert state(fleet) is State.UP


def test_tokens_from_before_the_probe_are_no_sign_of_life() -> None:
    fleet = fleet_up(D0)
    produce(fleet, D0, 9.0)
    silence(fleet, D0, asked_at=10.0)
    assert state(fleet) is State.DOWN


@pytest.mark.parametrize(
    "event",
    [
        Probed(D0, HealthSignal.FAILED),
        LegFailed(D0, FailureKind.REFUSED),
        LegFailed(D0, FailureKind.RESET),
    ],
)
def test_refusals_and_errors_count_whatever_tokens_come(event: Event) -> None:
    fleet = fleet_up(D0)
    for second in range(3):
        produce(fleet, D0, float(second))
        fleet.observe(event, float(second))
    assert state(fleet) is State.DOWN
    produce(fleet, D0, 4.0)
    timed_out(fleet, D0, 3.0)
    assert state(fleet) is State.DOWN


@pytest.mark.parametrize(
    ("busy", "idle"),
    [
        (Endpoint("http://x#0", Role.DECODE), Endpoint("http://x#1", Role.DECODE)),
        (Endpoint("http://x", Role.PREFILL), Endpoint("http://x", Role.DECODE)),
    ],
)
def test_ranks_and_roles_share_one_health_server(busy: Endpoint, idle: Endpoint) -> None:
    other = Endpoint("http://xy", Role.DECODE)
    fleet = fleet_up(busy, idle, other)
    for probe in range(3):
        produce(fleet, busy, 3.0 * probe + 1.0)
        for endpoint in (idle, other):
            timed_out(fleet, endpoint, 3.0 * probe)
    assert (state(fleet, idle), state(fleet, other)) == (State.UP, State.DOWN)


def test_tokens_that_other_processes_relay_count() -> None:
    """Also in one that has just started and knows nothing yet."""
    table = SharedTable(memoryview(bytearray(SharedTable.size(2, 1))), 2, 1)

    def process(number: int) -> Fleet:
        column = table.column(number)
        column.place({D0: 0})
        ledger, thresholds = Ledger(column.load), HealthThresholds()
        return Fleet(
            *([D0], ledger, thresholds, 5.0), speed_of=lambda e: SpeedEstimator(column.speed(e))
        )

    leader, other = process(0), process(1)
    other.observe_shared(up(D0), 0.0)
    produce(other, D0, 1.0)
    leader.tick(1.5)
    timed_out(leader, D0, 0.5)
    assert taking(leader, Role.DECODE) == [D0]


def test_a_silent_engine_is_back_with_a_token() -> None:
    fleet = fleet_up(D0)
    silence(fleet, D0)
    produce(fleet, D0, 9.0)
    timed_out(fleet, D0, 9.0)
    assert state(fleet) is State.UP


def test_a_silent_engine_is_back_with_an_answer() -> None:
    fleet = fleet_up(D0)
    silence(fleet, D0)
    fleet.observe(LegAnswered(D0, 200, 0.1), 9.0)
    assert state(fleet) is State.UP


def test_that_a_dead_engine_refuses_speed_probes_is_no_news() -> None:
    fleet = fleet_up(D0)
    silence(fleet, D0)
    for _ in range(REPEATED_FAILURES):
        fleet.observe(SpeedProbed(D0, "failed", "no connection"), 10.0)
    assert not fleet.member(D0).speed_probes_fail


def test_silent_engines_are_used_where_none_is_up() -> None:
    fleet = fleet_up(P0, D0, D1, D2)
    down(fleet, D2)
    silence(fleet, D0, asked_at=1.0)
    fleet.tick(10.0)
    assert (taking(fleet, Role.DECODE), fleet.pools[Role.DECODE].usable()) == ([D1], 1)
    assert not fleet.is_panic(Role.DECODE)
    silence(fleet, D1, asked_at=10.0)
    fleet.tick(20.0)
    assert (taking(fleet, Role.DECODE), fleet.pools[Role.DECODE].usable()) == ([D0, D1], 2)
    assert fleet.is_ready
    assert [role for role in Role if fleet.is_panic(role)] == [Role.DECODE]
    fleet.observe(up(D2), 20.1)
    assert taking(fleet, Role.DECODE) == [D2]
    fleet.tick(20.25)
    assert not fleet.is_panic(Role.DECODE)


def test_a_silent_engine_that_refuses_a_request_is_not_used() -> None:
    fleet = fleet_up(D0)
    silence(fleet, D0)
    fleet.tick(10.0)
    assert taking(fleet, Role.DECODE) == [D0]
    fleet.observe(LegFailed(D0, FailureKind.REFUSED), 10.0)
    fleet.tick(10.25)
    assert (taking(fleet, Role.DECODE), fleet.pools[Role.DECODE].usable()) == ([], 0)
    assert not fleet.is_ready
    assert not fleet.is_panic(Role.DECODE)


def test_a_silent_engine_that_is_drained_is_not_used() -> None:
    fleet = fleet_up(D0)
    silence(fleet, D0)
    fleet.apply([Entry(D0, 0, is_draining=True)], 10.0)
    fleet.tick(10.0)
    assert (taking(fleet, Role.DECODE), fleet.pools[Role.DECODE].usable()) == ([], 0)
    assert not fleet.is_panic(Role.DECODE)


def test_silence_matters_model_by_model() -> None:
    fleet = fleet_of(D0, D1)
    fleet.observe(up(D0, card("a")), 0.0)
    fleet.observe(up(D1, card("b")), 0.0)
    silence(fleet, D0)
    assert taking(fleet, Role.DECODE, "a") == [D0]
    assert taking(fleet, Role.DECODE, "b") == [D1]
    assert sorted(fleet.models.cards()) == ["a", "b"]


def test_a_prefill_engine_has_a_partner_that_is_silent() -> None:
    fleet = fleet_of(P0, P1, D0)
    for endpoint, version in ((P0, "1"), (P1, "2"), (D0, "1")):
        fleet.observe(Probed(endpoint, HealthSignal.OK, version=version), 0.0)
    silence(fleet, D0)
    assert Selection(fleet).incompatible(Role.PREFILL, None, None) == {P1}


def test_an_ejected_engine_comes_before_a_silent_one() -> None:
    fleet = fleet_up(D0, D1)
    eject(fleet, D0)
    silence(fleet, D1)
    assert taking(fleet, Role.DECODE) == [D0]


def test_of_the_engines_that_a_gateway_names_silent_ones_come_last() -> None:
    fleet = fleet_up(D0, D1)

    def named(*endpoints: Endpoint) -> list[Endpoint]:
        return [it.endpoint for it in Selection(fleet).usable_of(endpoints, frozenset())]

    silence(fleet, D0)
    assert named(D0, D1) == [D1]
    silence(fleet, D1)
    assert named(D0, D1) == [D0, D1]


def test_an_engine_that_drains_and_goes_down_was_up_until_it_drained() -> None:
    fleet = fleet_up(D0)
    fleet.observe(Probed(D0, HealthSignal.UNAVAILABLE), 5.0)
    down(fleet, D0)
    assert state(fleet) is State.DOWN
    assert fleet.member(D0).up_until == 5.0
