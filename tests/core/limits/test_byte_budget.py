"""What is held in all never exceeds the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import Overloaded
from router.core.limits.byte_budget import ByteBudget


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


def test_it_tells_beforehand_what_would_not_fit() -> None:
    budget = ByteBudget(100)
    budget.take(40)
    budget.check(60)
    with pytest.raises(Overloaded) as caught:
        budget.check(61)
    assert caught.value.retry_after == 1
    assert budget.held == 40


@given(st.lists(st.integers(0, 60)))
def test_who_asks_first_is_told_what_does_not_fit(sizes: list[int]) -> None:
    budget = ByteBudget(100)
    held = 0
    for size in sizes:
        assert budget.try_take(size) == (held + size <= 100)
        held += size if held + size <= 100 else 0
        assert budget.held == held


def test_who_holds_what_a_lower_limit_would_not_allow_may_keep_it() -> None:
    budget = ByteBudget(100)
    assert budget.try_take(80)
    budget.limit = 10
    budget.take(0)
    assert budget.try_take(0)
    assert budget.try_take(-5)
    assert not budget.try_take(1)
    assert budget.held == 75


def test_while_what_is_there_already_does_not_fit_nothing_else_does() -> None:
    budget = ByteBudget(100)
    budget.add(101)
    assert not budget.try_take(1)
    budget.give(2)
    assert budget.try_take(1)
    assert budget.held == 100
