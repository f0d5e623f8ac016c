"""One table for several processes: all read all of it, each writes its own column."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.fleet.ledger import Lease, Ledger
from router.core.fleet.leg_timer import LegTimer
from router.core.shared_table import SharedTable
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.speed.speed_totals import SpeedTotals
from tests.core.fixtures import D0, D1, P0

ENDPOINTS = (P0, D0, D1)


def table(columns: int = 3) -> SharedTable:
    """A board in memory of its own."""
    memory = bytearray(SharedTable.size(columns, len(ENDPOINTS)))
    shared = SharedTable(memoryview(memory), columns, len(ENDPOINTS))
    shared.rows = {endpoint: row for row, endpoint in enumerate(ENDPOINTS)}
    return shared


def test_a_lease_of_one_process_is_seen_by_all() -> None:
    shared = table()
    ledgers = [Ledger(shared.column(number).load) for number in range(3)]
    lease = ledgers[1].lease(D0, 100, 100)
    for ledger in ledgers:
        assert (ledger.in_flight(D0), ledger.tokens(D0), ledger.load(D0).pending) == (1, 100, 100)
        assert (ledger.in_flight(D1), ledger.in_flight(P0)) == (0, 0)
    lease.release()
    for ledger in ledgers:
        assert (ledger.in_flight(D0), ledger.tokens(D0), ledger.load(D0).pending) == (0, 0, 0)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(ENDPOINTS), st.integers(0, 9), st.integers(0, 99)
        )
    ),
    st.randoms(use_true_random=False),
    st.integers(0, 3),
)
def test_the_sums_are_exact_and_a_crash_loses_only_its_own_counts(steps, rng, crashed) -> None:
    shared = table(4)
    ledgers = [Ledger(shared.column(number).load) for number in range(4)]
    held: list[tuple[int, Lease]] = []
    for number, endpoint, action, tokens in steps:
        if action < 6 or not held:
            held.append((number, ledgers[number].lease(endpoint, tokens, tokens // 2)))
        else:
            held.pop(rng.randrange(len(held)))[1].release()
    shared.clear(crashed)
    left = [lease for number, lease in held if number != crashed]
    for ledger in ledgers:
        for endpoint in ENDPOINTS:
            there = [lease for lease in left if lease.endpoint == endpoint]
            assert ledger.in_flight(endpoint) == len(there)
            assert ledger.tokens(endpoint) == sum(lease.tokens for lease in there)
            assert ledger.load(endpoint).pending == sum(lease.tokens // 2 for lease in there)


def test_a_prompt_that_is_computed_is_pending_nowhere() -> None:
    shared = table()
    ledgers = [Ledger(shared.column(number).load) for number in range(2)]
    lease = ledgers[0].lease(D0, 100, 100)
    ledgers[1].lease(D0, 7, 7)
    lease.prefilled()
    for ledger in ledgers:
        load = ledger.load(D0)
        assert (load.requests, load.tokens, load.pending) == (2, 107, 7)


def test_processes_and_connections_are_known_to_all() -> None:
    shared = table()
    shared.register(0, 100)
    shared.register(2, 102)
    assert shared.pids() == [100, 102]
    one, other = shared.column(0), shared.column(2)
    one.set_connections(D0, 5, 2)
    other.set_connections(D0, 7, 1)
    assert one.connections(D0) == other.connections(D0) == (12, 3)
    assert one.connections(D1) == (0, 0)
    other.beat()
    other.beat()
    assert [shared.heartbeat(number) for number in range(3)] == [0, 0, 2]
    one.beat()
    shared.clear(0)
    assert (shared.heartbeat(0), shared.heartbeat(2)) == (0, 2)
    assert shared.pids() == [102]
    assert one.connections(D0) == (7, 1)


def ticked(speeds: list[SpeedEstimator], now: float) -> None:
    """A tick of every process, one after the other."""
    for speed in speeds:
        speed.counts.sync(now)
        speed.tick(now)


def test_the_speed_that_one_process_sees_reaches_the_others() -> None:
    shared = table(2)
    busy, quiet = (SpeedEstimator(shared.column(number).speed(D0)) for number in range(2))
    other_engine = SpeedEstimator(shared.column(1).speed(D1))
    LegTimer(busy.counts, None, 10, 0.0, tracks_first_token=True).first_token(0.0)
    for step in range(1, 9):
        busy.counts.counter.tokens += 5
        ticked([busy, quiet, other_engine], step * 0.25)
    assert busy.per_token == pytest.approx(0.05)
    assert quiet.per_token == pytest.approx(0.05)
    assert (quiet.counts.all_streams, quiet.counts.all_open, quiet.counts.streams) == (1, 1, 0)
    assert quiet.counts.last_token_at == 2.0
    assert other_engine.per_token is None


def test_two_processes_see_the_speed_of_both() -> None:
    shared = table(2)
    speeds = [SpeedEstimator(shared.column(number).speed(D0)) for number in range(2)]
    for speed in speeds:
        LegTimer(speed.counts, None, 10, 0.0, tracks_first_token=True).first_token(0.0)
    for step in range(1, 13):
        speeds[0].counts.counter.tokens += 5
        speeds[1].counts.counter.tokens += 15
        ticked(speeds, step * 0.25)
    for speed in speeds:  # two streams, 20 tokens in each quarter of a second
        assert speed.per_token == pytest.approx(0.025, rel=0.1)


def test_a_prefill_that_one_process_saw_counts_for_all() -> None:
    shared = table(2)
    one, other = (SpeedEstimator(shared.column(number).speed(P0)) for number in range(2))
    LegTimer(one.counts, None, 936, 0.0, tracks_first_token=True).unary_answer(1.0)
    ticked([one, other], 0.25)
    assert other.per_prompt_token == pytest.approx(0.001)


def test_silence_is_everybodys() -> None:
    """A process whose own streams just began does not hide that others wait."""
    shared = table(2)
    one, other = (SpeedEstimator(shared.column(number).speed(D0)) for number in range(2))
    LegTimer(one.counts, None, 10, 1.0, tracks_first_token=True)
    one.counts.sync(1.25)
    other.counts.sync(1.25)
    LegTimer(other.counts, None, 10, 9.0, tracks_first_token=True)
    assert other.counts.busy_since == 1.0
    assert other.counts.oldest_waiting == (1.0, 10)


def test_the_age_of_the_last_token_comes_from_the_process_that_got_it() -> None:
    """The others see a stall no later, however late they learn of it."""
    shared = table(2)
    one, other = (SpeedEstimator(shared.column(number).speed(D0)) for number in range(2))
    for speed in (one, other):
        LegTimer(speed.counts, None, 10, 0.0, tracks_first_token=True).first_token(0.0)
    one.counts.counter.tokens = 5
    ticked([one], 0.25)
    ticked([other], 0.45)
    assert (one.counts.last_token_at, other.counts.last_token_at) == (0.25, 0.25)


def test_a_process_that_starts_restarted_counts_from_nothing() -> None:
    shared = table(2)
    one, other = (SpeedEstimator(shared.column(number).speed(D0)) for number in range(2))
    one.counts.counter.tokens = 1000
    ticked([one, other], 0.25)
    shared.clear(0)
    restarted = SpeedEstimator(shared.column(0).speed(D0))
    other.counts.sync(0.5)
    assert other.counts.counter.tokens == 0
    restarted.counts.counter.tokens = 7
    restarted.counts.sync(0.75)
    other.counts.sync(0.75)
    assert (other.counts.counter.tokens, restarted.counts.counter.tokens) == (7, 7)


def test_earlier_content_is_not_new() -> None:
    shared = table(2)
    one = SpeedEstimator(shared.column(0).speed(D0))
    one.counts.counter.tokens = 1000
    one.counts.sync(0.25)
    late = SpeedEstimator(shared.column(1).speed(D0))
    late.counts.sync(0.5)
    assert late.counts.counter.tokens == 0


def test_a_row_shown_is_a_row_seen() -> None:
    shared = table(3)
    speeds = [shared.column(number).speed(D1) for number in range(3)]
    sums = SpeedTotals(*map(float, range(1, 10)))
    speeds[0].publish(
        sums._replace(last_token_at=8.0, busy_since=5.0, waiting_since=3.0, waiting_work=30.0)
    )
    speeds[1].publish(
        sums._replace(last_token_at=7.0, busy_since=6.0, waiting_since=2.0, waiting_work=20.0)
    )
    moments = SpeedTotals(last_token_at=8.0, busy_since=6.0, waiting_since=2.0, waiting_work=20.0)
    doubled = (2.0 * number for number in sums[:9])
    assert speeds[2].others() == moments._replace(
        **dict(zip(SpeedTotals._fields, doubled, strict=False))
    )
    # Counts stay; present requests are still present.
    assert speeds[2].others() == moments._replace(streams=sums.streams * 2, open=sums.open * 2)


def test_a_request_that_another_process_overtook_shows_no_queue() -> None:
    shared = table(2)
    one, other = (SpeedEstimator(shared.column(number).speed(D0)) for number in range(2))
    LegTimer(one.counts, None, 10, 1.0, tracks_first_token=True)
    ticked([one, other], 1.25)
    assert list(other.counts.oldest_waiting or ()) == [1.0, 10]
    LegTimer(other.counts, None, 10, 2.0, tracks_first_token=True).first_token(2.1)
    for now in (2.25, 2.5):
        ticked([one, other], now)
    assert [one.counts.oldest_waiting, other.counts.oldest_waiting] == [None, None]


def test_a_process_has_begun_with_its_first_heartbeat_also_in_place_of_another() -> None:
    table = SharedTable(memoryview(bytearray(SharedTable.size(2, 1))), 2, 1)
    table.register(1, 100)
    assert table.begun() == 0
    for _ in range(2):
        table.beat(1)
        assert table.begun() == 1
    table.clear(1)
    assert table.begun() == 0
    table.register(1, 200)
    assert table.begun() == 1
    table.beat(1)
    assert table.begun() == 2


def test_a_process_that_takes_the_place_of_another_is_a_restart() -> None:
    size = SharedTable.size(2, 1)
    table = SharedTable(memoryview(bytearray(size)), 2, 1)
    for number in (0, 1):
        table.register(number, 100 + number)
    assert (table.restarts(), table.pid(1), table.ended_cpu()) == (0, 101, 0.0)
    table.clear(1)
    assert table.pid(1) == 0
    table.ended_cpu_seconds[0] += 2.5
    table.register(1, 200)
    assert table.ended_cpu() == 2.5
    assert (table.restarts(), table.pids()) == (1, [100, 200])


def test_a_row_is_idle_when_all_have_seen_the_version_and_none_has_requests_there() -> None:
    shared = table(columns=3)
    columns = [shared.column(number) for number in range(2)]
    for number in range(2):
        shared.register(number, 100 + number)
        shared.saw(number, 4)
    assert shared.is_idle(0, 4)
    assert not shared.is_idle(0, 5)
    shared.saw(0, 5)
    assert not shared.is_idle(0, 5)
    shared.saw(1, 6)
    assert shared.is_idle(0, 5)
    lease = Ledger(columns[1].load).lease(D0, 10)
    assert not shared.is_idle(shared.rows[D0], 5)
    assert shared.is_idle(shared.rows[D1], 5)
    lease.release()
    assert shared.is_idle(shared.rows[D0], 5)


def test_a_process_that_has_ended_holds_no_row() -> None:
    shared = table(columns=2)
    shared.register(0, 100)
    shared.register(1, 101)
    shared.saw(0, 1)
    Ledger(shared.column(1).load).lease(D0, 10)
    assert not shared.is_idle(shared.rows[D0], 1)
    shared.clear(1)
    assert shared.is_idle(shared.rows[D0], 1)


def test_an_engine_in_a_row_that_was_used_begins_at_zero() -> None:
    """Each process clears its own part when it learns of the engine."""
    memory = bytearray(SharedTable.size(2, 2))
    tables = [SharedTable(memoryview(memory), 2, 2) for _ in range(2)]
    columns = [each.column(number) for number, each in enumerate(tables)]
    for column in columns:
        column.place({D0: 0, D1: 1})
    for column in columns:
        column.set_connections(D0, 3, 1)
        column.speed(D0).publish(SpeedTotals(tokens=100.0, streams=2.0))
    kept = Ledger(columns[0].load)
    lease = kept.lease(D1, 10)
    columns[0].place({P0: 0, D1: 1})
    assert columns[0].connections(P0) == (3, 1)
    speed = columns[0].speed(P0)
    columns[1].place({P0: 0, D1: 1})
    assert columns[1].connections(P0) == (0, 0)
    columns[1].speed(P0).publish(SpeedTotals(tokens=5.0))
    assert speed.others().streams == 0.0
    assert kept.in_flight(D1) == 1  # its row has not changed
    lease.release()
