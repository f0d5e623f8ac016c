"""The fleet by sources and orders, and the cleanup of removed engines."""

import pytest

from router.core.membership.entry import EVERY, OPERATOR, Entry, Order, Target
from router.core.membership.roster import Roster
from router.core.values import Endpoint, Receiver, Role
from tests.core.fixtures import D0, D1, D2, P0

LEAVE_SECONDS = 60.0


def roster_of(*targets: Target, rows: int = 8) -> Roster:
    """A roster with what one source names."""
    roster = Roster(rows, LEAVE_SECONDS)
    roster.set_targets("file", targets, 0.0)
    return roster


def busy(row: int, version: int) -> bool:
    """All rows have requests."""
    return False


def idle(row: int, version: int) -> bool:
    """No row has."""
    return True


def named(roster: Roster) -> list[Endpoint]:
    """Who is in it and does not leave."""
    return [entry.endpoint for entry in roster.entries if entry.leaving_since is None]


def entry_of(roster: Roster, endpoint: Endpoint) -> Entry:
    """An engine's entry."""
    return next(entry for entry in roster.entries if entry.endpoint == endpoint)


def test_each_engine_has_a_row_of_its_own() -> None:
    roster = roster_of(Target(P0), Target(D0), Target(D1))
    assert [(e.endpoint, e.row, e.source) for e in roster.entries] == [
        (P0, 0, "file"),
        (D0, 1, "file"),
        (D1, 2, "file"),
    ]


def test_an_order_for_all_engines_applies_to_those_that_join_and_to_other_identities() -> None:
    roster = roster_of(Target(P0), Target(D0))
    pool = Endpoint(EVERY, Role.DECODE)
    assert roster.refusal(Order.DRAIN, pool) is None
    roster.obey(Order.DRAIN, pool, 1.0)
    roster.set_targets("file", [Target(P0), Target(D0, "another"), Target(D1)], 2.0)
    assert [e.endpoint for e in roster.entries if e.is_draining] == [D0, D1]
    follower = Roster(8, LEAVE_SECONDS)
    follower.restore(roster.encode())
    assert follower.orders() == [(pool, Order.DRAIN)]
    follower.obey(Order.UNDRAIN, pool, 3.0)
    assert not any(e.is_draining for e in follower.entries if e.leaving_since is None)


def test_unchanged_entries_stay_identical() -> None:
    roster = roster_of(Target(D0), Target(D1), Target(D2))
    before = {entry.endpoint: entry for entry in roster.entries}
    roster.set_targets("file", [Target(D0), Target(D1, is_draining=True), Target(D2)], 1.0)
    after = {entry.endpoint: entry for entry in roster.entries}
    assert [after[each] is before[each] for each in (D0, D1, D2)] == [True, False, True]


def test_where_kv_events_are_published_follows_the_source() -> None:
    roster = roster_of(Target(D0, kv_events_port=5557))
    assert entry_of(roster, D0).kv_events_port == 5557
    heir = Roster(8, LEAVE_SECONDS)
    heir.restore(roster.encode())
    assert entry_of(heir, D0).kv_events_port == 5557
    heir.set_targets("file", (Target(D0),), 1.0)
    assert entry_of(heir, D0).kv_events_port is None


def test_the_zone_follows_the_source() -> None:
    roster = roster_of(Target(D0, zone="a"))
    assert entry_of(roster, D0).zone == "a"
    heir = Roster(8, LEAVE_SECONDS)
    heir.restore(roster.encode())
    assert entry_of(heir, D0).zone == "a"
    heir.set_targets("file", (Target(D0, zone="b"),), 1.0)
    assert entry_of(heir, D0).zone == "b"
    heir.obey(Order.ADD, D0, 1.0)
    heir.set_targets("file", [], 2.0)
    assert entry_of(heir, D0).zone == "b"


def test_kv_event_addresses_of_unlisted_engines_kept_by_order_are_known() -> None:
    roster = roster_of(Target(D0, kv_events_port=5557))
    roster.obey(Order.ADD, D0, 1.0)
    roster.set_targets("file", [], 2.0)
    assert entry_of(roster, D0).kv_events_port == 5557


def test_the_next_leader_has_the_rows_of_the_shared_tables_whatever_its_settings() -> None:
    heir = Roster(16, LEAVE_SECONDS)
    heir.restore(roster_of().encode())
    assert heir.rows == 8
    engines = [Target(Endpoint(f"http://d{number}", Role.DECODE)) for number in range(16)]
    heir.set_targets("file", engines, 1.0)
    assert (max(entry.row for entry in heir.entries), heir.left_out) == (7, 8)


def test_the_same_set_again_changes_nothing() -> None:
    roster = roster_of(Target(D0))
    version = roster.version
    assert not roster.set_targets("file", [Target(D0)], 1.0)
    assert roster.version == version


def test_an_unlisted_engine_leaves_after_its_last_request() -> None:
    roster = roster_of(Target(D0), Target(D1))
    assert roster.set_targets("file", [Target(D1)], 5.0)
    left = entry_of(roster, D0)
    assert (left.leaving_since, left.changed_in) == (5.0, roster.version)
    assert not roster.settle(6.0, busy)
    assert roster.settle(7.0, lambda row, version: (row, version) == (0, left.changed_in))
    assert named(roster) == [D1] == [entry.endpoint for entry in roster.entries]


def test_or_after_a_time_out_with_requests() -> None:
    roster = roster_of(Target(D0))
    roster.set_targets("file", [], 5.0)
    assert not roster.settle(5.0 + LEAVE_SECONDS - 0.1, busy)
    assert roster.settle(5.0 + LEAVE_SECONDS, busy)
    assert roster.entries == ()


def test_its_row_is_used_again_only_when_it_is_idle() -> None:
    roster = roster_of(Target(D0), rows=1)
    roster.set_targets("file", [], 0.0)
    roster.settle(LEAVE_SECONDS, busy)
    roster.set_targets("file", [Target(D1)], LEAVE_SECONDS)
    assert (roster.entries, roster.left_out) == ((), 1)
    roster.settle(LEAVE_SECONDS, idle)
    roster.set_targets("file", [Target(D1)], LEAVE_SECONDS)
    assert (named(roster), roster.left_out) == ([D1], 0)


def test_an_engine_that_is_named_again_in_time_stays_the_one_that_it_was() -> None:
    roster = roster_of(Target(D0, "uid"))
    before = entry_of(roster, D0)
    roster.set_targets("file", [], 5.0)
    roster.set_targets("file", [Target(D0, "uid")], 6.0)
    assert entry_of(roster, D0) == before


def test_another_identity_is_another_engine_at_once() -> None:
    roster = roster_of(Target(D0, "old"))
    roster.set_targets("file", [Target(D0, "new")], 5.0)
    [entry] = roster.entries
    assert (entry.identity, entry.row, entry.leaving_since) == ("new", 1, None)


def test_a_skipped_engine_joins_when_there_is_room() -> None:
    roster = roster_of(Target(D0, "old"), rows=1)
    assert roster.set_targets("file", [Target(D0, "new")], 5.0)
    assert (named(roster), roster.left_out) == ([], 1)
    assert roster.settle(6.0, idle)  # the one before has left
    assert roster.settle(7.0, idle)  # its row is free
    assert entry_of(roster, D0).identity == "new"
    assert (named(roster), roster.left_out) == ([D0], 0)


def test_of_a_source_that_names_far_too_many_no_more_is_kept_than_there_is_room_for() -> None:
    def named_by_dns(number: int) -> list[Target]:
        return [Target(Endpoint(f"http://e{each}", Role.DECODE)) for each in range(number)]

    roster = roster_of(*named_by_dns(100_000))
    assert (len(named(roster)), roster.left_out) == (8, 99_992)
    assert len(roster.encode()) < 4096
    roster.set_targets("file", named_by_dns(9), 1.0)
    assert (len(named(roster)), roster.left_out) == (8, 1)


def test_a_source_may_drain_an_engine() -> None:
    roster = roster_of(Target(D0, is_draining=True))
    assert entry_of(roster, D0).is_draining
    roster.set_targets("file", [Target(D0)], 1.0)
    assert not entry_of(roster, D0).is_draining


def test_all_processes_learn_kv_receivers() -> None:
    before, after = Receiver("d0", (1,), (2,)), Receiver("d0", (3,), (4,))
    roster = roster_of(Target(D0, receiver=before))
    roster.set_targets("file", [Target(D0, receiver=after)], 1.0)
    other = Roster(8, LEAVE_SECONDS)
    other.restore(roster.encode())
    assert entry_of(other, D0).receiver == after
    other.obey(Order.ADD, D0, 2.0)
    other.set_targets("file", [], 3.0)
    assert entry_of(other, D0).receiver == after, "who stays by order stays as it was"


def test_of_two_sources_that_name_an_engine_the_first_counts_and_one_is_enough() -> None:
    roster = roster_of(Target(D0))
    roster.set_targets("dns", [Target(D0), Target(D1)], 1.0)
    assert [entry.source for entry in roster.entries] == ["file", "dns"]
    roster.set_targets("file", [], 2.0)
    assert entry_of(roster, D0).source == "dns"
    assert entry_of(roster, D0).leaving_since is None


def test_the_last_list_of_a_source_survives_the_process() -> None:
    roster = roster_of(Target(P0), Target(D0))
    roster.set_targets("file", (Target(D0),), 1.0)
    heir = Roster(8, LEAVE_SECONDS)
    heir.restore(roster.encode())
    assert heir.named_by("file") == (Target(D0),)
    assert heir.named_by("dns") is None


def test_a_name_that_is_too_long_is_skipped() -> None:
    long = Endpoint(f"http://{'a' * 2000}", Role.DECODE)
    roster = roster_of(Target(long), Target(D0, "x" * 2000), Target(D1))
    assert named(roster) == [D1]
    assert roster.left_out == 2
    assert roster.refusal(Order.ADD, long)


def test_an_engine_added_by_an_operator_stays() -> None:
    roster = roster_of()
    roster.obey(Order.ADD, D0, 0.0)
    assert [(e.endpoint, e.source) for e in roster.entries] == [(D0, OPERATOR)]
    roster.set_targets("file", [Target(D1)], 1.0)
    assert named(roster) == [D1, D0]
    roster.set_targets("file", [], 2.0)
    assert named(roster) == [D0]


def test_an_engine_that_was_added_too_stays_the_same_when_its_source_drops_it() -> None:
    roster = roster_of(Target(D0, "uid"))
    roster.obey(Order.ADD, D0, 0.0)
    before = entry_of(roster, D0)
    roster.set_targets("file", [], 1.0)
    assert entry_of(roster, D0) == before._replace(source=OPERATOR)


def test_a_drain_order_overrides_the_source() -> None:
    roster = roster_of(Target(D0))
    roster.obey(Order.DRAIN, D0, 0.0)
    assert entry_of(roster, D0).is_draining
    roster.set_targets("file", [Target(D0), Target(D1)], 1.0)
    assert entry_of(roster, D0).is_draining
    assert roster.orders() == [(D0, Order.DRAIN)]
    roster.obey(Order.UNDRAIN, D0, 2.0)
    assert not entry_of(roster, D0).is_draining
    assert roster.orders() == []


def test_an_order_to_move_also_hands_the_streams_over() -> None:
    roster = roster_of(Target(D0))
    roster.obey(Order.MOVE, D0, 0.0)
    entry = entry_of(roster, D0)
    assert (entry.is_draining, entry.hands_over) == (True, True)
    copy = Roster(8, 60.0)
    copy.restore(roster.encode())
    assert copy.entries == roster.entries
    roster.obey(Order.DRAIN, D0, 1.0)
    entry = entry_of(roster, D0)
    assert (entry.is_draining, entry.hands_over) == (True, False)
    roster.obey(Order.MOVE, D0, 2.0)
    roster.obey(Order.UNDRAIN, D0, 3.0)
    entry = entry_of(roster, D0)
    assert (entry.is_draining, entry.hands_over) == (False, False)


def test_an_engine_that_its_source_lets_hand_over_its_streams_drains_too() -> None:
    roster = roster_of(Target(D0, is_draining=True, hands_over=True))
    entry = entry_of(roster, D0)
    assert (entry.is_draining, entry.hands_over) == (True, True)


def test_it_outlives_a_source_that_forgets_the_engine_for_a_moment() -> None:
    roster = roster_of(Target(D0, "uid"))
    roster.obey(Order.DRAIN, D0, 0.0)
    roster.set_targets("file", [], 1.0)
    roster.settle(2.0, idle)
    assert roster.refusal(Order.UNDRAIN, D0) is None
    roster.set_targets("file", [Target(D0, "uid")], 3.0)
    assert entry_of(roster, D0).is_draining


def test_it_is_not_for_another_engine_at_that_url() -> None:
    roster = roster_of(Target(D0, "old"))
    roster.obey(Order.DRAIN, D0, 0.0)
    roster.set_targets("file", [Target(D0, "new")], 1.0)
    assert not entry_of(roster, D0).is_draining


def test_a_removed_engine_is_unused_until_added() -> None:
    roster = roster_of(Target(D0), Target(D1))
    roster.obey(Order.REMOVE, D0, 0.0)
    assert named(roster) == [D1]
    roster.set_targets("file", [Target(D0), Target(D2)], 1.0)
    assert named(roster) == [D2]
    roster.settle(2.0, idle)
    roster.obey(Order.ADD, D0, 3.0)
    assert set(named(roster)) == {D0, D2}
    assert roster.orders() == []


def test_adding_does_not_undrain() -> None:
    roster = roster_of(Target(D0))
    roster.obey(Order.DRAIN, D0, 0.0)
    roster.obey(Order.ADD, D0, 1.0)
    assert entry_of(roster, D0).is_draining


def test_undraining_does_not_restore_a_removed_engine() -> None:
    roster = roster_of(Target(D0))
    roster.obey(Order.REMOVE, D0, 0.0)
    roster.obey(Order.UNDRAIN, D0, 1.0)
    roster.obey(Order.UNDRAIN, D1, 1.0)
    assert named(roster) == []


def test_an_added_and_removed_engine_leaves_no_order() -> None:
    roster = roster_of()
    roster.obey(Order.ADD, D0, 0.0)
    roster.obey(Order.REMOVE, D0, 1.0)
    assert (named(roster), roster.orders()) == ([], [])


def test_orders_for_unknown_engines_are_refused() -> None:
    roster = roster_of(Target(D0))
    for order in (Order.DRAIN, Order.UNDRAIN, Order.REMOVE):
        assert roster.refusal(order, D0) is None
        assert "no such engine" in (roster.refusal(order, D1) or "")


def test_a_removed_engine_cannot_be_drained() -> None:
    roster = roster_of(Target(D0))
    roster.obey(Order.REMOVE, D0, 0.0)
    assert "add it first" in (roster.refusal(Order.DRAIN, D0) or "")
    assert roster.refusal(Order.ADD, D0) is None


def test_another_engine_at_the_url_of_one_that_was_removed_can_be_drained() -> None:
    roster = roster_of(Target(D0, "old"))
    roster.obey(Order.REMOVE, D0, 0.0)
    roster.set_targets("file", [Target(D0, "new")], 1.0)
    assert roster.refusal(Order.DRAIN, D0) is None
    roster.obey(Order.DRAIN, D0, 2.0)
    entry = entry_of(roster, D0)
    assert (entry.identity, entry.is_draining, entry.leaving_since) == ("new", True, None)


@pytest.mark.parametrize("order", [Order.DRAIN, Order.REMOVE])
def test_repeated_order_for_absent_engine_is_for_the_same_one(order: Order) -> None:
    roster = roster_of(Target(D0, "uid"))
    for _ in range(2):
        assert roster.refusal(order, D0) is None
        roster.obey(order, D0, 0.0)
        roster.set_targets("file", [], 1.0)
        roster.settle(1.0, idle)
        roster.settle(1.0, idle)
        roster.set_targets("file", [Target(D0, "uid")], 2.0)
        assert all(entry.is_draining for entry in roster.entries)
        roster.set_targets("file", [], 3.0)
        roster.settle(3.0, idle)


def test_a_removed_engine_does_not_come_back_under_the_identity_that_another_source_gives() -> None:
    roster = roster_of(Target(D0, "uid"))
    roster.set_targets("dns", [Target(D0)], 0.0)
    roster.obey(Order.REMOVE, D0, 0.0)
    assert named(roster) == []


def test_a_full_fleet_takes_no_more() -> None:
    roster = roster_of(Target(D0), rows=1)
    assert roster.refusal(Order.ADD, D0) is None
    assert "1 endpoints already" in (roster.refusal(Order.ADD, D1) or "")
    roster.set_targets("file", [Target(D0), Target(D1), Target(D2)], 1.0)
    assert (named(roster), roster.left_out) == ([D0], 2)


def test_old_orders_are_forgotten_before_they_fill_the_memory() -> None:
    roster = roster_of(rows=2)
    for number in range(5):
        endpoint = Endpoint(f"http://e{number}", Role.DECODE)
        roster.set_targets("file", [Target(endpoint)], 0.0)
        roster.obey(Order.DRAIN, endpoint, 0.0)
        roster.set_targets("file", [], 0.0)
        roster.settle(0.0, idle)
        roster.settle(0.0, idle)
    assert [endpoint.url for endpoint, _ in roster.orders()] == ["http://e3", "http://e4"]


def test_a_worker_gets_the_confirmation_of_its_order() -> None:
    roster = roster_of()
    version = roster.version
    assert not roster.has_obeyed(3, 17)
    roster.acknowledge(3, 17)
    assert roster.has_obeyed(3, 17)
    assert not roster.has_obeyed(3, 18)
    assert roster.version == version + 1
