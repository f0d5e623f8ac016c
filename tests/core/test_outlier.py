"""Outlier ejection: consecutive failures, success rates, and growing times out."""

from hypothesis import given
from hypothesis import strategies as st

from router.core import outlier
from router.core.outlier import FINE, MINIMUM_HOSTS, MINIMUM_REQUESTS, Outlier, Rules

RULES = Rules()


def rate(good: int, total: int = MINIMUM_REQUESTS) -> Outlier:
    """So many good answers in this interval."""
    return Outlier(good=good, total=total)


@given(st.lists(st.booleans()))
def test_the_streak_is_that_of_the_failures_since_the_last_good_answer(seen: list[bool]) -> None:
    state = FINE
    for is_good in seen:
        state = outlier.after(state, is_good=is_good)
    backwards = seen[::-1]
    assert state.streak == (backwards.index(True) if True in seen else len(seen))
    assert (state.good, state.total) == (sum(seen), len(seen))


@given(st.integers(0, 50))
def test_each_ejection_is_longer_up_to_the_longest(times: int) -> None:
    state = outlier.ejected(Outlier(ejections=times), 100.0, RULES)
    assert state.until == 100.0 + min(30.0 * (times + 1), 300.0)
    assert (state.since, state.ejections, state.streak) == (100.0, times + 1, 0)


@given(st.integers(0, 20))
def test_every_ejection_ends(times: int) -> None:
    state = outlier.ejected(Outlier(ejections=times), 0.0, RULES)
    assert state.until is not None
    assert outlier.tick(state, state.until - 0.1) is state
    back = outlier.tick(state, state.until)
    assert (back.until, back.streak, back.ejections) == (None, 0, times + 1)


def test_clean_intervals_forget_ejections_and_bad_ones_do_not() -> None:
    state = Outlier(ejections=2, good=5, total=5)
    assert outlier.interval(state).ejections == 1
    assert outlier.interval(Outlier(ejections=0)).ejections == 0
    assert outlier.interval(Outlier(ejections=2, good=4, total=5)).ejections == 2
    assert outlier.interval(outlier.ejected(state, 0.0, RULES)).ejections == 3
    assert outlier.interval(state).total == 0


def test_a_success_rate_far_below_the_others_is_found() -> None:
    assert outlier.failing([rate(100)] * 7 + [rate(50)]) == [7]
    assert outlier.failing([rate(98), rate(99), rate(100), rate(97), rate(100)]) == []


def test_too_few_engines_or_answers_tell_nothing() -> None:
    assert outlier.failing([rate(100)] * (MINIMUM_HOSTS - 2) + [rate(0)]) == []
    assert outlier.failing([rate(100)] * 7 + [rate(0, MINIMUM_REQUESTS - 1)]) == []


@given(st.lists(st.integers(0, 100), min_size=MINIMUM_HOSTS, max_size=20))
def test_never_more_than_half_of_a_pool_is_far_below_it(goods: list[int]) -> None:
    assert len(outlier.failing([rate(good) for good in goods])) * 2 <= len(goods)
