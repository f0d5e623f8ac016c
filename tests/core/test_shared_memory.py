"""Joint admissions of processes, and whose turn it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.shared_memory import (
    HEAD,
    WAIT_SECONDS,
    Count,
    QueueShare,
    SharedRecord,
)
from router.core.shared_table import SharedTable
from router.core.values import Endpoint, Role

D0 = Endpoint("http://d0", Role.DECODE)


def table(columns: int = 3) -> SharedTable:
    made = SharedTable(memoryview(bytearray(SharedTable.size(columns, 2))), columns, 2)
    for number in range(columns):
        made.column(number).place({D0: 0})
    return made


def of_all(shared: SharedTable) -> list[Count]:
    return [shared.column(number).admitted for number in range(shared.columns)]


def of_an_engine(shared: SharedTable) -> list[Count]:
    return [shared.column(number).load(D0).own.admitted for number in range(shared.columns)]


def test_one_process_has_the_whole_limit() -> None:
    count = Count()
    count.add(3)
    count.wait(5.0)
    count.stop_waiting()
    assert (count.own, count.room(4, 0.0), count.room(2, 0.0)) == (3, 1, -1)


@pytest.mark.parametrize("counts_of", [of_all, of_an_engine])
def test_an_admission_reduces_the_room_of_all_processes(counts_of) -> None:
    one, two, three = counts_of(table())
    one.add(2)
    two.add(1)
    assert (one.own, two.own, three.own) == (2, 1, 0)
    assert [count.room(4, 0.0) for count in (one, two, three)] == [1] * 3
    one.add(-1)
    assert three.room(4, 0.0) == 2


@pytest.mark.parametrize("counts_of", [of_all, of_an_engine])
def test_the_process_with_the_fewest_requests_admits_first(counts_of) -> None:
    counts = counts_of(table())
    one, two, three = counts
    one.add(2)
    two.add(1)
    three.wait(10.0)
    assert [count for count in counts if count.room(4, 10.0) > 0] == [three]
    three.add(1)
    assert [count.room(5, 10.0) for count in counts] == [1] * 3
    two.wait(10.0)
    assert [count for count in counts if count.room(5, 10.0) > 0] == [two]
    two.stop_waiting()
    assert [count.room(5, 10.0) for count in counts] == [1] * 3


@pytest.mark.parametrize("counts_of", [of_all, of_an_engine])
def test_waiting_processes_get_places_up_to_the_others(counts_of) -> None:
    """And one more, for it has waited: with more places all continue at once."""
    one, two, three = counts_of(table())
    one.add(2)
    two.add(1)
    three.wait(10.0)
    assert [count.room(9, 10.0) for count in (one, two, three)] == [3, 4, 6]
    two.wait(10.0)
    assert [count.room(9, 10.0) for count in (one, two, three)] == [1, 5, 6]


@pytest.mark.parametrize("counts_of", [of_all, of_an_engine])
def test_of_those_with_as_many_the_one_goes_first_that_has_waited_for_longer(counts_of) -> None:
    """Also with a single place: the process that freed it is the last to get it again."""
    counts = counts_of(table())
    one, two, three = counts
    three.wait(10.0)
    one.wait(10.01)
    three.wait(10.02)
    two.wait(10.02)
    for turn in (three, one, two):
        assert [count for count in counts if count.room(1, 10.05) > 0] == [turn]
        turn.add(1)
        assert not any(count.room(1, 10.05) > 0 for count in counts)
        turn.add(-1)
        turn.wait(10.03)


def test_a_hung_process_delays_no_other() -> None:
    one, two, _ = of_all(table())
    one.add(1)
    two.wait(10.0)
    assert one.room(2, 10.0) <= 0
    assert one.room(2, 10.01 + WAIT_SECONDS) == 1


@pytest.mark.parametrize("counts_of", [of_all, of_an_engine])
def test_a_process_that_has_ended_holds_and_waits_for_nothing(counts_of) -> None:
    shared = table()
    one, two, _ = counts_of(shared)
    one.add(1)
    two.add(3)
    shared.clear(1)
    assert one.room(4, 10.0) == 3
    two.wait(10.0)
    assert one.room(2, 10.0) <= 0
    shared.clear(1)
    assert one.room(2, 10.0) == 1


def test_the_row_of_an_engine_is_kept_for_those_let_in_there() -> None:
    shared = table()
    [count, *_] = of_an_engine(shared)
    count.add(1)
    assert not shared.is_idle(0, 0)
    count.add(-1)
    count.wait(10.0)
    assert shared.is_idle(0, 0)


def shares(processes: int) -> list[QueueShare]:
    """Those of processes that share a table."""
    table = SharedTable(memoryview(bytearray(SharedTable.size(processes, 1))), processes, 1)
    return [table.column(number).queue_share for number in range(processes)]


def test_one_process_has_the_whole_queue() -> None:
    share = QueueShare()
    share.publish(5)
    assert (share.limit(7), share.limit(3)) == (7, 3)


def test_one_process_may_use_the_free_room_of_others() -> None:
    one, two, three = shares(3)
    assert [share.limit(9) for share in (one, two, three)] == [9, 9, 9]
    one.publish(4)
    assert [share.limit(9) for share in (one, two, three)] == [9, 5, 5]


def test_each_has_its_share_whatever_others_have_waiting() -> None:
    one, two, three = shares(3)
    one.publish(9)
    assert [share.limit(9) for share in (one, two, three)] == [9, 3, 3]
    two.publish(2)
    assert [share.limit(9) for share in (one, two, three)] == [7, 3, 3]


def test_a_process_that_has_ended_leaves_its_share() -> None:
    memory = memoryview(bytearray(SharedTable.size(2, 1)))
    table = SharedTable(memory, 2, 1)
    table.column(0).queue_share.publish(8)
    table.clear(0)
    assert table.column(1).queue_share.limit(8) == 8


@given(st.integers(0, 50), st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_processes_within_their_allowance_stay_within_the_limit(
    size: int, waiting: list[int]
) -> None:
    made = shares(len(waiting))
    for share, number in zip(made, waiting, strict=True):
        share.publish(number)
    for number, share in enumerate(made):
        waiting[number] = min(waiting[number], share.limit(size))
        share.publish(waiting[number])
    assert sum(waiting) <= size


def memory(capacity: int = 64) -> memoryview:
    """Room for two texts of so many bytes."""
    return memoryview(bytearray(HEAD + 2 * capacity))


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_a_reader_finds_the_last_write(texts: list[bytes]) -> None:
    shared = memory()
    writer, reader = SharedRecord(shared), SharedRecord(shared)
    assert reader.read() == (0, b"")
    for number, text in enumerate(texts, 1):
        writer.write(text)
        assert (reader.version, reader.read()) == (number, (number, text))


def test_oversized_batches_are_refused_without_effect() -> None:
    shared = SharedRecord(memory(8))
    shared.write(b"a")
    with pytest.raises(ValueError, match="room for 8"):
        shared.write(b"a" * 9)
    assert shared.read() == (1, b"a")


def test_a_writer_that_is_killed_before_the_end_leaves_the_version_before() -> None:
    shared = SharedRecord(memory())
    shared.write(b"whole")
    shared._buffers[0][:4] = b"half"
    assert shared.read() == (1, b"whole")


def test_a_reader_that_sees_the_version_before_the_text_reads_nothing() -> None:
    """Processors may reorder writes; the checksum detects it."""
    shared = SharedRecord(memory())
    shared.write(b"one")
    shared._numbers[0] = 2
    shared._numbers[1] = 3
    assert shared.read() is None
