"""Totals: sums add up, moments are the latest, and present values are not added again."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.speed.speed_totals import SpeedTotals

SUMS = ("tokens", "whole_tokens", "begun", "first_seconds", "untracked", "stream_seconds")
counts = st.builds(SpeedTotals, *[st.integers(0, 1000).map(float) for _ in SpeedTotals._fields])


@given(counts, counts)
def test_two_processes_add_up(one: SpeedTotals, other: SpeedTotals) -> None:
    both = one.plus(other)
    for name in (*SUMS, "streams", "open"):
        assert getattr(both, name) == getattr(one, name) + getattr(other, name)
    assert both.last_token_at == max(one.last_token_at, other.last_token_at)
    assert both.busy_since == max(one.busy_since, other.busy_since)


@given(counts, counts)
def test_the_longest_wait_is_that_of_the_oldest_request(
    one: SpeedTotals, other: SpeedTotals
) -> None:
    waits = [(s.waiting_since, s.waiting_work) for s in (one, other) if s.waiting_since]
    both = one.plus(other)
    assert (both.waiting_since, both.waiting_work) in waits or not waits
    assert both.waiting_since == min((since for since, _ in waits), default=0.0)


@given(counts, counts)
def test_the_added_latency_is_a_difference_and_never_negative(
    before: SpeedTotals, now: SpeedTotals
) -> None:
    added = now.since(before)
    for name in SUMS:
        assert getattr(added, name) == max(0.0, getattr(now, name) - getattr(before, name))
    assert added.streams == now.streams
    assert added.waiting_since == now.waiting_since
