"""The policies that the router's own are compared with."""

from random import Random

import pytest

from router.core.policies import POLICIES
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.engine import Engine
from router.simulator.virtual.routing.policies import (
    POLICY_NAMES,
    make_policy,
    oracle,
    power_of_two,
    random_choice,
)
from router.simulator.virtual.values import EngineModel
from tests.core.fixtures import D0, D1, D2, candidate

THREE = [
    candidate(D0, in_flight=3, ordinal=0),
    candidate(D1, others=2, ordinal=1),
    candidate(D2, in_flight=1, ordinal=2),
]


def test_the_routers_own_are_the_very_same():
    assert set(POLICIES) < set(POLICY_NAMES)
    for name, policy in POLICIES.items():
        assert make_policy(name, ()) is policy


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
    return [Engine(EngineModel(max_num_seqs=2), agenda, Random(1), 1) for _ in THREE]


def test_the_oracle_knows_speed_slots_and_who_is_frozen(engines):
    def chosen() -> int:
        scores = oracle(engines)(THREE, [1, 1, 1], 1.0, Random(1))
        return scores.index(min(scores))

    engines[0].batch.factor = 1.1
    assert chosen() == 1
    engines[1].running = 2
    assert chosen() == 2
    engines[2].frozen_until = 5.0
    assert chosen() == 0
    engines[0].is_up = False
    assert chosen() == 1
