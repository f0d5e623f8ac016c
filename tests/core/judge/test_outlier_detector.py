"""The outlier detector of a pool: engines that fail are ejected, and return."""

from random import Random

import pytest

from router.core.events import Ejected
from router.core.judge.tuning import MIN_SLOW_START_WEIGHT
from router.core.judge.verdict import Exclusion, ExclusionConfig
from router.core.speed.tuning import TICK_SECONDS
from tests.core.judge.judged_pool import Pool, fail


def test_failures_in_a_row_eject_and_time_brings_it_back_slowly() -> None:
    pool = Pool(*[0.02] * 4)
    fail(pool, 0, 4)
    pool.judge.outliers.answered(pool.members[0], 0.0, is_good=True)
    fail(pool, 0, 4)
    assert pool.exclusions == [None] * 4
    fail(pool, 0, 1)
    assert pool.exclusions == [Exclusion.EJECTED, None, None, None]
    pool.run(29.75)
    assert pool.exclusions == [Exclusion.EJECTED, None, None, None]
    pool.run(0.25)
    assert pool.exclusions == [None] * 4
    assert pool.members[0].view.slow_start_weight == MIN_SLOW_START_WEIGHT


def test_the_first_to_fail_are_back_when_the_others_fail_as_often() -> None:
    """A model fails on all engines from a moment on: the first engine to fail has the fewest
    requests, gets the next ones, and so looks like the only one."""
    pool = Pool(*[0.02] * 8)
    for member in pool.members:
        for _ in range(50):
            pool.judge.outliers.answered(member, pool.now, is_good=True)
    for place in range(4):
        fail(pool, place, 5)
    pool.run(TICK_SECONDS)
    assert pool.exclusions == [Exclusion.EJECTED] * 4 + [None] * 4
    for place in range(4, 8):
        for is_good in (False, True, False, False, False):
            pool.judge.outliers.answered(pool.members[place], pool.now, is_good=is_good)
    pool.run(TICK_SECONDS)
    assert pool.exclusions == [None] * 8
    assert all(member.view.slow_start_weight == 1.0 for member in pool.members)
    assert all(member.outlier.ejections == 0 for member in pool.members)


def test_a_few_failures_of_the_only_other_engine_take_no_broken_one_back() -> None:
    """Those of 3 % come together now and then. Of the broken one all requests fail."""
    for seed in range(5):
        rng, pool, asked = Random(seed), Pool(0.02, 0.02), 0
        broken, other = pool.members
        for number in range(3000):
            if broken.exclusion is None and number % 2:
                pool.judge.outliers.answered(broken, pool.now, is_good=False)
                asked += 1
            else:
                pool.judge.outliers.answered(other, pool.now, is_good=rng.random() >= 0.03)
            if number % 8 == 0:
                pool.run(TICK_SECONDS)
        assert asked <= 20  # twice it is back when its time is over, and fails five in a row


def test_a_broken_engine_stays_out_though_another_one_breaks() -> None:
    pool = Pool(*[0.02] * 4)
    fail(pool, 0, 5)
    fail(pool, 1, 30)
    pool.run(TICK_SECONDS)
    assert pool.exclusions[0] is Exclusion.EJECTED
    assert pool.exclusions[2:] == [None] * 2


def test_an_engine_that_fails_again_when_it_is_back_is_ejected_for_longer() -> None:
    pool = Pool(*[0.02] * 4)
    for seconds in (30.0, 60.0, 90.0):
        fail(pool, 0, 5)
        assert pool.exclusions == [Exclusion.EJECTED, None, None, None]
        pool.run(seconds - 0.25)
        assert pool.exclusions == [Exclusion.EJECTED, None, None, None]
        pool.run(0.25)
        assert pool.exclusions == [None] * 4


def test_an_engine_that_answers_when_it_is_back_is_forgiven() -> None:
    pool = Pool(*[0.02] * 4)
    fail(pool, 0, 5)
    pool.run(30.0)
    for _ in range(20):
        pool.judge.outliers.answered(pool.members[0], pool.now, is_good=True)
        pool.run(1.0)
    fail(pool, 0, 5)
    pool.run(30.0)
    assert pool.exclusions == [None] * 4


def test_the_only_engine_is_never_ejected() -> None:
    pool = Pool(0.02)
    fail(pool, 0, 100)
    assert pool.exclusions == [None]


def test_a_bad_success_rate_ejects_at_the_end_of_the_interval() -> None:
    pool = Pool(*[None] * 8)
    pool.run(TICK_SECONDS)
    for place, member in enumerate(pool.members):
        for number in range(200):
            is_good = place > 0 or number % 2 == 0
            pool.judge.outliers.answered(member, pool.now, is_good=is_good)
    pool.run(9.75)
    assert pool.exclusions == [None] * 8
    pool.run(0.5)
    assert pool.exclusions == [Exclusion.EJECTED] + [None] * 7


def _interval(pool: Pool, *failed: int, total: int = 40) -> None:
    """An interval in which each engine that is in use fails so many of its requests."""
    for member, failures in zip(pool.members, failed, strict=True):
        for number in range(total if member.exclusion is None else 0):
            is_good = number % 2 == 0 or number >= 2 * failures
            pool.judge.outliers.answered(member, pool.now, is_good=is_good)
    pool.run(10.0)


def by_its_rate(failures: int, others: int = 0) -> Pool:
    """A pool of eight whose first engine was ejected by its failure rate."""
    pool = Pool(*[None] * 8)
    pool.run(TICK_SECONDS)
    _interval(pool, failures, *[others] * 7)
    assert pool.exclusions == [Exclusion.EJECTED] + [None] * 7
    return pool


def test_an_engine_returns_if_its_failing_requests_fail_elsewhere() -> None:
    """By chance, or because they begin as others did that it has cached."""
    pool = by_its_rate(14)
    _interval(pool, 0, *[2] * 7)
    assert pool.exclusions == [None] * 8
    assert pool.members[0].outlier.ejections == 0


@pytest.mark.parametrize("others", [0, 2])
def test_an_engine_whose_failures_end_with_it_stays_out(others: int) -> None:
    pool = by_its_rate(14, others)
    _interval(pool, 0, *[others] * 7)
    assert pool.exclusions == [Exclusion.EJECTED] + [None] * 7


def test_one_that_its_rate_ejected_stays_out_though_another_one_breaks() -> None:
    pool = by_its_rate(14)
    _interval(pool, 0, 14, *[0] * 6)
    assert pool.exclusions == [Exclusion.EJECTED] * 2 + [None] * 6


def test_an_engine_whose_last_requests_fail_while_it_is_out_is_not_ejected_twice() -> None:
    pool = by_its_rate(14)
    for number in range(40):
        is_good = number % 2 == 0
        pool.judge.outliers.answered(pool.members[0], pool.now, is_good=is_good)
    _interval(pool, 0, *[0] * 7)
    assert pool.exclusions == [Exclusion.EJECTED] + [None] * 7
    assert pool.members[0].outlier.ejections == 1


def test_failures_in_a_row_are_not_judged_by_the_rate() -> None:
    pool = Pool(*[None] * 8)
    pool.run(TICK_SECONDS)
    for member in pool.members:
        for _ in range(40):
            pool.judge.outliers.answered(member, pool.now, is_good=True)
    fail(pool, 0, 5)
    pool.run(10.0)
    _interval(pool, 0, *[4] * 7)
    assert pool.exclusions == [Exclusion.EJECTED] + [None] * 7


def test_with_zero_failures_no_engine_is_ejected() -> None:
    exclusion_config = ExclusionConfig(outliers=ExclusionConfig().outliers.__class__(consecutive=0))
    pool = Pool(*[None] * 8, exclusion_config=exclusion_config)
    fail(pool, 0, 1000)
    pool.run(20.0)
    assert pool.exclusions == [None] * 8


def test_errors_that_all_engines_give_eject_none() -> None:
    pool = Pool(*[0.02] * 8)
    rng = Random(3)
    for _ in range(400):
        pool.now += 0.05
        for member in pool.members:
            pool.judge.outliers.answered(member, pool.now, is_good=rng.random() < 0.5)
        pool.judge.tick(pool.now)
    assert pool.exclusions == [None] * 8


# Several models.


def of_models(*models: str) -> Pool:
    """A pool whose engines serve these models, one letter each."""
    pool = Pool(*[None] * len(models))
    for member, names in zip(pool.members, models, strict=True):
        member.set_cards(tuple({"id": name} for name in names))
    pool.judge.models_changed()
    pool.run(TICK_SECONDS)
    return pool


def ask(pool: Pool, rounds: int, failing: set[tuple[int, str]]) -> None:
    """Each engine in use gets so many requests for each of its models, and fails those of
    `failing`."""
    for _ in range(rounds):
        for place, member in enumerate(pool.members):
            for model in sorted(member.models or ()):
                if member.exclusion is None:
                    is_good = (place, model) not in failing
                    pool.judge.outliers.answered(member, pool.now, model, is_good=is_good)
        pool.run(TICK_SECONDS)


TWO_OF_EIGHT = ("a",) * 6 + ("ab",) * 2
TWO_ALONE = ("a",) * 6 + ("b",) * 2
"""The engines of one model share none with the others."""


@pytest.mark.parametrize("models", [TWO_OF_EIGHT, TWO_ALONE])
def test_errors_of_a_model_eject_none_of_its_few_engines(models: tuple[str, ...]) -> None:
    pool = of_models(*models)
    ask(pool, 200, {(6, "b"), (7, "b")})
    assert pool.exclusions == [None] * 8
    assert all(member.outlier.ejections == 0 for member in pool.members)


def test_a_model_that_only_one_engine_serves_does_not_eject_it() -> None:
    pool = of_models(*"aaaab")
    ask(pool, 100, {(4, "b")})
    assert pool.exclusions == [None] * 5


@pytest.mark.parametrize("models", [TWO_OF_EIGHT, TWO_ALONE])
def test_engine_failing_more_than_its_models_pool_is_ejected(models: tuple[str, ...]) -> None:
    pool = of_models(*models)
    ask(pool, 60, {(7, "b")})
    assert pool.exclusions == [None] * 7 + [Exclusion.EJECTED]


def test_an_engine_that_fails_with_all_models_is_ejected_though_one_fails_everywhere() -> None:
    pool = of_models(*["ab"] * 8)
    ask(pool, 60, {(place, "b") for place in range(8)} | {(3, "a")})
    assert pool.exclusions == [Exclusion.EJECTED if place == 3 else None for place in range(8)]


def test_requests_of_a_model_that_fail_in_a_row_on_both_of_its_engines_eject_none() -> None:
    """The first one is out for a moment: the other one had not failed yet."""
    pool = of_models(*TWO_OF_EIGHT)
    ask(pool, 10, set())
    for place in (6, 7):
        for _ in range(5):
            pool.judge.outliers.answered(pool.members[place], pool.now, "b", is_good=False)
    assert pool.exclusions == [None] * 6 + [Exclusion.EJECTED, None]
    pool.run(TICK_SECONDS)
    assert pool.exclusions == [None] * 8


def test_a_model_that_is_not_listed_counts_as_none() -> None:
    pool = of_models(*["ab"] * 2)
    for name in ("x", "y", None):
        pool.judge.outliers.answered(pool.members[0], pool.now, name, is_good=True)
    assert pool.members[0].outlier_by_model.keys() == {None}


def test_results_of_models_no_longer_served_are_dropped() -> None:
    pool = of_models(*["ab"] * 2)
    ask(pool, 1, set())
    for member in pool.members:
        member.set_cards(({"id": "a"}, {"id": "c"}))
    pool.run(10.0)
    assert pool.members[0].outlier_by_model.keys() == {"a"}


def test_an_engine_that_another_process_ejected_is_judged_by_all_its_models() -> None:
    pool = of_models(*["ab"] * 4)
    event = Ejected(pool.members[0].endpoint, pool.now, pool.now + 30.0, streak=5)
    pool.judge.outliers.ejected_elsewhere(pool.members[0], event)
    pool.run(TICK_SECONDS)
    assert pool.exclusions == [Exclusion.EJECTED, None, None, None]
    ask(pool, 12, {(place, "b") for place in range(4)} | {(place, "a") for place in range(4)})
    assert pool.exclusions == [None] * 4


def test_an_engine_that_is_ejected_begins_anew_with_each_of_its_models() -> None:
    pool = of_models(*["ab"] * 3)
    ask(pool, 3, set())
    member = pool.members[0]
    for _ in range(5):
        pool.judge.outliers.answered(member, pool.now, "b", is_good=False)
    assert member.exclusion is Exclusion.EJECTED
    assert (member.outlier.total, member.outlier_by_model) == (0, {})
