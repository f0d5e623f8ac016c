"""Rows that one process writes, all processes read, and its successor continues."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.count_rows import FIRST, HEAD, CountRows, read_rows

SIZES = {b"a": 1, b"b": 1, b"c" * 70: 1, b"d": 15, b"e" * 65: 15}


def memory(size: int = 1 << 14) -> memoryview:
    """Zeros, as shared memory is at first."""
    return memoryview(bytearray(size))


def test_other_processes_read_what_the_owner_has_counted() -> None:
    shared = memory()
    rows = CountRows(shared)
    row = rows.row(b"seconds", 3)
    assert row is not None
    row[0], row[2] = 1.0, 0.5
    assert dict(read_rows(shared)) == {b"seconds": [1.0, 0.0, 0.5]}


def test_a_successor_continues_the_rows() -> None:
    shared = memory()
    for total in (1.0, 2.0):
        row = CountRows(shared).row(b"requests", 1)
        assert row is not None
        row[0] += 1.0
        assert dict(read_rows(shared)) == {b"requests": [total]}


def test_a_row_that_was_dropped_starts_at_zero_and_its_place_is_used_again() -> None:
    shared = memory()
    for number in range(1000):  # would not fit side by side
        rows = CountRows(shared)
        name = b"engine %d" % number
        row = rows.row(name, 15)
        assert row is not None
        assert not any(row)
        row[7] = 1.0
        rows.drop(name)
        assert name not in rows
    assert dict(read_rows(shared)) == {}


def test_rows_without_room_are_none_and_the_others_stay() -> None:
    shared = memory(256)
    rows = CountRows(shared)
    assert rows.row(b"a", 1) is not None
    assert rows.row(b"b", 1) is not None
    assert rows.row(b"c", 1) is None
    assert rows.names() == [name for name, _ in read_rows(shared)] == [b"a", b"b"]


class Replacing:
    """Memory whose owner replaces the row at `place` as soon as its serial number was read."""

    def __init__(self, memory: memoryview, place: int) -> None:
        self._memory = memory
        self._words = memory.cast("q")
        self._place = place

    def cast(self, kind: str) -> Any:
        """Words that change, and numbers."""
        return self if kind == "q" else self._memory.cast("d")

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self._memory[key]
        found = self._words[key]
        if key == self._place:
            self._words[key] += 1
        return found


def test_a_row_that_is_replaced_while_it_is_read_is_left_out() -> None:
    """The name of one row never comes with the numbers of another."""
    shared = memory()
    rows = CountRows(shared)
    for name in (b"a", b"b"):
        rows.row(name, 1)
    replacing: Any = Replacing(shared, FIRST)
    assert [name for name, _ in read_rows(replacing)] == [b"b"]


def test_an_owner_that_is_killed_while_it_adds_a_row_leaves_none() -> None:
    shared = memory()
    rows = CountRows(shared)
    rows.row(b"a", 1)
    end = shared.cast("q")[0]
    shared.cast("q")[end : end + HEAD] = memoryview(bytes(8 * HEAD)).cast("q")
    shared[(end + HEAD) * 8 : (end + HEAD) * 8 + 4] = b"torn"
    assert [name for name, _ in read_rows(shared)] == [b"a"]
    assert CountRows(shared).row(b"b", 1) is not None
    assert [name for name, _ in read_rows(shared)] == [b"a", b"b"]


@pytest.mark.parametrize("restarts", [False, True])
@given(actions=st.lists(st.tuples(st.sampled_from(sorted(SIZES)), st.booleans())))
def test_any_history_ends_in_what_was_counted_since_each_row_was_added(
    restarts: bool, actions: list[tuple[bytes, bool]]
) -> None:
    shared = memory()
    rows, expected = CountRows(shared), dict[bytes, list[float]]()
    for name, is_dropped in actions:
        if restarts:
            rows = CountRows(shared)
        if not is_dropped:
            row = rows.row(name, SIZES[name])
            assert row is not None
            row[SIZES[name] - 1] += 1.0
            expected.setdefault(name, [0.0] * SIZES[name])[-1] += 1.0
        elif name in rows:
            rows.drop(name)
            del expected[name]
        assert dict(read_rows(shared)) == expected


def test_each_engine_takes_some_memory() -> None:
    assert CountRows.size(2) - CountRows.size(1) == CountRows.size(1) - CountRows.size(0) > 0
