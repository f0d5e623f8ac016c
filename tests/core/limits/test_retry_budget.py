"""Retries are a share of the requests, but for some at once."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.limits.retry_budget import BURST, RETRIES_PER_SECOND, RetryBudget


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


def test_what_is_not_used_does_not_pile_up() -> None:
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
