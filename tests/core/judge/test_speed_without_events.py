"""The monitor of a pool: engines whose speed their SSE events do not show."""

import math

import pytest

from router.core.fleet.leg_timer import LegTimer
from router.core.judge.verdict import Exclusion
from router.core.speed.tuning import TICK_SECONDS
from router.core.values import Gauges
from tests.core.judge.judged_pool import Pool


def scrape(pool: Pool, gap: float, held: int, seconds: float, slow: float | None = None) -> None:
    """Let time pass in which each engine also generates for so many streams whose tokens are held
    back; `slow`: the gap of the first engine's."""
    for second in range(round(seconds)):
        pool.run(1.0)
        for place, member in enumerate(pool.members):
            own = slow if slow is not None and place == 0 else gap
            streams = member.speed.counts.all_streams
            before = member.scrapes.gauges.generated if member.scrapes.gauges else 0
            tokens = int(streams / own) if second or before else 0
            gauges = Gauges(running=streams, waiting=0, generated=(before or 0) + tokens)
            member.observe_gauges(gauges, streams, pool.now, has_transfers=False)
            assert held <= streams


def test_engines_whose_streams_hold_tokens_back_are_neither_slow_nor_stalled() -> None:
    """Of half of the engines nothing comes but for one stream in eight."""
    pool = Pool(*[0.16] * 4, *[0.02] * 4)
    pool.streams()
    scrape(pool, 0.02, 7, 4.0)
    for _ in range(30):
        scrape(pool, 0.02, 7, 1.0)
        assert pool.exclusions == [None] * 8
        assert {member.view.slowdown for member in pool.members} == {1.0}


def test_an_engine_that_is_silent_and_generates_is_not_stalled_and_one_that_hangs_is() -> None:
    pool = Pool(None, None, *[0.02] * 4)
    pool.streams()
    for member in pool.members:
        member.speed.counts.is_warm = True
    scrape(pool, 0.02, 8, 3.0, slow=0.02)
    hung = pool.members[0]
    for _ in range(4):
        scrape(pool, 0.02, 8, 1.0, slow=math.inf)
    assert hung.verdict.stall.since is not None
    assert pool.exclusions[1] is None


def test_an_engine_that_is_slow_while_tokens_are_held_back_is_found_by_its_counter() -> None:
    pool = Pool(None, *[None] * 7)
    pool.streams()
    scrape(pool, 0.02, 8, 4.0)
    scrape(pool, 0.02, 8, 4.0, slow=0.16)
    assert pool.exclusions == [Exclusion.SLOW] + [None] * 7


def short_answers(pool: Pool, seconds: float, factors: list[float], works: list[int]) -> None:
    """Ten unary answers a second from each engine, of one token."""
    for _ in range(round(seconds / TICK_SECONDS)):
        for place, member in enumerate(pool.members):
            for work in (works[place], 2 * works[place]):
                leg = LegTimer(member.speed.counts, None, work, pool.now, tracks_first_token=False)
                took = factors[place] * (0.04 + 0.0001 * work)
                leg.unary_answer(pool.now + took, 1)
        pool.run(TICK_SECONDS)


def test_a_slow_engine_is_found_by_answers_of_one_token() -> None:
    pool = Pool(*[None] * 8)
    short_answers(pool, 3.0, [8.0] + [1.0] * 7, [300] * 8)
    assert pool.exclusions == [Exclusion.SLOW] + [None] * 7
    assert pool.members[0].view.slowdown == pytest.approx(8, rel=0.15)
    pool.set(0, 0.16)
    probe = LegTimer(pool.members[0].speed.counts, None, 2, pool.now, tracks_first_token=True)
    probe.first_token(pool.now)
    short_answers(pool, 3.0, [8.0] + [1.0] * 7, [300] * 8)
    assert pool.exclusions == [Exclusion.SLOW] + [None] * 7  # the others have no gap to compare
    probe.end(pool.now)
    pool.set(0, None)
    short_answers(pool, 3.0, [1.0] * 8, [300] * 8)
    assert pool.exclusions == [None] * 8


def test_an_engine_that_gets_long_prompts_or_a_long_queue_is_not_slow() -> None:
    pool = Pool(*[None] * 8)
    short_answers(pool, 5.0, [1.0] * 8, [3000, *[300] * 7])
    assert {member.view.slowdown for member in pool.members} == {1.0}


def test_slow_engines_are_found_by_answers_of_equal_duration() -> None:
    """Prompts of no length that matters: no line can be fitted."""
    pool = Pool(*[None] * 8)
    short_answers(pool, 3.0, [8.0] + [1.0] * 7, [1] * 8)
    assert pool.exclusions == [Exclusion.SLOW] + [None] * 7


def test_an_engine_without_answers_is_tried_again_and_one_without_any_is_not_slow() -> None:
    pool = Pool(*[None] * 8)
    short_answers(pool, 3.0, [8.0] + [1.0] * 7, [300] * 8)
    assert pool.exclusions[0] is Exclusion.SLOW
    pool.run(16.0)
    assert pool.exclusions == [None] * 8
