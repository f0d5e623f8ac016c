"""The monitor of a pool: engines that produce no tokens, and those that only pause."""

import pytest

from router.core.fleet.leg_timer import LegTimer
from router.core.fleet.probing import SPEED_PROBE_TIMEOUT_SECONDS
from router.core.health import Health, State
from router.core.judge.tuning import RETRY_SECONDS
from router.core.judge.verdict import Exclusion
from router.core.speed.tuning import FORGET_SECONDS, TICK_SECONDS
from tests.core.judge.judged_pool import Pool


def test_a_frozen_engine_is_excluded_until_it_has_tokens() -> None:
    pool = Pool(*[0.02] * 8)
    pool.streams()
    pool.run(2.0)
    pool.set(0, None)
    pool.run(2.75)
    assert pool.members[0].exclusion is Exclusion.STALLED
    assert pool.members[0].speed.counts.is_stalled
    pool.set(0, 0.02)
    pool.run(TICK_SECONDS)
    assert pool.members[0].verdict.stall.since is None
    assert pool.members[0].view.slow_start_weight < 1.0


@pytest.mark.parametrize("seconds", [0.02, 0.16])
def test_streams_leave_a_frozen_engine_as_a_failed_one_and_not_as_a_slow_one(
    seconds: float,
) -> None:
    pool = Pool(seconds, *[0.02] * 7)
    pool.streams()
    pool.run(4.0)
    counts = pool.members[0].speed.counts
    assert counts.hands_over == (seconds > 0.02)
    pool.set(0, None)
    pool.run(15.0)
    assert counts.is_stalled
    assert not counts.hands_over


@pytest.mark.parametrize("tokens_per_event", [1, 4])
def test_the_only_engine_with_streams_stalls_as_soon_as_others(tokens_per_event: int) -> None:
    pool = Pool(0.02, 0.02)
    counts = pool.members[0].speed.counts
    for leg in pool.streams():
        if leg.counts is not counts:
            leg.end(0.0)
    counts.calibration.assume(tokens_per_event)
    pool.run(5.0)
    pool.set(0, None)
    pool.run(2.75)
    assert counts.is_stalled


@pytest.mark.parametrize("count", [2, 3])
def test_streams_leave_a_frozen_engine_also_when_its_health_has_timed_out_first(count: int) -> None:
    """It gets no new requests anyway, so the limit of exclusions does not protect it."""
    pool = Pool(*[0.02] * count)
    pool.streams()
    pool.run(2.0)
    pool.set(0, None)
    pool.members[0].health = Health(State.DOWN, unanswered_since=pool.now)
    pool.judge.limit.health_changed()
    pool.run(2.75)
    assert pool.members[0].speed.counts.is_stalled


def test_a_stalled_engine_that_everybody_left_is_tried_again() -> None:
    pool = Pool(*[0.02] * 4)
    legs = pool.streams()
    pool.run(1.0)
    pool.set(0, None)
    pool.run(4.0)
    assert pool.members[0].is_ejected_or_stalled
    for leg in legs:
        leg.end(pool.now)
    pool.run(RETRY_SECONDS + 1)
    assert not pool.members[0].is_ejected_or_stalled


def test_an_engine_that_hangs_is_stalled_as_long_as_its_probes_wait_in_vain() -> None:
    pool = Pool(*[0.02] * 4)
    it = pool.members[0]
    for leg in pool.streams():
        leg.end(pool.now + TICK_SECONDS)
    pool.run(1.0)
    pool.set(0, None)
    user = LegTimer(it.speed.counts, None, 10, pool.now, tracks_first_token=True)
    pool.run(13.0)
    user.end(pool.now)
    for _ in range(30):
        assert pool.exclusions[0] is Exclusion.STALLED
        probe = LegTimer(it.speed.counts, None, 2, pool.now, tracks_first_token=True)
        pool.run(SPEED_PROBE_TIMEOUT_SECONDS)
        probe.end(pool.now)
        pool.run(1.0)
    probe = LegTimer(it.speed.counts, None, 2, pool.now, tracks_first_token=True)
    probe.first_token(pool.now)
    pool.run(TICK_SECONDS)
    assert pool.exclusions[0] is None


def test_an_engine_that_hung_without_streams_stalls_with_the_first_request() -> None:
    pool = Pool(*[0.02] * 4)
    legs = pool.streams()
    pool.run(2.0)
    for leg in legs:
        leg.end(pool.now)
    pool.set(0, None)
    pool.run(FORGET_SECONDS + 10)
    LegTimer(pool.members[0].speed.counts, None, 10, pool.now, tracks_first_token=True)
    pool.members[0].view.load.add(1, 10, 10)
    pool.run(2.5)
    assert pool.exclusions == [Exclusion.STALLED, None, None, None]


def test_a_hang_of_the_router_counts_against_no_engine() -> None:
    pool = Pool(*[0.02] * 8)
    pool.streams()
    pool.run(2.0)
    for member in pool.members[:3]:  # their answers have been read already
        member.speed.counts.counter.tokens += 8 * 150
    pool.now += 3.0
    pool.judge.tick(pool.now)
    assert pool.exclusions == [None] * 8
    assert {member.view.slowdown for member in pool.members} == {1.0}
    pool.run(TICK_SECONDS)
    assert pool.exclusions == [None] * 8


def test_a_silence_of_all_engines_makes_none_of_them_slow() -> None:
    """The host paused for a second; some engines had no stream to show it."""
    pool = Pool(*[0.02] * 8)
    pool.streams(4)
    pool.run(2.0)
    for place in range(8):
        pool.set(place, None)
    pool.run(1.5)
    assert pool.exclusions == [None] * 8
    assert all(member.speed.per_token == pytest.approx(0.02, rel=0.2) for member in pool.members)


def test_an_engine_with_a_pause_of_a_second_keeps_its_share() -> None:
    pool = Pool(*[0.02] * 8)
    pool.streams(4)
    pool.run(2.0)
    for gap, seconds in ((None, 1.0), (0.02, 2.0)):
        pool.set(0, gap)
        for _ in range(round(seconds / TICK_SECONDS)):
            pool.run(TICK_SECONDS)
            view = pool.members[0].view
            assert (view.slowdown, view.is_slow, view.slow_start_weight) == (1.0, False, 1.0)


def test_recently_ended_streams_show_that_other_engines_are_silent() -> None:
    """These have streams at the tick, and that one had tokens before it: the host did not pause."""
    pool = Pool(*[0.02] * 3)
    legs = pool.streams(4)
    pool.run(2.0)
    for place in (0, 1):
        pool.set(place, None)
    pool.members[2].speed.counts.counter.tokens += 40
    for leg in legs[8:]:
        leg.end(pool.now)
    pool.judge.tick(pool.now + TICK_SECONDS)
    pool.now += TICK_SECONDS
    assert all(member.speed.pauses.hides_speed for member in pool.members[:2])


def test_a_silence_of_one_engine_is_its_own() -> None:
    pool = Pool(*[0.02] * 8)
    pool.streams(4)
    pool.run(2.0)
    pool.set(0, None)
    pool.run(1.5)
    assert pool.exclusions[0] is not None
