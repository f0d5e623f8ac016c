"""Who of a pool may take a request."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.candidate import Candidate
from router.core.events import Probed
from router.core.fleet.fleet import Fleet
from router.core.fleet.pool import FEWEST, SUBSET_SIZE
from router.core.fleet.selection import Selection
from router.core.health import HealthSignal
from router.core.membership.entry import Entry
from router.core.request_facts import Facts, PrefixKeys
from router.core.values import Endpoint, Role
from tests.core.fixtures import D0, D1, D2, P0, P1, request
from tests.core.fleets import NO_ENDPOINTS, card, eject, fleet_of, fleet_up, full, taking, up


def test_an_engine_that_was_never_seen_takes_nothing() -> None:
    assert taking(fleet_of(D0), Role.DECODE) == []


def test_an_engine_that_is_up_takes_requests_of_its_role() -> None:
    fleet = fleet_up(D0, P0)
    assert taking(fleet, Role.DECODE) == [D0]
    assert taking(fleet, Role.PREFILL) == [P0]


def test_an_excluded_engine_takes_nothing() -> None:
    assert Selection(fleet_up(D0)).candidates(Role.DECODE, None, frozenset({D0}), 0.0) == []


def test_an_engine_takes_requests_for_the_models_that_it_listed() -> None:
    fleet = fleet_of(D0, D1)
    fleet.observe(up(D0, card("a"), card("b")), 0.0)
    fleet.observe(up(D1, card("b")), 0.0)
    assert taking(fleet, Role.DECODE, "a") == [D0]
    assert taking(fleet, Role.DECODE, "b") == [D0, D1]
    assert taking(fleet, Role.DECODE, "c") == []
    assert taking(fleet, Role.DECODE, None) == [D0, D1]


def test_an_engine_with_unknown_models_takes_any_model() -> None:
    assert taking(fleet_up(D0), Role.DECODE, "a") == [D0]


def test_an_engine_that_lists_nothing_takes_no_model() -> None:
    fleet = fleet_of(D0)
    fleet.observe(Probed(D0, HealthSignal.OK, ()), 0.0)
    assert taking(fleet, Role.DECODE, "a") == []


def test_listed_models_are_kept_without_a_new_list() -> None:
    fleet = fleet_of(D0)
    fleet.observe(up(D0, card("a")), 0.0)
    fleet.observe(up(D0), 0.0)
    assert taking(fleet, Role.DECODE, "b") == []


MANY = [Endpoint(f"http://e{number}", Role.DECODE) for number in range(100)]


def sampled(fleet: Fleet, rng: Random, facts: Facts | None = None) -> list[Candidate]:
    """Those of a large pool that a request considers."""
    return Selection(fleet).sample(Role.DECODE, facts or request(), NO_ENDPOINTS, 0.0, rng)


@given(st.integers(SUBSET_SIZE + 1, 100), st.randoms(use_true_random=False))
def test_of_a_large_pool_every_nth_is_looked_at(engines: int, rng: Random) -> None:
    fleet = fleet_up(P0, *MANY[:engines])
    seen = [it.ordinal for it in sampled(fleet, rng)]
    assert SUBSET_SIZE / 2 <= len(seen) <= SUBSET_SIZE
    assert len({after - before for before, after in pairwise(seen)}) == 1


def test_every_engine_of_a_large_pool_is_looked_at_soon() -> None:
    fleet, rng = fleet_up(*MANY), Random(1)
    draws = [sampled(fleet, rng) for _ in range(40)]
    assert {it.ordinal for seen in draws for it in seen} == set(range(100))


def test_a_request_considers_the_same_engines_of_a_large_pool_each_time() -> None:
    fleet, rng, facts = fleet_up(*MANY), Random(1), request()
    first = sampled(fleet, rng, facts)
    assert [sampled(fleet, rng, facts) for _ in range(10)] == [first] * 10


def test_if_no_engine_in_the_window_can_serve_all_are_considered() -> None:
    fleet = fleet_of(*MANY)
    fleet.observe(up(MANY[99]), 0.0)
    for seed in range(10):
        found = sampled(fleet, Random(seed))
        assert [it.endpoint for it in found] == [MANY[99]]


def serving(fleet: Fleet, rare: int) -> Fleet:
    """The first engines serve another model than the rest."""
    for place, endpoint in enumerate(MANY):
        fleet.observe(up(endpoint, card("rare" if place < rare else "usual")), 0.0)
    return fleet


@given(st.integers(1, 100), st.randoms(use_true_random=False))
def test_choice_in_a_large_pool_where_few_serve_the_model(rare: int, rng: Random) -> None:
    fleet = serving(fleet_of(*MANY), rare)
    found = sampled(fleet, rng, request(model="rare"))
    assert min(rare, FEWEST) <= len(found) <= SUBSET_SIZE
    assert len({it.ordinal for it in found}) == len(found)
    assert {it.ordinal for it in found} <= set(range(rare))


def test_it_considers_a_part_of_them_where_they_are_many() -> None:
    """All are looked at because those of the subset are few."""
    fleet, rng = fleet_of(*MANY), Random(1)
    for endpoint in [each for place, each in enumerate(MANY) if place % 4]:  # three of four
        fleet.observe(up(endpoint), 0.0)
    draws = [sampled(fleet, rng) for _ in range(40)]
    assert {len(seen) for seen in draws} == {25}
    assert {it.ordinal % 4 for seen in draws for it in seen} == {1, 2, 3}


def test_holders_are_known_while_engines_of_a_large_pool_join_and_leave() -> None:
    fleet, prefix = fleet_up(*MANY[: SUBSET_SIZE + 1]), PrefixKeys((8, 16), (128, 256))
    Selection(fleet).lease(MANY[5], 256, prefix=prefix)
    for size in (SUBSET_SIZE, SUBSET_SIZE + 1, SUBSET_SIZE // 2 + 1):
        fleet.apply([Entry(each, row) for row, each in enumerate(MANY[:size])], 0.0)
        holders = fleet.pools[Role.DECODE].holders
        assert holders is not None
        assert holders.of(prefix) == (MANY[5],)
        assert len(sampled(fleet, Random(size))) >= min(size, SUBSET_SIZE // 2)
    fleet.apply([Entry(each, row) for row, each in enumerate(MANY[: SUBSET_SIZE // 2])], 0.0)
    assert fleet.pools[Role.DECODE].holders is None


def test_of_a_pool_that_has_become_small_all_are_looked_at() -> None:
    fleet, rng = fleet_up(*MANY[: SUBSET_SIZE + 1]), Random(1)
    fleet.apply([Entry(each, row) for row, each in enumerate(MANY[:SUBSET_SIZE])], 0.0)
    assert {len(sampled(fleet, rng)) for _ in range(10)} == {SUBSET_SIZE}


def test_an_ejected_engine_gets_requests_only_if_no_other_can() -> None:
    fleet = fleet_up(D0, D1)
    eject(fleet, D0)
    assert taking(fleet, Role.DECODE) == [D1]
    others = Selection(fleet).candidates(Role.DECODE, None, frozenset({D1}), 0.0)
    assert [it.endpoint for it in others] == [D0]


def test_in_panic_all_take_requests() -> None:
    fleet = fleet_up(D0, D1)
    eject(fleet, D0)
    for _ in range(3):
        fleet.observe(Probed(D1, HealthSignal.FAILED), 0.0)
    fleet.tick(0.25)
    fleet.observe(up(D1), 0.3)
    assert taking(fleet, Role.DECODE) == [D0, D1]


@pytest.mark.parametrize("engines", [(D0, D1), (P0, P1)])
def test_a_full_engine_takes_nothing_for_a_short_time(engines: tuple[Endpoint, ...]) -> None:
    fleet, role = fleet_up(*engines), engines[0].role
    assert taking(fleet, role) == list(engines)
    full(fleet, engines[0], 1.0)
    assert taking(fleet, role, now=1.0) == [engines[1]]
    fleet.tick(1.25)
    assert taking(fleet, role, now=1.25) == [engines[1]]
    fleet.tick(1.5)
    assert taking(fleet, role, now=1.5) == list(engines)


def test_where_all_are_full_all_take_requests() -> None:
    fleet = fleet_up(D0, D1)
    for engine in (D0, D1):
        full(fleet, engine)
    assert taking(fleet, Role.DECODE) == [D0, D1]


def test_a_full_engine_comes_before_an_ejected_one() -> None:
    fleet = fleet_up(D0, D1, D2)
    eject(fleet, D0)
    full(fleet, D1)
    full(fleet, D2)
    assert taking(fleet, Role.DECODE) == [D1, D2]
    others = Selection(fleet).candidates(Role.DECODE, None, frozenset({D1, D2}), 0.0, moves=True)
    assert [it.endpoint for it in others] == [D0]


def test_in_panic_a_full_engine_comes_last_still() -> None:
    fleet = fleet_up(D0, D1, D2)
    eject(fleet, D0)
    for _ in range(3):
        fleet.observe(Probed(D2, HealthSignal.FAILED), 0.0)
    fleet.observe(Probed(D1, HealthSignal.FAILED), 0.0)
    fleet.tick(0.25)
    full(fleet, D1)
    assert taking(fleet, Role.DECODE) == [D1]


def moving(fleet: Fleet, now: float) -> list[Endpoint]:
    """Who may take a request that has failed on D0."""
    others = Selection(fleet).candidates(Role.DECODE, None, frozenset({D0}), now, moves=True)
    return [it.endpoint for it in others]


def test_a_request_that_moves_goes_to_one_that_was_full_long_ago_only_if_there_is_no_other() -> (
    None
):
    fleet = fleet_up(D0, D1, D2)
    full(fleet, D1)
    assert moving(fleet, 99.0) == [D2]
    full(fleet, D2, 1.0)
    assert moving(fleet, 99.0) == [D1, D2]


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("free", [1, FEWEST, 50])
def test_of_a_large_pool_the_engines_that_are_not_full_are_found(free: int, moves: bool) -> None:
    fleet = fleet_up(*MANY)
    for engine in MANY[free:]:
        full(fleet, engine)
    prefix = PrefixKeys((8,), (128,))
    Selection(fleet).lease(
        MANY[99], 128, prefix=prefix
    )  # which would be added as one that has the prompt
    facts = request()
    facts.prefix = prefix
    for seed in range(20):
        facts.draw = None
        found = Selection(fleet).sample(
            Role.DECODE, facts, NO_ENDPOINTS, 0.0, Random(seed), moves=moves
        )
        assert found
        assert {it.endpoint for it in found} <= set(MANY[:free])
