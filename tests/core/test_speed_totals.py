"""Totals: sums add up, moments are the latest, and what is there now is not added again."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.speed_totals import Shown

SUMS = ("tokens", "whole_tokens", "begun", "first_seconds", "unheard", "stream_seconds")
counts = st.builds(Shown, *[st.integers(0, 1000).map(float) for _ in Shown._fields])


@given(counts, counts)
def test_two_processes_add_up(one: Shown, other: Shown) -> None:
    both = one.plus(other)
    for name in (*SUMS, "streams", "open"):
        assert getattr(both, name) == getattr(one, name) + getattr(other, name)
    assert both.heard_at == max(one.heard_at, other.heard_at)
    assert both.asked_at == max(one.asked_at, other.asked_at)


@given(counts, counts)
def test_the_longest_wait_is_that_of_the_request_asked_first(one: Shown, other: Shown) -> None:
    waits = [(s.waiting_since, s.waiting_work) for s in (one, other) if s.waiting_since]
    both = one.plus(other)
    assert (both.waiting_since, both.waiting_work) in waits or not waits
    assert both.waiting_since == min((since for since, _ in waits), default=0.0)


@given(counts, counts)
def test_what_was_added_is_the_difference_and_never_negative(before: Shown, now: Shown) -> None:
    added = now.since(before)
    for name in SUMS:
        assert getattr(added, name) == max(0.0, getattr(now, name) - getattr(before, name))
    assert added.streams == now.streams
    assert added.waiting_since == now.waiting_since
