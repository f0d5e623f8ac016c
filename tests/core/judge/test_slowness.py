"""The monitor of a pool: slow engines, and their return."""

import pytest

from router.core.judge.verdict import Exclusion, ExclusionConfig
from router.core.speed.tuning import TICK_SECONDS
from tests.core.judge.judged_pool import Pool


def test_a_slow_engine_is_known_within_a_second_and_by_how_much() -> None:
    pool = Pool(0.16, *[0.02] * 7)
    pool.streams()
    pool.run(1.0)
    assert pool.exclusions == [Exclusion.SLOW] + [None] * 7
    assert pool.members[0].view.slowdown == pytest.approx(8, rel=0.15)
    assert {member.view.slowdown for member in pool.members[1:]} == {1.0}
    assert pool.judge.pool_median == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(("slowdown", "hands_over"), [(3.5, False), (8, True)])
def test_a_very_slow_engine_hands_its_streams_over_until_it_is_fast_again(
    slowdown: float, hands_over: bool
) -> None:
    pool = Pool(0.02 * slowdown, *[0.02] * 7)
    pool.streams()
    pool.run(1.0)
    counts = pool.members[0].speed.counts
    assert pool.exclusions[0] is Exclusion.SLOW
    assert not counts.hands_over
    pool.run(2.0)
    assert counts.hands_over == hands_over
    pool.set(0, 0.02)
    pool.run(2.5)
    assert not counts.hands_over


def test_a_slow_engine_that_is_started_again_is_not_known_to_be_slow() -> None:
    """Also if the others are slower for a moment, when a slow engine has not recovered."""
    pool = Pool(0.16, *[0.02] * 7)
    pool.streams()
    pool.run(4.0)
    it = pool.members[0]
    for place in range(1, 8):
        pool.set(place, 0.1)
    pool.run(1.0)
    assert it.view.is_slow
    pool.set(0, None)
    pool.judge.joined(it, pool.now)
    pool.run(TICK_SECONDS)
    assert (it.exclusion, it.view.is_slow, it.speed.counts.hands_over) == (None, False, False)


def test_it_returns_when_it_is_fast_again_and_then_little_by_little() -> None:
    pool = Pool(0.16, *[0.02] * 7)
    pool.streams()
    pool.run(4.0)
    pool.set(0, 0.02)
    pool.run(2.5)
    it = pool.members[0]
    assert it.exclusion is None
    weights = [it.view.slow_start_weight]
    while it.view.slow_start_weight < 1.0:
        pool.run(TICK_SECONDS)
        weights.append(it.view.slow_start_weight)
    assert weights == sorted(weights)
    assert weights[0] < 1.0


def test_it_has_not_recovered_because_the_others_are_slower_for_a_moment() -> None:
    """A busy host takes the processor from those that need it, and the slow engine waits."""
    pool = Pool(0.16, *[0.02] * 3)
    pool.streams()
    pool.run(4.0)

    def all_others(gap: float) -> None:
        for place in (1, 2, 3):
            pool.set(place, gap)

    for _ in range(3):
        all_others(0.2)
        pool.run(1.5)
        assert pool.members[0].view.slowdown < 1.5
        assert pool.exclusions == [Exclusion.SLOW, None, None, None]
        all_others(0.02)
        pool.run(4.0)
    all_others(0.2)  # to stay so
    pool.run(15.0)
    assert pool.exclusions == [None] * 4


def test_a_slowdown_lasts_when_it_has_been_seen_for_two_seconds() -> None:
    pool = Pool(*[0.02] * 8)
    pool.streams()
    pool.run(2.0)
    view = pool.members[0].view
    pool.set(0, 0.04)
    pool.run(1.5)
    assert view.slowdown == pytest.approx(2, rel=0.15)
    assert view.lowest_slowdown == 1.0
    pool.run(1.25)
    assert view.lowest_slowdown == pytest.approx(view.slowdown, rel=0.3)
    assert view.lowest_slowdown > 1.0
    pool.set(0, 0.02)
    pool.run(1.25)
    assert view.lowest_slowdown == view.slowdown == 1.0


def test_an_engine_is_fast_when_it_has_been_so_for_two_seconds() -> None:
    pool = Pool(*[0.02] * 8)
    pool.streams()
    pool.run(2.0)
    view = pool.members[0].view
    pool.set(0, 0.01)
    pool.run(1.5)
    assert view.slowdown == pytest.approx(0.5, rel=0.15)
    assert view.highest_slowdown == 1.0
    pool.run(1.25)
    assert view.highest_slowdown < 0.8
    pool.set(0, 0.02)
    pool.run(1.25)
    assert view.highest_slowdown == view.slowdown == 1.0


def test_an_engine_that_comes_up_has_no_lasting_slowdown() -> None:
    pool = Pool(0.16, *[0.02] * 7)
    pool.streams()
    pool.run(4.0)
    it = pool.members[0]
    assert it.view.lowest_slowdown > 3.0
    pool.judge.joined(it, pool.now)
    assert it.view.lowest_slowdown == it.view.highest_slowdown == it.view.slowdown == 1.0
    assert list(it.verdict.slowdowns) == [1.0]


def test_an_engine_that_looks_slower_now_and_then_needs_no_slow_start() -> None:
    """Prompts that are computed between tokens make gaps of equal engines differ."""
    pool = Pool(*[0.02] * 8)
    pool.streams()
    seen = set()
    for gap in (0.02, 0.045) * 4:
        pool.set(0, gap)
        for _ in range(12):
            pool.run(TICK_SECONDS)
            assert pool.members[0].view.slow_start_weight == 1.0
            seen.add(pool.members[0].view.slowdown > 1.0)
    assert seen == {False, True}


def test_momentary_slowness_gives_a_short_slow_start() -> None:
    pool = Pool(*[0.02] * 8, exclusion_config=ExclusionConfig(slow_start_seconds=60.0))
    pool.streams()
    pool.run(4.0)
    pool.set(0, 0.16)
    pool.run(1.0)
    assert pool.exclusions == [Exclusion.SLOW] + [None] * 7
    pool.set(0, 0.02)
    pool.run(1.5)
    assert pool.exclusions == [None] * 8
    assert 0.8 < pool.members[0].view.slow_start_weight < 1.0
    pool.run(10.0)
    assert pool.members[0].view.slow_start_weight == 1.0


def test_a_repeatedly_slow_engine_has_a_slow_start_for_the_whole_time() -> None:
    pool = Pool(*[0.02] * 8, exclusion_config=ExclusionConfig(slow_start_seconds=60.0))
    pool.streams()
    pool.run(4.0)
    weights = []
    for _ in range(3):
        pool.set(0, 0.16)
        pool.run(1.0)
        assert pool.exclusions == [Exclusion.SLOW] + [None] * 7
        pool.set(0, 0.02)
        pool.run(1.5)
        assert pool.exclusions == [None] * 8
        weights.append(pool.members[0].view.slow_start_weight)
    assert weights[0] > weights[1] > weights[2]
    pool.run(60.0)
    assert pool.members[0].view.slow_start_weight == 1.0
    pool.set(0, 0.16)
    pool.run(1.0)
    pool.set(0, 0.02)
    pool.run(1.5)
    assert pool.members[0].view.slow_start_weight == pytest.approx(weights[0])  # long ago


def test_where_speed_is_not_used_none_has_to_return_from_it() -> None:
    pool = Pool(0.16, *[0.02] * 7, exclusion_config=ExclusionConfig(speed_roles=frozenset()))
    pool.streams()
    pool.run(4.0)
    assert pool.exclusions == [Exclusion.SLOW] + [None] * 7
    pool.set(0, 0.02)
    pool.run(2.5)
    assert pool.exclusions == [None] * 8
    assert pool.members[0].view.slow_start_weight == 1.0


def test_a_pool_that_is_slow_as_a_whole_has_no_slow_engine() -> None:
    pool = Pool(*[0.5] * 8)
    pool.streams()
    pool.run(4.0)
    assert pool.exclusions == [None] * 8


def test_one_that_looks_half_recovered_stays_slow() -> None:
    pool = Pool(0.16, *[0.02] * 7)
    pool.streams()
    pool.run(2.0)
    pool.set(0, 0.05)
    pool.run(3.0)
    assert pool.members[0].view.slowdown < 3
    assert pool.exclusions[0] is Exclusion.SLOW
    pool.set(0, 0.025)
    pool.run(3.0)
    assert pool.exclusions[0] is None


def test_an_engine_of_half_the_speed_that_was_slow_once_is_used_again() -> None:
    pool = Pool(0.04, *[0.02] * 7)
    pool.streams()
    pool.run(4.0)
    pool.set(0, 0.16)
    pool.run(4.0)
    assert pool.exclusions == [Exclusion.SLOW] + [None] * 7
    pool.set(0, 0.04)
    pool.run(4.0)
    assert pool.exclusions == [None] * 8


def test_an_engine_that_was_always_slow_is_not_taken_back_for_looking_less_so() -> None:
    pool = Pool(0.16, *[0.02] * 7)
    pool.streams()
    pool.run(4.0)
    pool.set(0, 0.04)
    pool.run(4.0)
    assert pool.exclusions == [Exclusion.SLOW] + [None] * 7


def test_engines_that_were_always_slower_are_no_outliers_when_they_are_many() -> None:
    pool = Pool(*[0.06] * 4, *[0.02] * 4)
    pool.streams()
    pool.run(4.0)
    assert pool.exclusions == [None] * 8
    assert pool.members[0].view.slowdown == pytest.approx(3, rel=0.15)


def test_engines_that_turned_slow_are_outliers_however_many() -> None:
    pool = Pool(*[0.02] * 8)
    pool.streams()
    pool.run(4.0)
    for place in range(4):
        pool.set(place, 0.16)
    pool.run(4.0)
    assert pool.exclusions == [Exclusion.SLOW] * 4 + [None] * 4


def test_one_that_is_slow_from_the_start_is_an_outlier_in_a_small_pool_too() -> None:
    pool = Pool(0.16, 0.02, 0.02)
    pool.streams()
    pool.run(2.0)
    assert pool.exclusions == [Exclusion.SLOW, None, None]


def test_the_first_gaps_after_a_start_make_no_engine_slow() -> None:
    """A late turn of the router's own loop stretches them."""
    pool = Pool(0.16, *[0.02] * 7)
    pool.streams(1)
    pool.run(2 * TICK_SECONDS)
    assert pool.members[0].view.slowdown == 1.0
    pool.run(2.0)
    assert pool.members[0].view.slowdown == pytest.approx(8, rel=0.2)
