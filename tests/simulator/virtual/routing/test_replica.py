"""What a virtual router does when engines refuse: as the one that serves."""

from random import Random

import pytest

from router.core.policies import POLICIES
from router.core.pool_monitor import ExclusionConfig
from router.core.retry import BACK_OFF_SECONDS
from router.core.values import Role
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.engine import Engine
from router.simulator.virtual.request import Request
from router.simulator.virtual.routing.policies import Asking
from router.simulator.virtual.routing.replica import Replica
from router.simulator.virtual.values import (
    EngineModel,
    Faults,
    Lengths,
    Scenario,
    Workload,
)

MODEL = EngineModel()
LONGEST_BACK_OFF = 2 * BACK_OFF_SECONDS


@pytest.fixture
def agenda():
    return Agenda()


@pytest.fixture
def replica(agenda):
    """A router before three engines of which none takes a request."""
    engines = [Engine(MODEL, agenda, Random(place), replicas=1) for place in range(3)]
    for place, engine in enumerate(engines):
        engine.faults = Faults(0.0, place, refused=1.0)
    work = Workload(1, 1, Lengths(1), Lengths(1))
    replica = Replica(
        0,
        engines,
        Scenario("test", 3, MODEL, work),
        dict.fromkeys(Role, POLICIES["least_loaded"]),
        Random(0),
        ExclusionConfig(),
        Asking(),
        frozenset(),
        agenda,
    )
    for engine, member in zip(engines, replica.members, strict=True):
        engine.speeds = [member.speed]
    return replica


def send(replica: Replica) -> Request:
    """Send a request, now; it raises if it ends twice."""

    def done(request: Request, now: float) -> None:
        assert request.ended is None
        request.ended = now

    now = replica.agenda.now
    request = Request(0, 0, prompt=100, output=3, issued=now, done=done)
    replica.send(request, now)
    return request


def test_the_third_engine_is_asked_after_a_back_off(replica, agenda):
    request = send(replica)
    assert len(replica._open) == 1  # two have refused it
    agenda.run_while(lambda: request.ended is None, until=1.0)
    assert request.ended is not None
    assert 0.0 < request.ended <= LONGEST_BACK_OFF
    assert not request.is_good
    assert replica.leases == 0


def test_an_engine_that_takes_it_after_a_back_off_serves_it(replica, agenda):
    request = send(replica)
    for engine in replica.engines:
        engine.faults = Faults(0.0, 0)
    agenda.run_while(lambda: request.ended is None, until=10.0)
    assert request.is_good
    assert sum(replica.served) == 1


def test_a_router_that_dies_during_a_back_off_asks_nobody_afterwards(replica, agenda):
    request = send(replica)
    replica.restart(agenda.now)
    assert request.ended == agenda.now
    ends: list[float] = []
    agenda.at(2 * LONGEST_BACK_OFF, ends.append)
    agenda.run_while(lambda: not ends, until=1.0)
    assert [member.outlier.total for member in replica.members] == [0, 0, 0]
    assert replica.leases == 0


def test_without_retries_left_the_first_refusal_is_the_answer(replica):
    budget = replica.scheduler.retry_budget
    while budget.take(0.0):
        pass
    request = send(replica)
    assert request.ended == 0.0
    assert sum(member.outlier.total for member in replica.members) == 1
