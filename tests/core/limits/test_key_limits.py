"""What may be taken with an API key, and when more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import LimitReached
from router.core.limits.key_limits import NO_LIMITS, KeyLimits, KeyUsage


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


def test_what_is_refused_takes_nothing() -> None:
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


def test_answers_tell_of_each_limit_per_minute_what_is_left_and_when_it_is_whole_again() -> None:
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


def test_no_more_is_left_than_the_limit_however_large_that_is() -> None:
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


def test_what_is_limited_has_a_name() -> None:
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
