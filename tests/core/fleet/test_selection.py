"""Which engines are selected, and what is leased and timed."""

import pytest

from router.core.events import LegFailed, Scraped
from router.core.fleet.selection import Selection
from router.core.membership.entry import Entry
from router.core.replicas import SiblingLoad
from router.core.values import FailureKind, Gauges, Role
from tests.core.fixtures import D0, D1, D2, D3, D4
from tests.core.fleets import (
    NO_ENDPOINTS,
    card,
    down,
    eject,
    entries,
    fleet_of,
    fleet_up,
    taking,
    up,
)


def test_leases_are_seen_at_once() -> None:
    fleet = fleet_up(D0)
    lease = Selection(fleet).lease(D0, 100)
    (it,) = Selection(fleet).candidates(Role.DECODE, None, NO_ENDPOINTS, 0.0)
    assert (it.in_flight, it.tokens, it.other_requests) == (1, 100, None)
    lease.release()
    (it,) = Selection(fleet).candidates(Role.DECODE, None, NO_ENDPOINTS, 0.0)
    assert (it.in_flight, it.tokens) == (0, 0)


def test_candidates_that_are_kept_have_no_stale_gauges_after_the_next_tick() -> None:
    fleet = fleet_up(D0)
    fleet.observe(Scraped(D0, Gauges(running=7), 0), 0.0)
    (it,) = Selection(fleet).candidates(Role.DECODE, None, NO_ENDPOINTS, 4.9)
    assert it.other_requests == 7
    fleet.tick(5.1)
    (it,) = Selection(fleet).candidates(Role.DECODE, None, NO_ENDPOINTS, 5.1)
    assert it.other_requests is None


def test_as_many_engines_are_usable_as_may_get_a_request() -> None:
    fleet = fleet_up(D0, D1, D2, D3, D4)

    def usable() -> int:
        count = fleet.pools[Role.DECODE].usable()
        assert count == len(taking(fleet, Role.DECODE))
        return count

    assert usable() == 5
    fleet.apply([*entries(D0, D1, D2, D3), Entry(D4, 4, is_draining=True)], 1.0)
    assert usable() == 4
    eject(fleet, D0)
    eject(fleet, D1)
    assert usable() == 2
    down(fleet, D2)
    assert usable() == 1
    fleet.tick(2.0)  # two of three are ejected: panic
    assert usable() == 3
    for endpoint in (D0, D1, D3):
        down(fleet, endpoint)
    assert usable() == 0


def test_an_ejected_engine_is_usable_while_no_other_is_up() -> None:
    fleet = fleet_up(D0, D1)
    eject(fleet, D0)
    down(fleet, D1)
    assert taking(fleet, Role.DECODE) == [D0]
    assert fleet.pools[Role.DECODE].usable() == 1


def test_legs_are_timed_and_ticks_turn_them_into_speed() -> None:
    fleet = fleet_up(D0, D1)
    with Selection(fleet).lease(D0, 100, 100) as lease:
        leg = Selection(fleet).leg(lease, 0.0, tracks_first_token=True)
        leg.first_token(0.1)
        for tick in range(1, 9):
            fleet.member(D0).speed.counts.counter.tokens += 5
            fleet.tick(tick * 0.25)
        leg.end(2.0)
    assert fleet.pool_median(Role.DECODE) == pytest.approx(0.05, rel=0.1)
    assert fleet.pool_median(Role.PREFILL) is None
    assert fleet.expected_delay(fleet.member(D0)) is not None
    assert fleet.expected_delay(fleet.member(D1)) is not None


def test_nothing_is_kept_for_a_model_that_only_a_client_names() -> None:
    fleet = fleet_of(D0)
    fleet.observe(up(D0, card("m")), 0.0)
    for model in ("m", "x" * 1000, None):
        Selection(fleet).candidates(Role.DECODE, model, frozenset(), 0.0)
    assert set(fleet.pools[Role.DECODE].kept) == {"m", None}


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


def test_a_leg_on_a_removed_engine_is_not_timed() -> None:
    fleet = fleet_up(D0, D1)
    lease = Selection(fleet).lease(D1, 10)
    fleet.apply([Entry(D0, 0)], 1.0)
    leg = Selection(fleet).leg(lease, 2.0, tracks_first_token=True)
    leg.first_token(2.1)
    leg.end(3.0)
    lease.release()
    assert fleet.ledger.total() == 0


def test_a_short_prompt_behind_the_end_of_a_long_one_does_not_make_prefill_look_fast() -> None:
    """Otherwise all that wait for a prompt later would seem to wait for a slot."""
    fleet = fleet_up(D0)
    speed = fleet.member(D0).speed
    speed.counts.prompt_seconds = 0.001
    lengths = {1.0: 50_000, 50.9: 500}  # sent at
    legs = {}
    for sent, tokens in lengths.items():
        lease = Selection(fleet).lease(D0, tokens, tokens)
        legs[sent] = Selection(fleet).leg(lease, sent, tracks_first_token=True)
    assert legs[50.9].work == pytest.approx(600)
    legs[1.0].first_token(51.0)
    speed.tick(51.25)
    legs[50.9].first_token(51.5)
    speed.tick(51.75)
    assert speed.best_per_prompt_token == pytest.approx(0.001, rel=0.15)


def test_a_prompt_counts_with_all_its_tokens_however_much_is_computed_before_it() -> None:
    """What other processes wait for is counted with own prompts ahead of it, and so twice."""
    fleet = fleet_up(D0)
    speed = fleet.member(D0).speed
    speed.counts.prompt_seconds = 0.001
    speed.counts.siblings = SiblingLoad()
    speed.counts.siblings.pending = 9000
    Selection(fleet).leg(Selection(fleet).lease(D0, 5000, 5000), 1.0, tracks_first_token=True)
    work = []
    for now in (3.0, 9.0, 30.0):
        with Selection(fleet).lease(D0, 300, 300) as lease:
            work.append(Selection(fleet).leg(lease, now, tracks_first_token=False).work)
    assert work == [3300, 300, 5300]
