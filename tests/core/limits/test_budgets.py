"""What is held in all never exceeds the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import Overloaded
from router.core.limits.budgets import BURST, RETRIES_PER_SECOND, ByteBudget, RetryBudget


@given(st.lists(st.integers(0, 60)))
def test_it_never_holds_more_than_its_limit_and_gives_all_back(sizes: list[int]) -> None:
    budget = ByteBudget(100)
    held: list[int] = []
    for size in sizes:
        try:
            budget.take(size)
        except Overloaded:
            assert sum(held) + size > 100
        else:
            held.append(size)
        assert budget.held == sum(held) <= 100
    for size in held:
        budget.give(size)
    assert budget.held == 0


def test_it_reports_in_advance_engines_without_room() -> None:
    budget = ByteBudget(100)
    budget.take(40)
    budget.check(60)
    with pytest.raises(Overloaded) as caught:
        budget.check(61)
    assert caught.value.retry_after == 1
    assert budget.held == 40


@given(st.lists(st.integers(0, 60)))
def test_the_first_caller_gets_the_mismatch(sizes: list[int]) -> None:
    budget = ByteBudget(100)
    held = 0
    for size in sizes:
        assert budget.try_take(size) == (held + size <= 100)
        held += size if held + size <= 100 else 0
        assert budget.held == held


def test_requests_above_a_lowered_limit_continue() -> None:
    budget = ByteBudget(100)
    assert budget.try_take(80)
    budget.limit = 10
    budget.take(0)
    assert budget.try_take(0)
    assert budget.try_take(-5)
    assert not budget.try_take(1)
    assert budget.held == 75


def test_no_new_engine_fits_while_the_present_ones_exceed_the_limit() -> None:
    budget = ByteBudget(100)
    budget.add(101)
    assert not budget.try_take(1)
    budget.give(2)
    assert budget.try_take(1)
    assert budget.held == 100


def spend(budget: RetryBudget, now: float) -> int:
    """How many retries there are at once."""
    number = 0
    while budget.take(now):
        number += 1
    return number


def test_an_engine_that_crashes_leaves_no_request_behind() -> None:
    assert spend(RetryBudget(0.0), 0.0) == BURST


def test_when_that_is_spent_requests_bring_a_share() -> None:
    budget = RetryBudget(0.2)
    spend(budget, 0.0)
    for _ in range(4):
        budget.request()
    assert not budget.has_one(0.0)
    for _ in range(96):
        budget.request()
    assert budget.has_one(0.0)
    assert 19 <= spend(budget, 0.0) <= 20


def test_some_are_allowed_however_few_requests_come() -> None:
    budget = RetryBudget(0.0)
    spend(budget, 5.0)
    assert spend(budget, 7.0) == 2 * RETRIES_PER_SECOND
    assert spend(budget, 7.0) == 0


def test_unused_entries_do_not_accumulate() -> None:
    budget = RetryBudget(1.0)
    for _ in range(5000):
        budget.request()
    assert spend(budget, 1e6) == BURST


@given(st.floats(0, 1), st.lists(st.tuples(st.booleans(), st.floats(0, 2)), max_size=50))
def test_in_the_long_run_there_are_no_more(share: float, events: list[tuple[bool, float]]) -> None:
    budget = RetryBudget(share)
    spend(budget, 0.0)
    now, requests, retries = 0.0, 0, 0
    for is_request, passed in events:
        now += passed
        if is_request:
            budget.request()
            requests += 1
        else:
            retries += budget.take(now)
        assert retries <= share * requests + RETRIES_PER_SECOND * now + 1
