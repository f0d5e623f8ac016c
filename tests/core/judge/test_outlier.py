"""Outlier ejection: consecutive failures, success rates, and growing times out."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.judge import outlier
from router.core.judge.outlier import HEALTHY, Outlier, OutlierConfig
from router.core.judge.tuning import MINIMUM_REQUESTS

RULES = OutlierConfig()


@given(st.lists(st.booleans()))
def test_the_streak_is_that_of_the_failures_since_the_last_good_answer(seen: list[bool]) -> None:
    state = Outlier()
    for is_good in seen:
        state.count(is_good=is_good)
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
    assert outlier.next_interval(state).ejections == 1
    assert outlier.next_interval(Outlier(ejections=0)).ejections == 0
    assert outlier.next_interval(Outlier(ejections=2, good=4, total=5)).ejections == 2
    assert outlier.next_interval(outlier.ejected(state, 0.0, RULES)).ejections == 3
    assert outlier.next_interval(state).total == 0


def failures(failed: int, total: int = 100) -> Outlier:
    """So many failures in this interval."""
    return Outlier(good=total - failed, total=total)


# Failures in a row.


def seen(*answers: bool) -> Outlier:
    """After these answers."""
    state = Outlier()
    for is_good in answers:
        state.count(is_good=is_good)
    return state


WELL = seen(*[True] * 50)
HALF = seen(*[True, False] * 25)


def test_failures_in_a_row_are_no_chance_where_the_others_answer() -> None:
    assert not outlier.is_chance(5, outlier.mean_failure_rate([WELL] * 7))
    assert not outlier.is_chance(11, outlier.mean_failure_rate([WELL] * 6 + [seen(*[False] * 50)]))


def test_failures_in_a_row_are_chance_where_the_others_fail_as_well() -> None:
    """One of two models fails everywhere: five in a row come soon, on each engine."""
    assert outlier.is_chance(20, outlier.mean_failure_rate([HALF] * 7))
    assert not outlier.is_chance(40, outlier.mean_failure_rate([HALF] * 7))
    assert outlier.is_chance(5, outlier.mean_failure_rate([seen(False)] * 7))


def test_a_new_failure_of_all_engines_shows_at_once() -> None:
    """However long all went well before."""
    assert outlier.is_chance(
        5, outlier.mean_failure_rate([seen(*[True] * 5000, False, True, False)] * 7)
    )


def test_without_other_results_consecutive_failures_decide() -> None:
    assert not outlier.is_chance(5, outlier.mean_failure_rate([]))
    assert not outlier.is_chance(5, outlier.mean_failure_rate([HEALTHY] * 7))


def test_a_failure_of_all_engines_ends_the_first_ejection() -> None:
    state = outlier.ejected(Outlier(ejections=2), 0.0, RULES, streak=5)
    usual = outlier.usual_failure_rate([HALF] * 4 + [WELL] * 3)
    assert outlier.is_shared(state, usual)
    state.count(is_good=True)
    assert outlier.is_shared(outlier.next_interval(state), usual)
    assert outlier.without_ejection(state) == Outlier(ejections=2)


def test_few_others_that_fail_take_no_engine_back() -> None:
    """Neither one failure of the only other one, were it its first answer, nor others that are
    broken as well."""
    state = outlier.ejected(HEALTHY, 0.0, RULES, streak=5)
    one_failure = seen(*[True] * 9, False), seen(False)
    for others in (
        *([one] for one in one_failure),
        [seen(*[False] * 50)] * 3 + [WELL] * 3,
        [HEALTHY],
        [],
    ):
        assert not outlier.is_shared(state, outlier.usual_failure_rate(others)), others


def test_an_engine_that_failures_in_a_row_did_not_eject_is_not_taken_back_for_them() -> None:
    assert not outlier.is_shared(outlier.ejected(HEALTHY, 0.0, RULES), 1.0)


def test_a_new_interval_still_knows_how_often_an_engine_fails() -> None:
    assert outlier.next_interval(HALF).failure_rate == HALF.failure_rate
    assert outlier.next_interval(HALF).total == 0


# Failure rates.


def _outliers(outliers: list[Outlier]) -> list[int]:
    """The engines found in a pool of one model."""
    return outlier.outlier_indexes([{"m": one} for one in outliers])


def test_an_engine_that_fails_well_above_the_others_is_found() -> None:
    assert _outliers([failures(0)] * 7 + [failures(20)]) == [7]
    assert _outliers([failures(0), failures(20)]) == [1]
    assert _outliers([failures(10)] * 7 + [failures(40)]) == [7]
    assert _outliers([failures(0, 20)] * 7 + [failures(6, 20)]) == [7]


def test_a_few_errors_are_no_outlier_however_flawless_the_others_are() -> None:
    assert _outliers([failures(0)] * 7 + [failures(1)]) == []
    assert _outliers([failures(0)] * 7 + [failures(9)]) == []
    assert _outliers([failures(0, 20)] * 7 + [failures(1, 20)]) == []


def test_failures_have_moved_if_the_others_have_more_than_chance_explains() -> None:
    assert outlier.failures_follow_requests(failures(1, 280), failures(15, 320))
    assert not outlier.failures_follow_requests(failures(14, 280), failures(20, 320))
    assert not outlier.failures_follow_requests(failures(15, 280), failures(0, 320))
    assert not outlier.failures_follow_requests(failures(0, 280), failures(0, 320))
    few = MINIMUM_REQUESTS - 1
    assert not outlier.failures_follow_requests(failures(0, few), failures(300, 320))
    assert not outlier.failures_follow_requests(failures(0, 280), failures(few, few))


def test_answers_of_several_engines_are_counted_together() -> None:
    assert outlier.summed([failures(3, 10), failures(0, 20)]) == failures(3, 30)
    assert outlier.summed([]) == HEALTHY


def test_common_failures_count_against_no_engine() -> None:
    assert _outliers([failures(48), failures(52), failures(50), failures(55)]) == []
    assert _outliers([failures(100)] * 8) == []
    assert _outliers([failures(0)] * 3 + [failures(60)] * 5) == []


def test_too_few_answers_are_no_evidence() -> None:
    assert _outliers([]) == []
    assert _outliers([failures(100)]) == []
    few = MINIMUM_REQUESTS - 1
    assert _outliers([failures(0)] * 7 + [failures(few, few)]) == []
    assert _outliers([failures(0, 2)] * 7 + [failures(100)]) == []


def models(names: str, *outliers: Outlier) -> dict[str | None, Outlier]:
    """An engine's answers for its models, one letter each."""
    return dict(zip(names, outliers, strict=True))


ONLY_A = models("a", failures(0))


def test_errors_of_a_model_are_no_fault_of_the_few_engines_that_serve_it() -> None:
    both = models("ab", failures(0), failures(100))
    assert outlier.outlier_indexes([ONLY_A] * 6 + [both] * 2) == []
    worse = models("ab", failures(20), failures(100))
    assert outlier.outlier_indexes([ONLY_A] * 6 + [both, worse]) == [7]
    better = models("ab", failures(0), failures(70))
    assert outlier.outlier_indexes([ONLY_A] * 6 + [both, better]) == [6]


def test_an_engine_that_serves_a_model_alone_is_judged_by_its_other_models() -> None:
    assert outlier.outlier_indexes([ONLY_A] * 7 + [models("ab", failures(0), failures(100))]) == []
    assert outlier.outlier_indexes([ONLY_A] * 7 + [models("ab", failures(20), failures(100))]) == [
        7
    ]


def test_an_engine_of_many_models_with_few_requests_each_is_judged_by_all_of_them() -> None:
    names = "abcdefghijklmnopqrst"
    good, bad = (models(names, *[failures(failed, 2)] * len(names)) for failed in (0, 1))
    assert outlier.outlier_indexes([good] * 3 + [bad]) == [3]
    assert outlier.outlier_indexes([bad] * 4) == []
    few = models("ab", failures(2, 2), failures(2, 2))
    assert outlier.outlier_indexes([good] * 3 + [few]) == []


@given(st.lists(st.integers(0, 100), max_size=20))
def test_never_more_than_half_of_a_pool_is_found(failed: list[int]) -> None:
    assert len(_outliers([failures(each) for each in failed])) * 2 <= len(failed)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5])
def test_engines_that_are_equal_are_let_alone(share: float) -> None:
    rng = Random(7)
    found = 0
    for _ in range(300):
        pool = [failures(sum(rng.random() < share for _ in range(120)), 120) for _ in range(8)]
        found += len(_outliers(pool))
    assert found <= 300 * 8 / 200
