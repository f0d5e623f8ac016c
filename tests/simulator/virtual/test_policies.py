"""The policies that the router's own are compared with."""

from random import Random

import pytest

from router.core.policies import POLICIES
from router.core.values import Role
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.engine import VirtualEngine
from router.simulator.virtual.policies import (
    ORACLE,
    POLICY_NAMES,
    PREFIX_CACHE_OFF,
    Asking,
    make_policy,
    make_strategy,
    policies_for,
    power_of_two,
    random_choice,
)
from router.simulator.virtual.requests import VirtualRequest
from router.simulator.virtual.scenarios.catalogue import scenario
from router.simulator.virtual.scenarios.pools import Size
from router.simulator.virtual.values import EngineModel
from tests.core.fixtures import D0, D1, D2, candidate
from tests.simulator.virtual.test_engine import Told

THREE = [
    candidate(D0, in_flight=3, ordinal=0),
    candidate(D1, others=2, ordinal=1),
    candidate(D2, in_flight=1, ordinal=2),
]


def test_the_routers_own_are_the_very_same():
    assert set(POLICIES) < set(POLICY_NAMES)
    for name, policy in POLICIES.items():
        assert make_policy(name, (), Asking()) is policy


def test_random_may_choose_any():
    rng = Random(1)
    chosen = set()
    for _ in range(50):
        scores = random_choice(THREE, [1, 1, 1], 0.0, rng)
        chosen.add(scores.index(min(scores)))
    assert chosen == {0, 1, 2}


def test_power_of_two_takes_the_emptier_of_two():
    rng, chosen = Random(1), []
    for _ in range(300):
        scores = power_of_two(THREE, [1, 1, 1], 0.0, rng)
        chosen.append(scores.index(min(scores)))
    assert 0 not in chosen  # the fullest of three is never the emptier of two
    assert chosen.count(2) == pytest.approx(200, abs=30)


@pytest.fixture
def engines():
    agenda = Agenda()
    return [VirtualEngine(EngineModel(max_num_seqs=2), agenda, Random(1), 1) for _ in THREE]


def test_the_oracle_knows_speed_slots_and_freezes(engines):
    def chosen() -> int:
        scores = make_policy(ORACLE, engines, Asking())(THREE, [1, 1, 1], 1.0, Random(1))
        return scores.index(min(scores))

    engines[0].batch.factor = 1.1
    assert chosen() == 1
    engines[1].running = 2
    assert chosen() == 2
    engines[2].frozen_until = 5.0
    assert chosen() == 0
    engines[0].is_up = False
    assert chosen() == 1


# Those that know prefix caches.

CONTENTS = tuple(range(8))
"""Of a prompt of 130 tokens, in blocks of 16."""


@pytest.fixture
def caching():
    """Three engines with prefix caches."""
    agenda = Agenda()
    model = EngineModel(block_size=16, kv_tokens=1600)
    return [VirtualEngine(model, agenda, Random(1), 1) for _ in THREE]


def compute(engine: VirtualEngine, *contents: int) -> None:
    """Have the engine's cache hold these blocks."""
    request = Told(16 * len(contents), 1)
    request.contents = contents
    assert engine.kv.place(request)
    engine.kv.fill(request, request.prompt)
    engine.kv.free(request)


@pytest.fixture(params=["prefix_cache_oracle", "prefill_oracle"])
def chosen(request, caching):
    """Chooses among engines that are equal but for what is done to them; returns its number."""
    asking = Asking()
    asking.request = VirtualRequest(0, 0, 130, 10, 0.0, lambda *_: None, contents=CONTENTS)
    policy = make_policy(request.param, caching, asking)
    equal = [candidate(D0, ordinal=0), candidate(D1, ordinal=1), candidate(D2, ordinal=2)]
    for one in equal:
        one.prompt_cost = 0.01

    def chosen() -> int:
        scores = list(policy(equal, [130] * 3, 0.0, Random(1)))
        return scores.index(min(scores))

    return chosen


def test_an_oracle_of_caches_takes_the_longest_prefix_among_equals(chosen, caching):
    compute(caching[1], *CONTENTS[:3])
    compute(caching[2], *CONTENTS[:5], 90)
    assert chosen() == 2


def test_the_cache_oracle_includes_queued_prompts(chosen, caching):
    compute(caching[1], *CONTENTS[:3])
    waiting = Told(130, 1)
    waiting.contents = (*CONTENTS[:6], 91, 92)
    caching[2].batch.waiting.append(waiting)
    waiting.left = 10
    assert chosen() == 2


def test_the_oracle_of_prefills_takes_the_soonest_first_token(caching):
    asking = Asking()
    asking.request = VirtualRequest(0, 0, 130, 10, 0.0, lambda *_: None, contents=CONTENTS)
    policy = make_policy("prefill_oracle", caching, asking)

    def scores() -> list[float]:
        return list(policy(THREE, [130] * 3, 0.0, Random(1)))

    compute(caching[1], *CONTENTS)
    assert scores() == [130, 2, 130]
    caching[1].submit(Told(100, 1), 0.0)
    caching[2].batch.factor = 2.0
    assert scores() == [130, 102, 260]
    caching[1].frozen_until = 1.0
    caching[2].is_up = False
    assert min(scores()[1:]) > 1e6


@pytest.fixture
def asked(caching):
    """Who is chosen of three engines with so many requests, by the cache-aware policy of that name;
    the last two hold so many blocks of 16 of the prompt, which has 130 tokens."""

    def asked(name: str, requests: list[int], held: tuple[int, int]) -> int:
        for engine, blocks in zip(caching[1:], held, strict=True):
            compute(engine, *CONTENTS[:blocks])
        asking = Asking()
        asking.request = VirtualRequest(0, 0, 130, 10, 0.0, lambda *_: None, contents=CONTENTS)
        loads = zip((D0, D1, D2), requests, strict=True)
        made = [candidate(d, in_flight=n, ordinal=i) for i, (d, n) in enumerate(loads)]
        scores = list(make_policy(name, caching, asking)(made, [130] * 3, 0.0, Random(1)))
        return scores.index(min(scores))

    return asked


@pytest.mark.parametrize(("name", "enough"), [("vllm_cache_aware", 5), ("smg_cache_aware", 3)])
def test_cache_aware_peers_take_a_match_that_is_long_enough(asked, name, enough):
    assert asked(name, [0, 9, 9], (0, enough - 1)) == 0
    assert asked(name, [0, 9, 9], (0, enough)) == 2
    assert asked(name, [0, 9, 8], (enough, enough)) == 2, "the emptier one of two"


@pytest.mark.parametrize(("name", "full"), [("vllm_cache_aware", 33), ("smg_cache_aware", 97)])
def test_cache_aware_peers_leave_an_engine_that_is_too_full(asked, name, full):
    assert asked(name, [0, 0, full - 1], (0, 8)) == 2
    assert asked(name, [0, 1, full], (0, 8)) == 0


def test_shortest_expected_delay_may_take_no_notice_of_caches():
    on, off = (make_strategy(name, ()) for name in ("shortest_expected_delay", PREFIX_CACHE_OFF))
    assert on.policy is off.policy is POLICIES["shortest_expected_delay"]
    assert (on.cached_roles, off.cached_roles) == (frozenset(Role), frozenset())


def test_policies_about_caches_are_compared_where_there_are_caches():
    assert policies_for(scenario("agents", Size(requests=1))) == POLICY_NAMES
    assert policies_for(scenario("healthy", Size()))[-1] == ORACLE
