"""What may be taken with an API key, and when more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import LimitReached
from router.core.limits.key_limits import NO_LIMITS, KeyLimits, KeyRows, KeyUsage, KeyUsageTable
from router.core.shared_memory import HEAD, SharedRecord


def lets_in(usage: KeyUsage, now: float, tokens: int = 1, *, is_stream: bool = False) -> bool:
    """Whether a request is let in."""
    try:
        usage.enter(tokens, now, is_stream=is_stream)
    except LimitReached:
        return False
    return True


def refused(usage: KeyUsage, now: float, *, is_stream: bool = False) -> LimitReached:
    """The error of a request that is not let in."""
    with pytest.raises(LimitReached) as caught:
        usage.enter(1, now, is_stream=is_stream)
    return caught.value


def test_without_limits_anything_is_let_in() -> None:
    usage = KeyUsage(NO_LIMITS)
    assert all(lets_in(usage, 0.0, 10**9, is_stream=True) for _ in range(1000))


def test_a_minutes_requests_may_come_at_once_and_then_at_their_rate() -> None:
    usage = KeyUsage(KeyLimits(requests=60.0))
    assert [lets_in(usage, 5.0) for _ in range(61)] == [True] * 60 + [False]
    assert lets_in(usage, 6.0)
    assert not lets_in(usage, 6.0)
    assert sum(lets_in(usage, 1000.0) for _ in range(100)) == 60


def test_a_share_of_less_than_one_request_a_minute_is_kept_too() -> None:
    usage = KeyUsage(KeyLimits(requests=0.25))
    assert [lets_in(usage, now) for now in (0.0, 1.0, 239.0, 241.0)] == [True, False, False, True]


def test_a_request_of_more_than_a_minutes_tokens_is_let_in_and_paid_before_the_next() -> None:
    usage = KeyUsage(KeyLimits(tokens=100.0))
    assert lets_in(usage, 0.0, 300)
    error = refused(usage, 0.0)
    assert error.retry_after == 121
    assert error.message == "This API key has used up its tokens per minute."
    assert error.limit == "tokens"
    assert usage.header_lines(0.0) == (
        b"x-ratelimit-limit-tokens: 100\r\n"
        b"x-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: 180s\r\n"
    )
    assert not lets_in(usage, 119.0)
    assert lets_in(usage, 121.0)


def test_refused_requests_charge_no_limit() -> None:
    usage = KeyUsage(KeyLimits(requests=2.0, tokens=10.0, streams=1))
    assert lets_in(usage, 0.0, 20, is_stream=True)
    for _ in range(10):
        refused(usage, 0.0)
        refused(usage, 0.0, is_stream=True)
    assert usage.streams == 1
    usage.leave(0, 0.0, is_stream=True)
    assert lets_in(usage, 70.0)


def test_streams_are_counted_until_they_end_and_other_requests_are_not() -> None:
    usage = KeyUsage(KeyLimits(streams=2))
    assert [lets_in(usage, 0.0, is_stream=True) for _ in range(3)] == [True, True, False]
    assert refused(usage, 0.0, is_stream=True).retry_after == 1
    assert lets_in(usage, 0.0)
    usage.leave(0, 0.0, is_stream=True)
    assert lets_in(usage, 0.0, is_stream=True)


def test_answers_have_remaining_and_reset_of_each_limit_per_minute() -> None:
    usage = KeyUsage(KeyLimits(requests=60.0, tokens=1000.0, streams=1))
    assert lets_in(usage, 0.0, 250)
    assert usage.header_lines(0.0) == (
        b"x-ratelimit-limit-requests: 60\r\n"
        b"x-ratelimit-remaining-requests: 59\r\nx-ratelimit-reset-requests: 1s\r\n"
        b"x-ratelimit-limit-tokens: 1000\r\n"
        b"x-ratelimit-remaining-tokens: 750\r\nx-ratelimit-reset-tokens: 15s\r\n"
    )
    assert b"remaining-tokens: 1000\r\nx-ratelimit-reset-tokens: 0s" in usage.header_lines(20.0)
    assert KeyUsage(KeyLimits(streams=1)).header_lines(0.0) == b""


def test_the_remaining_allowance_never_exceeds_the_limit() -> None:
    lines = KeyUsage(KeyLimits(tokens=900_000_000.0)).header_lines(0.0)
    assert b"remaining-tokens: 900000000\r\n" in lines


def test_limits_that_change_hold_from_the_next_request_on() -> None:
    usage = KeyUsage(KeyLimits(requests=10.0, streams=1))
    assert lets_in(usage, 0.0, is_stream=True)
    usage.configure(KeyLimits(requests=5.0, streams=2))
    assert [lets_in(usage, 0.0, is_stream=True) for _ in range(2)] == [True, False]
    assert sum(lets_in(usage, 0.0) for _ in range(9)) == 3  # a tenth of it was taken
    usage.configure(NO_LIMITS)
    assert lets_in(usage, 0.0, is_stream=True)


def test_limits_need_a_name() -> None:
    assert KeyLimits(60.0, None, 5).kinds == ("requests", "streams")
    assert NO_LIMITS.kinds == ()


def test_each_process_allows_its_share() -> None:
    assert KeyLimits(60.0, 10.0, 5).share(4) == KeyLimits(15.0, 2.5, 2)
    assert NO_LIMITS.share(4) == NO_LIMITS


@given(st.floats(1, 1e4), st.lists(st.tuples(st.floats(0, 5), st.integers(0, 1000)), max_size=80))
def test_no_more_than_a_minutes_worth_and_one_request_is_ahead_of_the_rate(
    per_minute: float, came: list[tuple[float, int]]
) -> None:
    usage = KeyUsage(KeyLimits(tokens=per_minute))
    now, taken = 0.0, 0
    for passed, tokens in came:
        now += passed
        if lets_in(usage, now, tokens):
            assert taken < per_minute * (1 + now / 60) + 1e-6
            taken += tokens


def test_the_answers_tokens_are_taken_at_its_end() -> None:
    usage = KeyUsage(KeyLimits(tokens=60.0, streams=1))
    assert lets_in(usage, 0.0, 10)
    usage.leave(80, 0.0, is_stream=False)
    assert refused(usage, 0.0).retry_after == 31
    assert lets_in(usage, 31.0, is_stream=True)  # the other one was no stream
    assert usage.streams == 1


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
def test_several_processes_admit_as_many_as_one(
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


def test_a_dead_process_frees_its_streams_and_keeps_its_token_charges() -> None:
    shared = table()
    limits = KeyLimits(requests=2.0, streams=2)
    usages = [KeyUsage(limits, shared.cells(1, number)) for number in range(3)]
    assert lets_in(usages[0], 0.0, is_stream=True)
    assert lets_in(usages[1], 0.0, is_stream=True)
    shared.clear_streams(1)
    assert usages[2].streams == 1
    assert not lets_in(usages[2], 0.0)
    assert lets_in(KeyUsage(limits, shared.cells(1, 1)), 31.0)


def test_shared_limits_include_existing_streams() -> None:
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
