"""How many may wait in one of several processes."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.limits.queue_share import QueueShare
from router.core.shared.shared_table import SharedTable


def shares(processes: int) -> list[QueueShare]:
    """Those of processes that share a table."""
    table = SharedTable(memoryview(bytearray(SharedTable.size(processes, 1))), processes, 1)
    return [table.column(number).queue_share for number in range(processes)]


def test_one_process_has_the_whole_queue() -> None:
    share = QueueShare()
    share.publish(5)
    assert (share.limit(7), share.limit(3)) == (7, 3)


def test_what_others_leave_free_may_be_used_by_one() -> None:
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
def test_when_each_keeps_to_what_it_may_have_all_keep_to_the_limit(
    size: int, waiting: list[int]
) -> None:
    made = shares(len(waiting))
    for share, number in zip(made, waiting, strict=True):
        share.publish(number)
    for number, share in enumerate(made):
        waiting[number] = min(waiting[number], share.limit(size))
        share.publish(waiting[number])
    assert sum(waiting) <= size
