"""What is taken with API keys by several processes: as one process would count it."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.limits.key_limits import KeyLimits, KeyUsage
from router.core.limits.key_usage_table import KeyRows, KeyUsageTable
from router.core.limits.shared_record import HEAD, SharedRecord
from tests.core.limits.test_key_limits import lets_in


def table(columns: int = 3, rows: int = 4) -> KeyUsageTable:
    """A table in memory of its own."""
    return KeyUsageTable(memoryview(bytearray(KeyUsageTable.size(columns, rows))), columns, rows)


@given(
    st.builds(
        KeyLimits,
        st.one_of(st.none(), st.floats(0.5, 100)),
        st.one_of(st.none(), st.floats(1, 1e4)),
        st.one_of(st.none(), st.integers(1, 3)),
    ),
    st.floats(0, 1e7),
    st.lists(
        st.tuples(st.floats(0, 50), st.integers(0, 2), st.integers(0, 1000), st.booleans()),
        max_size=60,
    ),
)
def test_several_processes_let_in_what_one_would(
    limits: KeyLimits, now: float, came: list[tuple[float, int, int, bool]]
) -> None:
    shared = table()
    usages = [KeyUsage(limits, shared.cells(2, number)) for number in range(3)]
    alone = KeyUsage(limits)
    for passed, number, tokens, is_stream in came:
        now += passed
        assert usages[number].header_lines(now) == alone.header_lines(now)
        is_in = lets_in(usages[number], now, tokens, is_stream=is_stream)
        assert is_in == lets_in(alone, now, tokens, is_stream=is_stream)
        if is_in and tokens % 2:
            for usage in (usages[number], alone):
                usage.leave(tokens, now, is_stream=is_stream)
    assert [usage.streams for usage in usages] == [alone.streams] * 3


def test_names_do_not_touch_each_other() -> None:
    shared = table(rows=2)
    one, other = (KeyUsage(KeyLimits(1.0, 1.0, 1), shared.cells(row, 0)) for row in range(2))
    assert lets_in(one, 0.0, is_stream=True)
    assert (one.streams, other.streams) == (1, 0)
    assert lets_in(other, 0.0, is_stream=True)


def test_of_a_process_that_dies_the_streams_have_ended_and_what_it_let_in_was_taken() -> None:
    shared = table()
    limits = KeyLimits(requests=2.0, streams=2)
    usages = [KeyUsage(limits, shared.cells(1, number)) for number in range(3)]
    assert lets_in(usages[0], 0.0, is_stream=True)
    assert lets_in(usages[1], 0.0, is_stream=True)
    shared.clear_streams(1)
    assert usages[2].streams == 1
    assert not lets_in(usages[2], 0.0)
    assert lets_in(KeyUsage(limits, shared.cells(1, 1)), 31.0)


def test_who_comes_to_share_brings_its_streams_along() -> None:
    usage = KeyUsage(KeyLimits(requests=1.0))
    assert lets_in(usage, 0.0, is_stream=True)
    usage.share(KeyLimits(requests=2.0), table().cells(0, 1))
    assert usage.is_shared
    assert usage.streams == 1
    usage.leave(0, 0.0, is_stream=True)
    assert usage.streams == 0
    assert [lets_in(usage, 0.0) for _ in range(3)] == [True, True, False]


def rows(shared: KeyUsageTable) -> list[KeyRows]:
    """Those of each process; the first is the leader's."""
    names = SharedRecord(memoryview(bytearray(HEAD + 200)))
    return [KeyRows(shared, names, number) for number in range(shared.columns)]


def test_the_leader_gives_rows_and_all_find_them() -> None:
    leader, other, _ = rows(table())
    assert leader.processes == 3
    assert other.find(["a"]) == {}
    given = leader.find(["a", "b"])
    assert given.keys() == {"a", "b"}
    given["b"].tokens[0] = 7.0
    found = other.find(["b", "c"])
    assert found.keys() == {"b"}
    assert (found["b"].mine, list(found["b"].tokens)) == (1, [7.0, 0.0, 0.0])


def test_a_name_keeps_its_row_and_there_are_only_so_many() -> None:
    leader, other, _ = rows(table(rows=3))
    leader.find(["a", "b"])["a"].requests[0] = 5.0
    assert leader.find(["c", "d"]).keys() == {"c"}
    assert leader.find(["e"]) == {}
    assert other.find(["a"])["a"].requests[0] == 5.0


def test_while_names_are_being_written_none_is_found() -> None:
    names = SharedRecord(memoryview(bytearray(HEAD + 200)))
    shared = table()
    KeyRows(shared, names, 0).find(["a"])
    names._numbers[2] = 3  # not yet the text that belongs to it
    assert KeyRows(shared, names, 1).find(["a"]) == {}
