"""The fleet: what it learns from events, and who may take a request."""

import math
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.events import (
    Ejected,
    Event,
    FellBack,
    LegAnswered,
    LegDone,
    LegFailed,
    Probed,
    Scraped,
)
from router.core.fleet import SUBSET_SIZE, Fleet
from router.core.health import HealthSignal, HealthThresholds, State
from router.core.ledger import Ledger
from router.core.member import Exclusion
from router.core.outlier import FINE
from router.core.pool_monitor import ExclusionConfig
from router.core.roster import Entry
from router.core.speed_estimator import TICK_SECONDS
from router.core.values import Endpoint, FailureKind, Gauges, Role
from tests.core.fixtures import D0, D1, P0, P1

NO_ENDPOINTS: frozenset[Endpoint] = frozenset()


def fleet_of(*endpoints: Endpoint, stale_after: float = 5.0) -> Fleet:
    """A fleet that has seen nothing yet."""
    return Fleet(endpoints, Ledger(), HealthThresholds(), stale_after)


def card(name: str, **members: Any) -> dict[str, Any]:
    """An entry of /v1/models."""
    return {"id": name, "object": "model", **members}


def up(endpoint: Endpoint, *cards: dict[str, Any]) -> Probed:
    """A good probe; without cards the engine has not told what it serves."""
    return Probed(endpoint, HealthSignal.OK, cards or None)


def fleet_up(*endpoints: Endpoint) -> Fleet:
    """A fleet of engines that are up."""
    fleet = fleet_of(*endpoints)
    for endpoint in endpoints:
        fleet.observe(up(endpoint), 0.0)
    return fleet


def taking(fleet: Fleet, role: Role, model: str | None = None) -> list[Endpoint]:
    """Who may take a request for a model."""
    return [it.endpoint for it in fleet.candidates(role, model, NO_ENDPOINTS, 0.0)]


# Who there is.


def test_pools_keep_the_order_of_the_configuration() -> None:
    fleet = fleet_of(D1, P1, D0, P0)
    assert [member.endpoint for member in fleet] == [D1, P1, D0, P0]
    assert [member.endpoint for member in fleet.pool(Role.DECODE)] == [D1, D0]
    assert [member.endpoint for member in fleet.pool(Role.PREFILL)] == [P1, P0]
    assert [member.ordinal for member in fleet] == [0, 1, 2, 3]


def test_an_engine_in_two_roles_is_two_members() -> None:
    both = Endpoint(P0.url, Role.DECODE)
    fleet = fleet_of(P0, both)
    fleet.observe(up(both), 0.0)
    assert not fleet.member(P0).health.is_usable
    assert fleet.member(both).health.is_usable


# Who may take a request.


def test_an_engine_that_was_never_seen_takes_nothing() -> None:
    assert taking(fleet_of(D0), Role.DECODE) == []


def test_an_engine_that_is_up_takes_requests_of_its_role() -> None:
    fleet = fleet_up(D0, P0)
    assert taking(fleet, Role.DECODE) == [D0]
    assert taking(fleet, Role.PREFILL) == [P0]


def test_an_excluded_engine_takes_nothing() -> None:
    assert fleet_up(D0).candidates(Role.DECODE, None, frozenset({D0}), 0.0) == []


def test_an_engine_takes_requests_for_the_models_that_it_listed() -> None:
    fleet = fleet_of(D0, D1)
    fleet.observe(up(D0, card("a"), card("b")), 0.0)
    fleet.observe(up(D1, card("b")), 0.0)
    assert taking(fleet, Role.DECODE, "a") == [D0]
    assert taking(fleet, Role.DECODE, "b") == [D0, D1]
    assert taking(fleet, Role.DECODE, "c") == []
    assert taking(fleet, Role.DECODE, None) == [D0, D1]


def test_an_engine_that_has_not_told_its_models_takes_any() -> None:
    assert taking(fleet_up(D0), Role.DECODE, "a") == [D0]


def test_an_engine_that_lists_nothing_takes_no_model() -> None:
    fleet = fleet_of(D0)
    fleet.observe(Probed(D0, HealthSignal.OK, ()), 0.0)
    assert taking(fleet, Role.DECODE, "a") == []


def test_what_an_engine_listed_is_kept_when_it_does_not_tell_again() -> None:
    fleet = fleet_of(D0)
    fleet.observe(up(D0, card("a")), 0.0)
    fleet.observe(up(D0), 0.0)
    assert taking(fleet, Role.DECODE, "b") == []


def test_a_fleet_is_ready_when_a_decode_engine_is_up() -> None:
    assert not fleet_of(D0).is_ready
    assert not fleet_up(P0).is_ready
    assert fleet_up(D0).is_ready


# Load.


def test_leases_are_seen_at_once() -> None:
    fleet = fleet_up(D0)
    lease = fleet.lease(D0, 100)
    (it,) = fleet.candidates(Role.DECODE, None, NO_ENDPOINTS, 0.0)
    assert (it.in_flight, it.tokens, it.other_requests) == (1, 100, None)
    lease.release()
    (it,) = fleet.candidates(Role.DECODE, None, NO_ENDPOINTS, 0.0)
    assert (it.in_flight, it.tokens) == (0, 0)


def others(gauges: Gauges | None, own: int = 0, at: float = 0.0, now: float = 0.0) -> int | None:
    """What a fleet says of the requests of others after one scrape."""
    fleet = fleet_up(D0)
    fleet.observe(Scraped(D0, gauges, own), at)
    (it,) = fleet.candidates(Role.DECODE, None, NO_ENDPOINTS, now)
    return it.other_requests


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
def test_others_are_what_the_gauges_count_beyond_our_own(
    gauges: Gauges | None, own: int, expected: int | None
) -> None:
    assert others(gauges, own) == expected


@pytest.mark.parametrize(("now", "expected"), [(10.0, 7), (15.0, 7), (15.001, None), (99.0, None)])
def test_a_scrape_expires_by_age(now: float, expected: int | None) -> None:
    assert others(Gauges(running=7), at=10.0, now=now) == expected


def test_candidates_that_are_kept_have_no_stale_gauges_after_the_next_tick() -> None:
    fleet = fleet_up(D0)
    fleet.observe(Scraped(D0, Gauges(running=7), 0), 0.0)
    (it,) = fleet.candidates(Role.DECODE, None, NO_ENDPOINTS, 4.9)
    assert it.other_requests == 7
    fleet.tick(5.1)
    (it,) = fleet.candidates(Role.DECODE, None, NO_ENDPOINTS, 5.1)
    assert it.other_requests is None


def test_a_failed_scrape_takes_the_last_one_back() -> None:
    fleet = fleet_up(D0)
    fleet.observe(Scraped(D0, Gauges(running=7), 0), 0.0)
    fleet.observe(Scraped(D0, None, 0), 1.0)
    assert fleet.member(D0).gauges is None
    (it,) = fleet.candidates(Role.DECODE, None, NO_ENDPOINTS, 1.0)
    assert it.other_requests is None


# Models.


def test_the_known_models_follow_what_is_listed() -> None:
    fleet = fleet_up(D0)
    assert fleet.known_models() == fleet.known_models() == frozenset()
    fleet.observe(up(D0, card("m")), 0.0)
    fleet.observe(up(D0, card("m")), 1.0)
    assert fleet.known_models() == {"m"}


def test_the_first_usable_engine_that_lists_a_model_names_it() -> None:
    fleet = fleet_of(D0, D1, P0)
    fleet.observe(up(D0, card("a", owner=0), card("b", owner=0)), 0.0)
    fleet.observe(up(D1, card("b", owner=1), card("c", owner=1)), 0.0)
    fleet.observe(up(P0, card("p")), 0.0)
    assert {name: it["owner"] for name, it in fleet.models().items()} == {"a": 0, "b": 0, "c": 1}


def test_an_engine_that_is_away_lists_nothing_and_is_still_known() -> None:
    fleet = fleet_of(D0)
    fleet.observe(up(D0, card("a")), 0.0)
    fleet.observe(Probed(D0, HealthSignal.UNAVAILABLE), 0.0)
    assert fleet.models() == {}
    assert fleet.known_models() == {"a"}


def test_an_engine_that_has_not_told_lists_nothing() -> None:
    fleet = fleet_up(D0)
    assert fleet.models() == {}
    assert fleet.known_models() == frozenset()
    assert fleet.base_models() == frozenset()


def test_aliases_and_adapters_are_one_base_model() -> None:
    fleet = fleet_of(D0, D1)
    cards = (
        card("tiny", root="/models/tiny", parent=None),
        card("alias", root="/models/tiny", parent=None),
        card("adapter", root="/adapters/a", parent="tiny"),
    )
    fleet.observe(up(D0, *cards), 0.0)
    fleet.observe(up(D1, *cards), 0.0)
    assert fleet.base_models() == {"/models/tiny"}


def test_models_without_a_root_are_told_apart_by_name() -> None:
    fleet = fleet_of(D0)
    fleet.observe(up(D0, card("a"), card("b", root=None)), 0.0)
    assert fleet.base_models() == {"a", "b"}


# What is learned from requests.

REFUSED = LegFailed(D0, FailureKind.REFUSED)
ANSWERED = LegAnswered(D0, 200, 0.1)


@pytest.mark.parametrize("kind", [FailureKind.REFUSED, FailureKind.RESET])
def test_connections_that_fail_three_times_in_a_row_bring_an_engine_down(kind: FailureKind) -> None:
    fleet = fleet_up(D0)
    states = []
    for _ in range(3):
        fleet.observe(LegFailed(D0, kind), 0.0)
        states.append(fleet.member(D0).health.state)
    assert states == [State.UP, State.UP, State.DOWN]


@pytest.mark.parametrize("kind", [FailureKind.BROKEN, FailureKind.TIMEOUT])
def test_a_bad_or_slow_answer_says_nothing_of_an_engines_presence(kind: FailureKind) -> None:
    fleet = fleet_up(D0)
    for _ in range(9):
        fleet.observe(LegFailed(D0, kind), 0.0)
    assert fleet.member(D0).health.state is State.UP


@pytest.mark.parametrize("status", [200, 400, 503])
def test_an_answer_clears_the_doubts(status: int) -> None:
    fleet = fleet_up(D0)
    for event in (REFUSED, REFUSED, LegAnswered(D0, status, 0.1), REFUSED, REFUSED):
        fleet.observe(event, 0.0)
    assert fleet.member(D0).health.state is State.UP


def test_an_answer_does_not_bring_up_what_probes_call_down() -> None:
    fleet = fleet_of(D0)
    fleet.observe(ANSWERED, 0.0)
    assert fleet.member(D0).health.state is State.STARTING


def test_an_answer_does_not_bring_back_an_engine_that_drains() -> None:
    fleet = fleet_up(D0)
    for event in (Probed(D0, HealthSignal.UNAVAILABLE), REFUSED, ANSWERED):
        fleet.observe(event, 0.0)
    assert fleet.member(D0).health.state is State.DRAINING


def test_a_good_probe_of_an_engine_that_is_up_changes_nothing_that_is_known_of_it() -> None:
    fleet = fleet_up(D0)
    fleet.observe(Scraped(D0, Gauges(running=7), 0), 0.0)
    fleet.observe(up(D0), 1.0)
    assert fleet.member(D0).other_requests == 7


@pytest.mark.parametrize("event", [FellBack(Role.DECODE, "reset")])
def test_what_says_nothing_of_an_engine_is_ignored(event: Event) -> None:
    fleet = fleet_up(D0)
    fleet.observe(event, 0.0)
    assert fleet.is_ready


# Large pools.


MANY = [Endpoint(f"http://e{number}", Role.DECODE) for number in range(100)]


@given(st.integers(SUBSET_SIZE + 1, 100), st.randoms(use_true_random=False))
def test_of_a_large_pool_every_nth_is_looked_at(engines: int, rng: Random) -> None:
    fleet = fleet_up(P0, *MANY[:engines])
    seen = [it.ordinal for it in fleet.candidates(Role.DECODE, None, NO_ENDPOINTS, 0.0, rng)]
    assert SUBSET_SIZE / 2 <= len(seen) <= SUBSET_SIZE
    assert len({after - before for before, after in pairwise(seen)}) == 1


def test_every_engine_of_a_large_pool_is_looked_at_soon() -> None:
    fleet, rng = fleet_up(*MANY), Random(1)
    draws = [fleet.candidates(Role.DECODE, None, NO_ENDPOINTS, 0.0, rng) for _ in range(40)]
    assert {it.ordinal for seen in draws for it in seen} == set(range(100))


def test_if_nobody_in_the_window_can_all_are_looked_at() -> None:
    fleet = fleet_of(*MANY)
    fleet.observe(up(MANY[99]), 0.0)
    for seed in range(10):
        found = fleet.candidates(Role.DECODE, None, NO_ENDPOINTS, 0.0, Random(seed))
        assert [it.endpoint for it in found] == [MANY[99]]


# Exclusion.


def eject(fleet: Fleet, endpoint: Endpoint) -> None:
    """Five failures in a row."""
    for _ in range(5):
        fleet.observe(LegAnswered(endpoint, 500, 0.1), 0.0)


def test_an_ejected_engine_takes_nothing_unless_nobody_else_can() -> None:
    fleet = fleet_up(D0, D1)
    eject(fleet, D0)
    assert taking(fleet, Role.DECODE) == [D1]
    others = fleet.candidates(Role.DECODE, None, frozenset({D1}), 0.0)
    assert [it.endpoint for it in others] == [D0]


def test_another_configuration_of_exclusion_holds_from_now_on() -> None:
    fleet = fleet_up(D0, D1)
    outliers = replace(ExclusionConfig().outliers, consecutive=0)
    fleet.configure(ExclusionConfig(outliers=outliers))
    eject(fleet, D0)
    assert taking(fleet, Role.DECODE) == [D0, D1]
    fleet.configure(ExclusionConfig())
    eject(fleet, D0)
    assert taking(fleet, Role.DECODE) == [D1]


def test_in_panic_all_take_requests() -> None:
    fleet = fleet_up(D0, D1)
    eject(fleet, D0)
    for _ in range(3):
        fleet.observe(Probed(D1, HealthSignal.FAILED), 0.0)
    fleet.tick(0.25)
    fleet.observe(up(D1), 0.3)
    assert taking(fleet, Role.DECODE) == [D0, D1]


@pytest.mark.parametrize("status", [200, 400, 404, 429, 499])
def test_a_clients_errors_are_no_failures(status: int) -> None:
    fleet = fleet_up(D0, D1)
    for _ in range(20):
        fleet.observe(LegAnswered(D0, status, 0.1), 0.0)
    assert fleet.member(D0).exclusion is None


def test_what_may_be_another_engines_doing_is_blamed_on_nobody() -> None:
    fleet = fleet_up(D0, D1)
    for _ in range(20):
        fleet.observe(LegAnswered(D0, 500, 0.1, is_own_doing=False), 0.0)
    assert fleet.member(D0).exclusion is None


def test_a_good_answer_ends_a_streak() -> None:
    fleet = fleet_up(D0, D1)
    for _ in range(10):
        fleet.observe(LegAnswered(D0, 500, 0.1), 0.0)
        fleet.observe(LegDone(D0), 0.0)
    assert fleet.member(D0).exclusion is None


def test_a_failed_prefill_says_nothing_of_the_decode_engine_at_that_address() -> None:
    prefill, decode = Endpoint("http://x", Role.PREFILL), Endpoint("http://x", Role.DECODE)
    fleet = fleet_up(prefill, decode, P0, D0)
    eject(fleet, prefill)
    assert fleet.member(prefill).exclusion is Exclusion.EJECTED
    assert fleet.member(decode).exclusion is None
    assert fleet.member(decode).outlier == FINE


# Slots and speed.


def scraped(fleet: Fleet, now: float, running: int, waiting: int) -> float:
    """The slots after a scrape and a tick."""
    own = fleet.ledger.in_flight(D0)
    fleet.observe(Scraped(D0, Gauges(running=running, waiting=waiting), own), now)
    for tick in range(4):
        fleet.tick(now + tick * TICK_SECONDS)
    return fleet.member(D0).view.slots


def test_a_queue_of_others_in_the_gauges_tells_the_slots() -> None:
    fleet = fleet_up(D0)
    assert scraped(fleet, 0.0, 64, 5) == math.inf
    assert scraped(fleet, 1.0, 64, 5) == 64
    assert scraped(fleet, 2.0, 60, 0) == 64


def test_gauges_tell_no_slots_where_requests_wait_for_kv_caches() -> None:
    fleet = fleet_up(D0, P0)
    assert scraped(fleet, 0.0, 64, 5) == math.inf
    assert scraped(fleet, 1.0, 64, 5) == math.inf


def test_what_this_router_sees_for_itself_needs_no_gauges() -> None:
    """Its own streams tell better: at the start of a wave a gauge shows a queue where none is."""
    fleet = fleet_up(D0)
    for number in range(9):
        fleet.leg(fleet.lease(D0, 1), number / 10, tracks_first_token=True).first_token(1.0)
    for now in (1.0, 2.0, 3.0):
        assert scraped(fleet, now, 4, 5) == math.inf


def test_the_engines_limit_can_be_stated() -> None:
    fleet = Fleet([D0, D1], Ledger(), HealthThresholds(), 3.0, max_num_seqs={D0: 48}.get)
    fleet.tick(0.0)
    assert fleet.member(D0).view.slots == 48
    assert fleet.member(D1).view.slots == math.inf


def break_stream(fleet: Fleet, asked_at: float, now: float) -> None:
    """An answer of D0 breaks off."""
    fleet.observe(LegFailed(D0, FailureKind.BROKEN, asked_at), now)


def test_an_engine_that_breaks_every_stream_is_ejected_under_load() -> None:
    """However close together they break: what was asked for after the first counts."""
    fleet = fleet_up(D0, D1)
    for number in range(6):
        break_stream(fleet, asked_at=number * 0.1, now=number * 0.1 + 0.05)
    assert fleet.member(D0).exclusion is Exclusion.EJECTED


def test_an_engine_that_breaks_the_streams_of_clients_that_come_back_is_ejected() -> None:
    fleet = fleet_up(D0, D1)
    for asked_at in (0.0, 2.0):
        for _ in range(48):
            break_stream(fleet, asked_at, asked_at + 1.0)
    assert fleet.member(D0).exclusion is Exclusion.EJECTED


def test_streams_that_break_together_are_one_failure() -> None:
    fleet = fleet_up(D0, D1)
    for number in range(100):
        break_stream(fleet, asked_at=number / 100, now=1.0 + number / 1000)
        fleet.observe(LegDone(D0), 1.0 + number / 1000)
    assert fleet.member(D0).exclusion is None
    assert fleet.member(D0).outlier.total == 101


def test_legs_are_timed_and_ticks_turn_them_into_speed() -> None:
    fleet = fleet_up(D0, D1)
    with fleet.lease(D0, 100, 100) as lease:
        leg = fleet.leg(lease, 0.0, tracks_first_token=True)
        leg.first_token(0.1)
        for tick in range(1, 9):
            fleet.member(D0).speed.tokens += 5
            fleet.tick(tick * 0.25)
        leg.end(2.0)
    assert fleet.pool_median(Role.DECODE) == pytest.approx(0.05, rel=0.1)
    assert fleet.pool_median(Role.PREFILL) is None
    assert fleet.expected_delay(fleet.member(D0)) is not None
    assert fleet.expected_delay(fleet.member(D1)) is not None


def test_others_follow_the_gauges_half_way_at_a_time() -> None:
    fleet = fleet_up(D0)
    seen = []
    for running in (10, 90, 90, 90, 90, 89, 0, 44):
        fleet.observe(Scraped(D0, Gauges(running=running, waiting=0), 0), 0.0)
        seen.append(fleet.member(D0).other_requests)
    assert seen == [10, 50, 70, 80, 85, 87, 43, 44]


def test_requests_that_have_just_ended_are_not_somebody_elses() -> None:
    """A scrape finds the gauges of a moment ago; half a second later they must be true."""
    fleet = fleet_up(D0)
    leases = [fleet.lease(D0, 1) for _ in range(100)]
    fleet.tick(0.25)
    for lease in leases:
        lease.release()
    for tick in (0.25, 0.5):
        fleet.tick(tick)
        fleet.observe(Scraped(D0, Gauges(running=105, waiting=0), 0), tick)
        assert fleet.member(D0).other_requests == 5 if tick == 0.25 else 55


def test_requests_that_leave_a_stalled_engine_do_not_eject_it() -> None:
    """It is excluded for as long as it is silent, not for thirty seconds more."""
    fleet = fleet_up(D0, D1)
    for _ in range(50):
        fleet.observe(LegFailed(D0, FailureKind.STALLED), 1.0)
    assert fleet.member(D0).exclusion is None
    assert fleet.member(D0).outlier == FINE


def test_an_engine_that_breaks_half_of_its_long_streams_is_ejected() -> None:
    """Each breaks 10 s after it was asked for, and every other one ends well."""
    fleet = fleet_up(D0, D1)
    for tenth in range(300):
        now = tenth / 10
        fleet.observe(LegDone(D1), now)
        if tenth % 2:
            fleet.observe(LegDone(D0), now)
        else:
            break_stream(fleet, now - 10.0, now)
        fleet.tick(now)
    assert fleet.member(D0).outlier.ejections > 0


def test_an_engine_that_comes_back_has_nothing_of_its_last_life() -> None:
    fleet = fleet_up(D0, D1)
    for now in (0.0, 1.0):
        fleet.observe(Scraped(D0, Gauges(running=64, waiting=9, generated=5), 0), now)
    for _ in range(3):
        fleet.observe(Probed(D0, HealthSignal.FAILED), 2.0)
    fleet.observe(up(D0), 3.0)
    fleet.tick(3.25)
    member = fleet.member(D0)
    assert (member.view.slots, member.other_requests, member.counted) == (math.inf, None, None)


def test_a_crash_is_one_failure_whatever_its_answers_end_in() -> None:
    """What had no token yet is reset, what had some breaks off."""
    fleet = fleet_up(D0, D1)
    for number in range(10):
        kind = FailureKind.RESET if number == 0 else FailureKind.BROKEN
        fleet.observe(LegFailed(D0, kind, asked_at=number / 10), 2.0)
    assert fleet.member(D0).outlier.streak == 1


def test_requests_that_time_out_together_count_one_by_one() -> None:
    """Each waited for its whole time: an engine that answers none of them is no single crash."""
    fleet = fleet_up(D0, D1)
    for _ in range(5):
        fleet.observe(LegFailed(D0, FailureKind.TIMEOUT, asked_at=0.0), 60.0)
    assert fleet.member(D0).exclusion is Exclusion.EJECTED


# What other processes of the host tell.


def test_a_probe_by_another_process_counts() -> None:
    fleet = fleet_of(D0, D1)
    fleet.observe_shared(up(D0, card("m")), 0.0)
    fleet.observe_shared(Scraped(D0, Gauges(running=5, waiting=1), own=2), 0.0)
    assert taking(fleet, Role.DECODE, "m") == [D0]
    assert fleet.member(D0).other_requests == 4


def test_an_absence_that_another_process_met_counts() -> None:
    fleet = fleet_up(D0, D1)
    for _ in range(HealthThresholds().down_after):
        fleet.observe_shared(LegFailed(D0, FailureKind.REFUSED), 1.0)
    assert taking(fleet, Role.DECODE) == [D1]


def test_other_failures_of_other_processes_do_not_count() -> None:
    """Each process counts its own; the ejection that they lead to is what the others hear of."""
    fleet = fleet_up(D0, D1)
    for _ in range(100):
        fleet.observe_shared(LegFailed(D0, FailureKind.TIMEOUT), 1.0)
    assert taking(fleet, Role.DECODE) == [D0, D1]


def test_an_ejection_by_another_process_holds_here_for_its_time() -> None:
    fleet = fleet_up(D0, D1)
    assert taking(fleet, Role.DECODE) == [D0, D1]
    fleet.observe_shared(Ejected(D0, 1.0, 31.0), 1.0)
    fleet.observe_shared(Ejected(D0, 1.0, 99.0), 1.0)  # the echo of another one
    assert taking(fleet, Role.DECODE) == [D1]
    assert fleet.member(D0).exclusion is Exclusion.EJECTED
    fleet.tick(30.9)
    assert taking(fleet, Role.DECODE) == [D1]
    fleet.tick(31.0)
    assert taking(fleet, Role.DECODE) == [D0, D1]


def test_an_ejection_by_another_process_shuts_no_more_than_the_share() -> None:
    fleet = fleet_up(D0, D1)
    fleet.observe_shared(Ejected(D0, 1.0, 31.0), 1.0)
    fleet.observe_shared(Ejected(D1, 1.0, 31.0), 1.0)
    assert taking(fleet, Role.DECODE) == [D1]


def test_nothing_is_kept_for_a_model_that_only_a_client_names() -> None:
    fleet = fleet_of(D0)
    fleet.observe(up(D0, card("m")), 0.0)
    for model in ("m", "x" * 1000, None):
        fleet.candidates(Role.DECODE, model, frozenset(), 0.0)
    assert set(fleet._kept) == {(Role.DECODE, "m"), (Role.DECODE, None)}


def test_candidates_change_with_the_engines_state() -> None:
    fleet = fleet_up(D0, D1)
    assert taking(fleet, Role.DECODE) == [D0, D1]
    for _ in range(10):
        fleet.observe(LegFailed(D0, FailureKind.REFUSED), 1.0)
    assert taking(fleet, Role.DECODE) == [D1]
    fleet.observe(up(D0), 2.0)
    assert taking(fleet, Role.DECODE) == [D0, D1]


def test_candidates_change_with_the_models_that_an_engine_lists() -> None:
    fleet = fleet_of(D0, D1)
    fleet.observe(up(D0, card("a")), 0.0)
    fleet.observe(up(D1, card("a")), 0.0)
    assert taking(fleet, Role.DECODE, "a") == [D0, D1]
    fleet.observe(up(D0, card("b")), 1.0)
    assert taking(fleet, Role.DECODE, "a") == [D1]


def test_an_ejected_engine_is_no_candidate_even_before_the_next_tick() -> None:
    fleet = fleet_up(D0, D1)
    assert taking(fleet, Role.DECODE) == [D0, D1]
    eject(fleet, D0)
    assert taking(fleet, Role.DECODE) == [D1]


# Engines that come and go.


def entries(*endpoints: Endpoint, **members: Any) -> list[Entry]:
    """A roster of these engines."""
    return [Entry(endpoint, row, **members) for row, endpoint in enumerate(endpoints)]


def test_who_stays_keeps_what_is_known_of_it() -> None:
    fleet = fleet_up(D0, D1)
    member = fleet.member(D1)
    lease = fleet.lease(D1, 10)
    fleet.apply([Entry(D1, 1)], 5.0)
    assert [it.endpoint for it in fleet] == [D1]
    assert fleet.member(D1) is member
    assert taking(fleet, Role.DECODE) == [D1]
    assert fleet.ledger.in_flight(D1) == 1
    lease.release()


def test_who_joins_is_probed_before_it_is_used_and_its_models_count() -> None:
    fleet = fleet_of(D0)
    fleet.observe(up(D0, card("a")), 0.0)
    assert fleet.known_models() == {"a"}
    fleet.apply(entries(D0, D1), 5.0)
    assert taking(fleet, Role.DECODE) == [D0]
    assert fleet.member(D1).joined_at == 5.0
    assert fleet.member(D1).ordinal == 1
    fleet.observe(up(D1, card("b")), 6.0)
    assert fleet.known_models() == {"a", "b"}
    fleet.apply([Entry(D1, 1)], 7.0)
    assert fleet.known_models() == {"b"}


@pytest.mark.parametrize("members", [{"is_draining": True}, {"leaving_since": 1.0}])
def test_who_is_drained_gets_no_requests_and_counts_as_unusable(members: dict[str, Any]) -> None:
    fleet = fleet_up(D0)
    fleet.observe(up(D0, card("m")), 0.0)
    fleet.apply(entries(D0, **members), 1.0)
    member = fleet.member(D0)
    assert (member.is_drained, member.drained_since, member.is_usable) == (True, 1.0, False)
    assert taking(fleet, Role.DECODE) == []
    assert not fleet.is_ready
    assert not fleet.has_in_use(Role.DECODE)
    assert fleet.models() == {}
    fleet.apply(entries(D0, **members), 2.0)
    assert member.drained_since == 1.0
    fleet.apply(entries(D0), 3.0)
    assert fleet.member(D0).drained_since is None
    assert taking(fleet, Role.DECODE) == [D0]
    assert fleet.is_ready


@pytest.mark.parametrize("entry", [Entry(D0, 7), Entry(D0, 0, "another")])
def test_another_engine_at_the_same_url_begins_anew(entry: Entry) -> None:
    fleet = fleet_up(D0, D1)
    old = fleet.member(D0)
    lease = fleet.lease(D0, 10)
    fleet.apply([entry, Entry(D1, 1)], 5.0)
    member = fleet.member(D0)
    assert member is not old
    assert (member.health.state, fleet.ledger.in_flight(D0)) == (State.STARTING, 0)
    lease.release()
    assert (member.view.load.requests, old.view.load.requests) == (0, 0)


def test_requests_of_the_engine_before_are_no_failures_of_the_one_now() -> None:
    fleet = fleet_up(D0, D1)
    fleet.apply([Entry(D0, 7), Entry(D1, 1)], 5.0)
    fleet.observe(up(D0), 5.0)
    for _ in range(9):
        fleet.observe(LegFailed(D0, FailureKind.RESET, asked_at=4.0), 6.0)
    assert fleet.member(D0).health.state is State.UP
    fleet.observe(LegFailed(D0, FailureKind.RESET, asked_at=5.5), 6.0)
    assert fleet.member(D0).outlier.streak == 1


@pytest.mark.parametrize(
    "event",
    [
        up(D1),
        Scraped(D1, Gauges(running=1), 0),
        LegAnswered(D1, 500, 0.1),
        LegDone(D1),
        LegFailed(D1, FailureKind.REFUSED),
    ],
)
def test_events_of_engines_that_are_gone_are_ignored(event: Event) -> None:
    fleet = fleet_up(D0, D1)
    fleet.apply([Entry(D0, 0)], 1.0)
    fleet.observe(event, 2.0)
    assert not fleet.knows(D1)
    assert fleet.knows(D0)


def test_and_those_that_other_processes_tell_too() -> None:
    fleet = fleet_up(D0)
    fleet.observe_shared(up(D1), 2.0)
    assert [member.endpoint for member in fleet] == [D0]


def test_a_leg_on_an_engine_that_is_gone_is_timed_for_nobody() -> None:
    fleet = fleet_up(D0, D1)
    lease = fleet.lease(D1, 10)
    fleet.apply([Entry(D0, 0)], 1.0)
    leg = fleet.leg(lease, 2.0, tracks_first_token=True)
    leg.first_token(2.1)
    leg.end(3.0)
    lease.release()
    assert fleet.ledger.total() == 0


def test_who_is_drained_counts_in_no_share_of_the_pool() -> None:
    """Of three engines one is drained, and one of the other two fails: that is not too many."""
    fleet = fleet_up(D0, D1, P0)
    fleet.apply([Entry(D0, 0), Entry(D1, 1, is_draining=True)], 1.0)
    fleet.observe_shared(Ejected(D0, 1.0, 31.0), 1.0)
    assert fleet.member(D0).exclusion is None  # the only one that is left
    fleet.apply([Entry(D0, 0), Entry(D1, 1)], 2.0)
    fleet.observe_shared(Ejected(D0, 2.0, 32.0), 2.0)
    assert fleet.member(D0).exclusion is Exclusion.EJECTED
    fleet.tick(3.0)
    assert taking(fleet, Role.DECODE) == [D1]


def test_prefixes_of_who_joins_are_told_too() -> None:
    fleet = Fleet([D0], Ledger(), HealthThresholds(), 5.0, shares_prefixes=True)
    fleet.apply(entries(D0, D1), 1.0)
    assert fleet.member(D1).prefixes.news == []


def test_errors_of_an_engine_are_not_blamed_on_the_one_that_took_its_place() -> None:
    fleet = fleet_up(D0, D1)
    fleet.apply([Entry(D0, 5, "new"), Entry(D1, 1)], 10.0)
    fleet.observe(Probed(D0, HealthSignal.OK), 10.0)
    for _ in range(20):
        fleet.observe(LegAnswered(D0, 500, 3.0), 12.0)  # asked before it came
    assert (fleet.member(D0).exclusion, fleet.member(D0).last_error) == (None, None)
    for _ in range(20):
        fleet.observe(LegAnswered(D0, 500, 1.0), 12.0)
    assert fleet.member(D0).exclusion is Exclusion.EJECTED
