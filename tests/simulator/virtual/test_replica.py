"""What a virtual router does when engines refuse: as the one that serves."""

from random import Random

import pytest

from router.core.judge.verdict import Exclusion, ExclusionConfig
from router.core.retry import BACK_OFF_SECONDS
from router.core.shared_table import SharedTable
from router.core.speed.tuning import TICK_SECONDS
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.cluster import PEER_SECONDS, share
from router.simulator.virtual.engine import VirtualEngine
from router.simulator.virtual.policies import make_strategy
from router.simulator.virtual.replica import Replica
from router.simulator.virtual.requests import VirtualRequest
from router.simulator.virtual.values import (
    EngineModel,
    FaultRates,
    Lengths,
    Scenario,
    Unread,
    Workload,
)

MODEL = EngineModel()
LONGEST_BACK_OFF = 2 * BACK_OFF_SECONDS


@pytest.fixture
def agenda():
    return Agenda()


def routers(agenda: Agenda, engines: list[VirtualEngine], *, workers: int = 0) -> list[Replica]:
    """One router before these engines, or so many workers of one."""
    work = Workload(1, 1, Lengths(1), Lengths(1))
    number, size = workers or 1, len(engines)
    memory = memoryview(bytearray(SharedTable.size(number, size))) if workers else None
    replicas = [
        Replica(
            n,
            engines,
            Scenario("test", size, MODEL, work, number, has_workers=memory is not None),
            make_strategy("least_loaded", engines),
            Random(0),
            ExclusionConfig(),
            agenda,
            memory,
        )
        for n in range(number)
    ]
    for place, engine in enumerate(engines):
        engine.speeds = [replica.members[place].speed for replica in replicas]
    return replicas


@pytest.fixture
def replica(agenda):
    """A router before three engines of which none takes a request."""
    engines = [VirtualEngine(MODEL, agenda, Random(place), replicas=1) for place in range(3)]
    for place, engine in enumerate(engines):
        engine.faults = FaultRates(0.0, place, refused=1.0)
    [replica] = routers(agenda, engines)
    return replica


@pytest.fixture
def workers(agenda):
    """Two workers of one router, and one engine."""
    workers = routers(agenda, [VirtualEngine(MODEL, agenda, Random(0), replicas=2)], workers=2)
    share(workers, agenda)
    return workers


def send(replica: Replica, output: int = 3) -> VirtualRequest:
    """Send a request, now; it raises if it ends twice."""

    def done(request: VirtualRequest, now: float) -> None:
        assert request.ended is None
        request.ended = now

    now = replica.agenda.now
    request = VirtualRequest(0, 0, prompt=100, output=output, issued=now, done=done)
    replica.send(request, now)
    return request


def test_the_third_engine_is_tried_after_a_back_off(replica, agenda):
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
        engine.faults = FaultRates(0.0, 0)
    agenda.run_while(lambda: request.ended is None, until=10.0)
    assert request.is_good
    assert sum(replica.served) == 1


def test_a_router_stopped_during_a_back_off_makes_no_further_attempt(replica, agenda):
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


def test_a_stream_is_not_timed_while_its_client_does_not_read_or_catches_up(replica, agenda):
    engine = replica.engines[0]
    engine.faults = FaultRates(0.0, 0)
    speed = replica.members[0].speed
    request = send(replica, output=200)
    agenda.run_while(lambda: request.first is None, until=1.0)

    def counts() -> bool:
        """Whether it is an open stream, whose tokens come."""
        before, ends = speed.counts.counter.tokens, agenda.now + 0.1
        agenda.at(ends, lambda _: None)
        agenda.run_while(lambda: agenda.now < ends, until=5.0)
        came: bool = speed.counts.counter.tokens > before
        assert came == (speed.counts.open == 1) == (speed.counts.streams == 1)
        return came

    assert counts()
    replica.stop_reading(Unread(agenda.now, 0, 1.0), agenda.now)
    assert not counts()
    replica.sweep(agenda.now)
    replica.sweep(agenda.now)
    assert not counts()
    agenda.run_while(lambda: agenda.now < 1.5, until=5.0)
    replica.sweep(agenda.now)
    assert not counts()
    replica.sweep(agenda.now)
    assert counts()
    agenda.run_while(lambda: request.ended is None, until=10.0)
    assert request.is_good
    assert (speed.counts.open, speed.counts.streams) == (0, 0)


def test_a_worker_knows_the_requests_of_the_others_at_once_and_their_measurements(workers, agenda):
    one, other = workers
    request = send(one, output=200)
    assert [each.members[0].view.in_flight for each in workers] == [1, 1]
    for worker in workers:
        agenda.every(TICK_SECONDS, TICK_SECONDS, worker.tick)
    agenda.run_while(lambda: agenda.now < 2.0, until=3.0)
    speed = other.members[0].speed
    assert speed.counts.open == 0
    assert speed.counts.all_open == 1
    assert speed.per_token == pytest.approx(one.members[0].speed.per_token, rel=0.1)
    one.restart(agenda.now)
    assert request.ended == agenda.now
    assert [each.members[0].view.in_flight for each in workers] == [0, 0]


def test_workers_learn_probe_results_and_refused_connections(workers, agenda):
    leader, other = workers
    engine = leader.engines[0]
    engine.is_up = False

    def pass_on() -> list[bool]:
        ends = agenda.now + 2 * PEER_SECONDS
        agenda.at(ends, lambda _: None)
        agenda.run_while(lambda: agenda.now < ends, until=10.0)
        return [each.members[0].health.is_up for each in workers]

    for _ in range(3):
        send(other)
    assert pass_on() == [False, False]
    engine.is_up = True
    for _ in range(3):
        leader.probe(0, agenda.now)
    assert pass_on() == [True, True]
    leader.scrape(0, agenda.now)
    pass_on()
    assert other.members[0].scrapes.gauges is not None


def test_workers_learn_of_ejections(agenda):
    engines = [VirtualEngine(MODEL, agenda, Random(place), replicas=2) for place in range(3)]
    one, other = workers = routers(agenda, engines, workers=2)
    share(workers, agenda)
    engines[0].faults = FaultRates(0.0, 0, failed=1.0)
    for _ in range(8):  # the others keep theirs: it has the fewest
        send(one)
    one.tick(agenda.now)
    ends = agenda.now + 2 * PEER_SECONDS
    agenda.at(ends, lambda _: None)
    agenda.run_while(lambda: agenda.now < ends, until=1.0)
    assert [each.members[0].exclusion for each in (one, other)] == [Exclusion.EJECTED] * 2
