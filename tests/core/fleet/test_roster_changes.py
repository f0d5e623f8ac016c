"""Who is in the fleet: engines that come, stay, drain and go."""

import math
from dataclasses import replace
from typing import Any

import pytest

from router.core.events import Ejected
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.selection import Selection
from router.core.health import HealthThresholds, State
from router.core.judge.verdict import Exclusion, ExclusionConfig
from router.core.membership.entry import Entry
from router.core.replicas import PeerBoard, PeerReport
from router.core.values import Endpoint, Role
from tests.core.fixtures import D0, D1, P0, P1
from tests.core.fleets import card, eject, entries, fleet_of, fleet_up, taking, up


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
    assert not fleet.member(P0).health.is_up
    assert fleet.member(both).health.is_up


def test_a_fleet_is_ready_when_a_decode_engine_is_up() -> None:
    assert not fleet_of(D0).is_ready
    assert not fleet_up(P0).is_ready
    assert fleet_up(D0).is_ready


def test_another_configuration_of_exclusion_holds_from_now_on() -> None:
    fleet = fleet_up(D0, D1)
    outliers = replace(ExclusionConfig().outliers, consecutive=0)
    fleet.configure(ExclusionConfig(outliers=outliers))
    eject(fleet, D0)
    assert taking(fleet, Role.DECODE) == [D0, D1]
    fleet.configure(ExclusionConfig())
    eject(fleet, D0)
    assert taking(fleet, Role.DECODE) == [D1]


def test_the_engines_limit_can_be_stated() -> None:
    fleet = Fleet([D0, D1], Ledger(), HealthThresholds(), 3.0, max_num_seqs={D0: 48}.get)
    fleet.tick(0.0)
    assert fleet.member(D0).view.slots == 48
    assert fleet.member(D1).capacity.slots == math.inf


def test_remaining_engines_keep_their_measurements() -> None:
    fleet = fleet_up(D0, D1)
    member = fleet.member(D1)
    lease = Selection(fleet).lease(D1, 10)
    fleet.apply([Entry(D1, 1)], 5.0)
    assert [it.endpoint for it in fleet] == [D1]
    assert fleet.member(D1) is member
    assert taking(fleet, Role.DECODE) == [D1]
    assert fleet.ledger.in_flight(D1) == 1
    lease.release()


def test_a_joining_engine_is_probed_before_use_and_its_models_count() -> None:
    fleet = fleet_of(D0)
    fleet.observe(up(D0, card("a")), 0.0)
    assert fleet.models.known() == {"a"}
    fleet.apply(entries(D0, D1), 5.0)
    assert taking(fleet, Role.DECODE) == [D0]
    assert fleet.member(D1).joined_at == 5.0
    assert fleet.member(D1).ordinal == 1
    fleet.observe(up(D1, card("b")), 6.0)
    assert fleet.models.known() == {"a", "b"}
    fleet.apply([Entry(D1, 1)], 7.0)
    assert fleet.models.known() == {"b"}


@pytest.mark.parametrize("members", [{"is_draining": True}, {"leaving_since": 1.0}])
def test_drained_engines_get_no_requests_and_are_unusable(members: dict[str, Any]) -> None:
    fleet = fleet_up(D0)
    fleet.observe(up(D0, card("m")), 0.0)
    fleet.apply(entries(D0, **members), 1.0)
    member = fleet.member(D0)
    assert (member.is_drained, member.drained_since, member.in_rotation) == (True, 1.0, False)
    assert taking(fleet, Role.DECODE) == []
    assert not fleet.is_ready
    assert not fleet.pools[Role.DECODE].undrained
    assert fleet.models.cards() == {}
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
    lease = Selection(fleet).lease(D0, 10)
    fleet.apply([entry, Entry(D1, 1)], 5.0)
    member = fleet.member(D0)
    assert member is not old
    assert (member.health.state, fleet.ledger.in_flight(D0)) == (State.STARTING, 0)
    lease.release()
    assert (member.view.load.requests, old.view.load.requests) == (0, 0)


def test_drained_engines_count_in_no_share_of_the_pool() -> None:
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


def test_prefixes_are_reported_to_a_joining_process_too() -> None:
    fleet = Fleet([D0], Ledger(), HealthThresholds(), 5.0, shares_prefixes=True)
    fleet.apply(entries(D0, D1), 1.0)
    assert fleet.member(D1).prompts.sent.new_prompts == []


def test_siblings_prompts_count_with_an_engines_speed_also_where_it_joins_later() -> None:
    board = PeerBoard("me")
    fleet = Fleet([D0], Ledger(peers=board), HealthThresholds(), 5.0)
    fleet.apply(entries(D0, D1), 1.0)
    for number, pending in enumerate((700, 200), start=1):
        board.receive(PeerReport("a", number, {D0: (1, pending), D1: (1, pending)}), 1.0)
    fleet.tick(1.25)
    for speed in (fleet.member(D0).speed, fleet.member(D1).speed):
        assert (speed.counts.counted.computed, speed.counts.pending_elsewhere) == (500, 200)


def test_evictions_of_one_engine_may_be_requested_at_another_of_its_role() -> None:
    fleet = fleet_of(D0, D1, P0)
    first, other, prefill = (fleet.member(each).prompts.sent.evictions for each in (D0, D1, P0))
    assert first is other is not prefill


def test_models_that_no_decode_engine_lists_are_one() -> None:
    fleet = fleet_of(D0, P0)
    assert fleet.models.listed("a") == fleet.models.listed("b") != "a"
    fleet.observe(up(D0, card("a")), 0.0)
    fleet.observe(up(P0, card("b")), 0.0)
    assert fleet.models.listed("a") == "a"
    assert fleet.models.listed("b") == fleet.models.listed("c") != "c"
    assert fleet.models.listed(None) is None
