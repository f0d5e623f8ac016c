"""The load reported by replicas: sums are exact, silence is noticed."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from router.core.fleet.ledger import Ledger
from router.core.replicas.peer_loads import (
    MAX_SIBLINGS,
    STALE_SECONDS,
    PeerBoard,
    seconds_between_reports,
)
from router.core.replicas.peer_messages import PeerReport
from router.core.values import Endpoint
from tests.core.fixtures import D0, D1, P0

NAMES = ("a", "b", "c")
ENGINES = (D0, D1, P0)


def report(replica: str, number: int, **loads: tuple[int, int]) -> PeerReport:
    """A report by the engines' short names."""
    by_name = {"d0": D0, "d1": D1, "p0": P0}
    return PeerReport(replica, number, {by_name[name]: load for name, load in loads.items()})


def test_a_load_is_its_own_and_the_siblings_requests() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    assert ledger.peers is not None
    lease = ledger.lease(D0, 100, pending=100)
    ledger.peers.receive(report("a", 1, d0=(2, 300)), 0.0)
    ledger.peers.receive(report("b", 1, d0=(1, 0), d1=(5, 50)), 0.0)
    load = ledger.load(D0)
    assert (load.requests, load.tokens, load.pending) == (4, 100, 400)
    assert (load.own.requests, load.own.pending) == (1, 100)
    assert (ledger.known(D0), ledger.in_flight(D0), ledger.tokens(D0)) == (4, 1, 100)
    assert (ledger.total(), ledger.peers.requests(D0), ledger.peers.requests(P0)) == (1, 3, 0)
    lease.release()
    assert ledger.known(D0) == 3


def test_siblings_get_only_this_routers_own_requests() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    assert ledger.peers is not None
    ledger.peers.receive(report("a", 1, d0=(2, 300), p0=(1, 1)), 0.0)
    ledger.lease(D0, 100, pending=70)
    ledger.lease(D1, 5).release()
    assert ledger.own() == {D0: (1, 70)}
    ledger.forget(D0)
    assert ledger.own() == {}


def test_observers_get_each_change() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    assert ledger.peers is not None
    changes: list[int] = []
    lease = ledger.lease(D0, 1)
    ledger.peers.on_change = lambda: changes.append(ledger.in_flight(D0))
    ledger.peers.receive(report("a", 1, d0=(2, 300)), 0.0)
    lease.release()
    ledger.lease(D0, 1)
    assert changes == [0, 1]


@pytest.mark.parametrize(("engines", "seconds"), [(0, 0.01), (8, 0.01), (1000, 0.1)])
def test_many_engines_are_reported_less_often(engines: int, seconds: float) -> None:
    assert seconds_between_reports(engines) == pytest.approx(seconds)


def test_an_engine_that_joins_later_has_its_earlier_reports() -> None:
    board = PeerBoard("me")
    board.receive(report("a", 1, d1=(7, 70)), 0.0)
    assert Ledger(peers=board).load(D1).requests == 7


def test_an_engine_that_leaves_takes_its_sum_along() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    assert ledger.peers is not None
    ledger.load(D0)
    ledger.peers.receive(report("a", 1, d0=(2, 3)), 0.0)
    ledger.forget(D0)
    assert ledger.peers.requests(D0) == 0
    assert ledger.load(D0).requests == 2


def test_another_engine_at_the_address_has_the_siblings_requests_too() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    assert ledger.peers is not None
    ledger.lease(D0, 1)
    ledger.peers.receive(report("a", 1, d0=(2, 3)), 0.0)
    load = ledger.renew(D0)
    assert (load.requests, load.own.requests) == (2, 0)


def test_its_own_report_is_not_counted() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    assert ledger.peers is not None
    assert not ledger.peers.receive(report("me", 1, d0=(2, 3)), 0.0)
    assert ledger.load(D0).requests == 0


def test_a_report_that_was_overtaken_changes_nothing() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    assert ledger.peers is not None
    ledger.load(D0)
    ledger.peers.receive(report("a", 2, d0=(2, 0)), 0.0)
    assert ledger.peers.receive(report("a", 1, d0=(9, 0)), 0.0)
    assert ledger.known(D0) == 2


def test_prompts_that_are_no_longer_pending_have_been_computed() -> None:
    board = PeerBoard("me")
    there = board.siblings_on(D0)
    computed = []
    for sibling, number, loads in (
        ("a", 1, {"d0": (2, 300)}),
        ("b", 1, {"d0": (1, 50), "d1": (1, 70)}),
        ("a", 2, {"d0": (2, 500)}),  # another prompt
        ("a", 3, {"d0": (2, 200)}),
        ("a", 2, {"d0": (2, 0)}),  # overtaken
        ("b", 2, {}),
    ):
        board.receive(report(sibling, number, **loads), 0.0)
        computed.append(there.take_computed())
    assert computed == [0, 0, 0, 300, 0, 50]
    assert board.tick(STALE_SECONDS + 0.1) == ["a", "b"]
    assert (there.pending, there.take_computed()) == (0, 0)  # nothing is known of what "a" had


def test_a_sibling_that_is_silent_is_forgotten() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    board = ledger.peers
    assert board is not None
    ledger.load(D0)
    board.receive(report("a", 1, d0=(2, 0)), 0.0)
    board.receive(report("b", 1, d0=(1, 0)), 1.0)
    assert board.siblings(1.5) == {"a": (1.5, 2), "b": (0.5, 1)}
    assert board.tick(STALE_SECONDS) == []
    assert board.tick(STALE_SECONDS + 0.1) == ["a"]
    assert ledger.known(D0) == 1


def test_no_more_siblings_are_kept_than_the_bound() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    assert ledger.peers is not None
    ledger.load(D0)
    for number in range(MAX_SIBLINGS + 5):
        ledger.peers.receive(report(f"r{number}", 1, d0=(1, 0)), 0.0)
    assert ledger.known(D0) == MAX_SIBLINGS


class Replicas(RuleBasedStateMachine):
    """An engine's sum is that of the last reports, in any order."""

    @initialize()
    def begin(self) -> None:
        self.board = PeerBoard("me")
        self.now = 0.0
        self.number = 0
        self.last: dict[str, tuple[float, PeerReport]] = {}
        self.loads = {e: Ledger(peers=self.board).load(e) for e in ENGINES}

    @rule(
        name=st.sampled_from(NAMES),
        loads=st.dictionaries(st.sampled_from(ENGINES), st.tuples(st.integers(0, 9), st.just(1))),
    )
    def receive(self, name: str, loads: dict[Endpoint, tuple[int, int]]) -> None:
        self.number += 1
        told = PeerReport(name, self.number, loads)
        self.board.receive(told, self.now)
        self.last[name] = (self.now, told)

    @rule(seconds=st.floats(0.0, 3.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        oldest = self.now - STALE_SECONDS
        gone = {name for name, (at, _) in self.last.items() if at < oldest}
        assert set(self.board.tick(self.now)) == gone
        self.last = {name: each for name, each in self.last.items() if name not in gone}

    @invariant()
    def sums_are_exact(self) -> None:
        for endpoint, load in self.loads.items():
            told = [each.loads.get(endpoint, (0, 0)) for _, each in self.last.values()]
            assert load.requests == sum(requests for requests, _ in told)
            assert load.pending == sum(pending for _, pending in told)


TestReplicas = Replicas.TestCase
