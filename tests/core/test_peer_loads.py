"""What replicas tell each other: sums are exact, reports are read with care, silence is noticed."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from router.core import peer_loads
from router.core.ledger import Ledger
from router.core.peer_loads import (
    MAX_REPORT_BYTES,
    MAX_SIBLINGS,
    STALE_SECONDS,
    PeerBoard,
    PeerReport,
    decode,
    encode,
)
from router.core.values import Endpoint, Role
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
    ledger.peers.hear(report("a", 1, d0=(2, 300)), 0.0)
    ledger.peers.hear(report("b", 1, d0=(1, 0), d1=(5, 50)), 0.0)
    load = ledger.load(D0)
    assert (load.requests, load.tokens, load.pending) == (4, 100, 400)
    assert (load.own.requests, load.own.pending) == (1, 100)
    assert (ledger.known(D0), ledger.in_flight(D0), ledger.tokens(D0)) == (4, 1, 100)
    assert (ledger.total(), ledger.peers.requests(D0), ledger.peers.requests(P0)) == (1, 3, 0)
    lease.release()
    assert ledger.known(D0) == 3


def test_an_engine_that_joins_later_has_what_was_told_of_it_before() -> None:
    board = PeerBoard("me")
    board.hear(report("a", 1, d1=(7, 70)), 0.0)
    assert Ledger(peers=board).load(D1).requests == 7


def test_an_engine_that_leaves_takes_its_sum_along() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    assert ledger.peers is not None
    ledger.load(D0)
    ledger.peers.hear(report("a", 1, d0=(2, 3)), 0.0)
    ledger.forget(D0)
    assert ledger.peers.requests(D0) == 0
    assert ledger.load(D0).requests == 2


def test_another_engine_at_the_address_has_the_siblings_requests_too() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    assert ledger.peers is not None
    ledger.lease(D0, 1)
    ledger.peers.hear(report("a", 1, d0=(2, 3)), 0.0)
    load = ledger.renew(D0)
    assert (load.requests, load.own.requests) == (2, 0)


def test_its_own_report_is_not_counted() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    assert ledger.peers is not None
    assert not ledger.peers.hear(report("me", 1, d0=(2, 3)), 0.0)
    assert ledger.load(D0).requests == 0


def test_a_report_that_was_overtaken_changes_nothing() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    assert ledger.peers is not None
    ledger.load(D0)
    ledger.peers.hear(report("a", 2, d0=(2, 0)), 0.0)
    assert ledger.peers.hear(report("a", 1, d0=(9, 0)), 0.0)
    assert ledger.known(D0) == 2


def test_a_sibling_that_is_silent_is_forgotten() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    board = ledger.peers
    assert board is not None
    ledger.load(D0)
    board.hear(report("a", 1, d0=(2, 0)), 0.0)
    board.hear(report("b", 1, d0=(1, 0)), 1.0)
    assert board.siblings(1.5) == {"a": (1.5, 2), "b": (0.5, 1)}
    assert board.tick(STALE_SECONDS) == []
    assert board.tick(STALE_SECONDS + 0.1) == ["a"]
    assert ledger.known(D0) == 1


def test_no_more_siblings_are_kept_than_the_bound() -> None:
    ledger = Ledger(peers=PeerBoard("me"))
    assert ledger.peers is not None
    ledger.load(D0)
    for number in range(MAX_SIBLINGS + 5):
        ledger.peers.hear(report(f"r{number}", 1, d0=(1, 0)), 0.0)
    assert ledger.known(D0) == MAX_SIBLINGS


class Replicas(RuleBasedStateMachine):
    """Whatever is heard, in whatever order: an engine's sum is that of the last reports."""

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
    def hear(self, name: str, loads: dict[Endpoint, tuple[int, int]]) -> None:
        self.number += 1
        told = PeerReport(name, self.number, loads)
        self.board.hear(told, self.now)
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


@given(
    st.dictionaries(
        st.builds(Endpoint, st.text(max_size=40), st.sampled_from(Role)),
        st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
    ),
    st.integers(0, 1 << 40),
)
def test_a_report_comes_across_whole(loads: dict[Endpoint, tuple[int, int]], number: int) -> None:
    told = PeerReport("r", number, loads)
    assert decode(encode(told)) == told


def test_of_too_many_engines_the_busiest_are_told() -> None:
    loads = {Endpoint(f"http://{n:050d}:8000", Role.DECODE): (n, 0) for n in range(1, 1100)}
    data = encode(PeerReport("r", 1, loads))
    assert len(data) <= MAX_REPORT_BYTES
    told = decode(data).loads
    assert 400 < len(told) < len(loads)
    assert min(requests for requests, _ in told.values()) == 1100 - len(told)


@given(st.binary() | st.sampled_from([b"[]", b"1", b"null", b'"x"']))
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it is|must"):
        decode(data)


WRONG: dict[str, list[object]] = {
    "replica": [None, "", "x" * 65, 3],
    "number": [None, -1, True, 1.5, "1", 1 << 60],
    "engines": [
        None,
        [],
        {"d0": [1, 2]},
        {"decode http://d0": [1]},
        {"decode http://d0": {"requests": 1}},
        {"decode http://d0": [-1, 0]},
        {"decode http://d0": [1, "0"]},
        {f"decode http://d{n}": [1, 0] for n in range(peer_loads.MAX_ENGINES + 1)},
    ],
}


@pytest.mark.parametrize(
    ("member", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_report_with_a_mistake_is_refused(member: str, value: object) -> None:
    good = {"replica": "r", "number": 1, "engines": {"decode http://d0": [1, 0]}}
    assert decode(orjson.dumps(good)).loads == {Endpoint("http://d0", Role.DECODE): (1, 0)}
    with pytest.raises(ValueError, match="must"):
        decode(orjson.dumps({**good, member: value}))
