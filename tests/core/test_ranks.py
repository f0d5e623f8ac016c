"""Each data-parallel rank of an engine is an endpoint: named by the engine's URL and its number."""

import pytest

from router.core.events import Probed
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.selection import Selection
from router.core.health import HealthSignal, HealthThresholds, State
from router.core.membership.entry import OPERATOR, Entry, Order, Target
from router.core.membership.roster import Roster
from router.core.urls import split_rank, with_rank
from router.core.values import Endpoint, Gauges, Receiver, Role
from router.core.wire import exposition
from router.core.wire.headers import without
from tests.core.fixtures import D0, D1, P0

PAGE = b"""# HELP vllm:num_requests_running Running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_running{engine="10",model_name="m"} 7.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="10"} 1.0
process_open_fds 9
"""


def rank_of(endpoint: Endpoint, rank: int) -> Endpoint:
    """One rank of an engine."""
    return Endpoint(with_rank(endpoint.url, rank), endpoint.role)


D0_0, D0_1, D0_2 = (rank_of(D0, rank) for rank in range(3))


def named(roster: Roster) -> list[Endpoint]:
    """Who gets new requests."""
    return [e.endpoint for e in roster.entries if e.leaving_since is None and not e.is_draining]


def test_a_rank_is_named_behind_the_url() -> None:
    assert with_rank("http://d0:8000", 3) == "http://d0:8000#3"
    assert split_rank("http://d0:8000#3") == ("http://d0:8000", 3)
    assert split_rank("http://d0:8000") == ("http://d0:8000", None)


@pytest.mark.parametrize("url", ["http://d0#", "http://d0#x", "http://d0#-1", "http://d0#12345"])
def test_invalid_ranks_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="has no rank"):
        split_rank(url)


def test_the_metrics_page_lists_the_ranks() -> None:
    assert exposition.ranks(PAGE) == (0, 1, 10)
    assert exposition.ranks(b"vllm:num_requests_running 3.0\n") == ()


def test_a_page_of_more_ranks_than_any_engine_has_takes_no_rows() -> None:
    line = b'vllm:num_requests_running{engine="%d"} 0.0\n'
    pages = [
        b"".join(line % rank for rank in range(exposition.MAX_RANKS + more)) for more in (0, 1)
    ]
    assert [len(exposition.ranks(page)) for page in pages] == [exposition.MAX_RANKS, 0]


def test_a_rank_has_gauges_of_its_own() -> None:
    one = exposition.read(exposition.of_rank(PAGE, 1))
    assert one == Gauges(running=5, waiting=2, cache_tokens=160, block_tokens=16)
    assert exposition.read(exposition.of_rank(PAGE, 10)).running == 7
    assert exposition.read(PAGE).running == 15


def test_an_engine_with_ranks_is_replaced_by_them() -> None:
    roster = Roster(8, 60.0)
    roster.set_targets("file", [Target(P0), Target(D0, "uid"), Target(D1)], 0.0)
    assert roster.set_ranks(D0.url, (0, 1), 1.0)
    assert named(roster) == [P0, D0_0, D0_1, D1]
    entries = {entry.endpoint: entry for entry in roster.entries}
    assert entries[D0].leaving_since == 1.0
    assert {entries[D0_0].identity, entries[D0_1].identity} == {"uid"}
    assert len({entry.row for entry in roster.entries}) == len(roster.entries)
    assert not roster.set_ranks(D0.url, (0, 1), 2.0)
    assert roster.set_ranks(D0.url, (0, 1, 2), 3.0)
    assert D0_2 in named(roster)
    assert roster.set_ranks(D0.url, (0,), 4.0)
    assert named(roster) == [P0, D0, D1]


def test_ranks_join_and_leave_with_their_engine() -> None:
    roster = Roster(8, 60.0)
    roster.set_targets("file", [Target(D0), Target(D1)], 0.0)
    roster.set_ranks(D0.url, (0, 1), 1.0)
    roster.set_targets("file", [Target(D1)], 2.0)
    assert named(roster) == [D1]
    roster.settle(100.0, lambda row, version: True)
    roster.set_targets("file", [Target(D0), Target(D1)], 101.0)
    assert named(roster) == [D0, D1]


def test_an_order_for_the_engine_is_one_for_its_ranks() -> None:
    roster = Roster(8, 60.0)
    roster.set_targets("file", [Target(D0), Target(D1)], 0.0)
    roster.set_ranks(D0.url, (0, 1), 1.0)
    assert roster.refusal(Order.DRAIN, D0) is None
    roster.obey(Order.DRAIN, D0, 2.0)
    assert named(roster) == [D1]
    roster.obey(Order.UNDRAIN, D0, 3.0)
    assert named(roster) == [D0_0, D0_1, D1]
    roster.obey(Order.REMOVE, D0, 4.0)
    assert named(roster) == [D1]
    roster.obey(Order.ADD, D0, 5.0)
    assert D1 in named(roster)
    assert {split_rank(e.url)[0] for e in named(roster)} == {D0.url, D1.url}


def test_an_order_may_be_for_one_rank() -> None:
    roster = Roster(8, 60.0)
    roster.set_targets("file", [Target(D0)], 0.0)
    roster.set_ranks(D0.url, (0, 1), 1.0)
    roster.obey(Order.DRAIN, D0_1, 2.0)
    assert named(roster) == [D0_0]
    roster.obey(Order.UNDRAIN, D0_1, 3.0)
    roster.obey(Order.REMOVE, D0_0, 4.0)
    assert named(roster) == [D0_1]


def test_ranks_of_an_engine_that_was_added_too_stay_the_same_when_its_source_drops_it() -> None:
    receiver = Receiver("d0", (1,), (2,))
    roster = Roster(8, 60.0)
    roster.set_targets("kubernetes", [Target(D0, "uid", receiver=receiver)], 0.0)
    roster.set_ranks(D0.url, (0, 1), 1.0)
    roster.settle(2.0, lambda row, version: True)
    roster.obey(Order.ADD, D0, 3.0)
    before = roster.entries
    roster.set_targets("kubernetes", [], 4.0)
    assert roster.entries == tuple(entry._replace(source=OPERATOR) for entry in before)


def test_they_stay_the_same_while_another_engine_leaves_their_url() -> None:
    roster = Roster(8, 60.0)
    roster.set_targets("kubernetes", [Target(D0, "old")], 0.0)
    roster.set_ranks(D0.url, (0, 1, 2), 1.0)
    roster.obey(Order.ADD, D0, 2.0)
    roster.set_ranks(D0.url, (0, 1), 3.0)
    roster.set_targets("kubernetes", [Target(D0, "new")], 4.0)
    roster.set_targets("kubernetes", [], 5.0)
    assert {e.endpoint: e.identity for e in roster.entries if e.leaving_since is None} == {
        D0_0: "new",
        D0_1: "new",
    }


def test_a_rank_of_an_engine_that_was_added_may_be_removed_and_added_again() -> None:
    roster = Roster(8, 60.0)
    roster.obey(Order.ADD, D0, 0.0)
    roster.set_ranks(D0.url, (0, 1), 1.0)
    roster.obey(Order.REMOVE, D0_1, 2.0)
    assert named(roster) == [D0_0]
    assert roster.orders() == [(D0_1, Order.REMOVE)]
    roster.obey(Order.ADD, D0_1, 3.0)
    assert named(roster) == [D0_0, D0_1]
    assert roster.orders() == []


def test_another_process_knows_the_ranks_too() -> None:
    roster, other = Roster(8, 60.0), Roster(8, 60.0)
    roster.set_targets("file", [Target(D0)], 0.0)
    roster.set_ranks(D0.url, (0, 1), 1.0)
    other.restore(roster.encode())
    other.set_targets("file", [Target(D0)], 2.0)
    assert named(other) == [D0_0, D0_1]


def test_a_rank_has_its_place_behind_the_url() -> None:
    """An API server for some ranks of an engine accepts their places, not their numbers."""
    roster, other = Roster(8, 60.0), Roster(8, 60.0)
    roster.set_targets("file", [Target(D0), Target(D1)], 0.0)

    def places() -> dict[Endpoint, int | None]:
        return {e.endpoint: e.place for e in roster.entries if e.leaving_since is None}

    d0_3 = rank_of(D0, 3)
    roster.set_ranks(D0.url, (2, 3), 1.0)
    assert places() == {D0_2: 0, d0_3: 1, D1: None}
    other.restore(roster.encode())
    assert other.entries == roster.entries
    roster.obey(Order.REMOVE, D0_2, 2.0)
    assert places() == {d0_3: 1, D1: None}
    roster.obey(Order.ADD, D0_2, 3.0)
    assert roster.set_ranks(D0.url, (1, 2, 3), 4.0)
    assert places() == {D0_1: 0, D0_2: 1, d0_3: 2, D1: None}


def test_a_rank_that_was_added_by_its_name_has_its_place() -> None:
    roster = Roster(8, 60.0)
    roster.obey(Order.ADD, D0_2, 0.0)
    assert [entry.place for entry in roster.entries] == [2]
    assert roster.set_ranks(D0.url, (2, 3), 1.0)
    assert [(entry.endpoint, entry.place) for entry in roster.entries] == [(D0_2, 0)]


def fleet_of(*endpoints: Endpoint) -> Fleet:
    """A fleet in which all are up."""
    fleet = Fleet((), Ledger(), HealthThresholds(), stale_after=5.0)
    fleet.apply([Entry(endpoint, row) for row, endpoint in enumerate(endpoints)], 0.0)
    for endpoint in endpoints:
        card = {"id": "m"}
        fleet.observe(Probed(endpoint, HealthSignal.OK, (card,), version="0.33.0"), 0.0)
    return fleet


def test_ranks_are_as_well_as_their_engine_was() -> None:
    fleet = fleet_of(D0)
    fleet.apply([Entry(D0, 0, leaving_since=1.0), Entry(D0_0, 1), Entry(D0_1, 2)], 1.0)
    member = fleet.member(D0_1)
    assert (member.health.state, member.since, member.version) == (State.UP, 1.0, "0.33.0")
    assert fleet.models.known() == {"m"}
    assert {
        c.endpoint for c in Selection(fleet).candidates(Role.DECODE, "m", frozenset(), 1.0)
    } == {
        D0_0,
        D0_1,
    }


def test_an_engine_is_as_well_as_its_ranks_were() -> None:
    fleet = fleet_of(D0_0, D0_1)
    fleet.apply([Entry(D0, 2)], 1.0)
    assert fleet.member(D0).health.state is State.UP


def test_another_engine_at_the_url_starts_anew() -> None:
    fleet = fleet_of(D0)
    fleet.apply([Entry(D0_0, 1, "another"), Entry(D0_1, 2, "another"), Entry(D1, 3)], 1.0)
    assert fleet.member(D0_0).health.state is State.STARTING
    assert fleet.member(D1).health.state is State.STARTING


def test_a_header_is_taken_out_of_a_block() -> None:
    block = b"a: 1\r\nx-data-parallel-rank: 7\r\nb: x-data-parallel-rank: 8\r\n"
    assert without(block, b"x-data-parallel-rank") == b"a: 1\r\nb: x-data-parallel-rank: 8\r\n"
    assert without(b"a: 1\r\n", b"a") == b""
    assert without(b"a: 1\r\n", b"b") == b"a: 1\r\n"
