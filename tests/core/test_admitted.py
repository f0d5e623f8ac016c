"""What processes have let in together, and whose turn it is."""

import pytest

from router.core.admitted import WAIT_SECONDS, LocalCount, SharedCount
from router.core.shared.shared_table import SharedTable
from router.core.values import Endpoint, Role

D0 = Endpoint("http://d0", Role.DECODE)


def table(columns: int = 3) -> SharedTable:
    made = SharedTable(memoryview(bytearray(SharedTable.size(columns, 2))), columns, 2)
    for number in range(columns):
        made.column(number).place({D0: 0})
    return made


def of_all(shared: SharedTable) -> list[SharedCount]:
    return [shared.column(number).admitted for number in range(shared.columns)]


def of_an_engine(shared: SharedTable) -> list[SharedCount]:
    counts = [shared.column(number).load(D0).own.admitted for number in range(shared.columns)]
    return [count for count in counts if isinstance(count, SharedCount)]


def test_one_process_has_the_whole_limit() -> None:
    count = LocalCount()
    count.add(3)
    count.wait(5.0)
    count.stop_waiting()
    assert (count.own, count.room(4, 0.0), count.room(2, 0.0)) == (3, 1, -1)


@pytest.mark.parametrize("counts_of", [of_all, of_an_engine])
def test_what_one_process_lets_in_all_have_less(counts_of) -> None:
    one, two, three = counts_of(table())
    one.add(2)
    two.add(1)
    assert (one.own, two.own, three.own) == (2, 1, 0)
    assert [count.room(4, 0.0) for count in (one, two, three)] == [1] * 3
    one.add(-1)
    assert three.room(4, 0.0) == 2


@pytest.mark.parametrize("counts_of", [of_all, of_an_engine])
def test_who_has_fewest_goes_first_while_it_waits(counts_of) -> None:
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
def test_who_waits_is_left_what_brings_it_up_to_the_others(counts_of) -> None:
    """And one more, for it has waited: with more places than that all go on at once."""
    one, two, three = counts_of(table())
    one.add(2)
    two.add(1)
    three.wait(10.0)
    assert [count.room(9, 10.0) for count in (one, two, three)] == [3, 4, 6]
    two.wait(10.0)
    assert [count.room(9, 10.0) for count in (one, two, three)] == [1, 5, 6]


@pytest.mark.parametrize("counts_of", [of_all, of_an_engine])
def test_of_those_with_as_many_the_one_goes_first_that_has_waited_for_longer(counts_of) -> None:
    """With one place for all, too: who has just given it back is the last to have it again."""
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


def test_a_process_that_hangs_keeps_nobody_waiting() -> None:
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
