"""The limit of an engine: known while requests queue, never below the number seen running."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.fleet.leg_timer import LegTimer
from router.core.speed.capacity import Capacity, QueueDetector, may_wait_for_slot, waits_for_slot
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.speed.tuning import (
    BURST_REQUESTS,
    DELAY_SECONDS,
    FORGET_LIMIT_SECONDS,
    FRESH_SECONDS,
    HOLD_SECONDS,
    QUEUE_SECONDS,
    QUEUE_STEPS,
    RAISE_SECONDS,
    RECENT_SECONDS,
    ROOM_FACTOR,
    SURE_SECONDS,
    TICK_SECONDS,
)
from router.core.values import Gauges


def run(
    capacity: Capacity,
    seconds: float,
    running: int,
    in_flight: int,
    at: float,
    *,
    queues: bool,
    first: float | None = 0.06,
) -> float:
    """Ticks with the same figures; the time then."""
    now = at
    for _ in range(round(seconds / TICK_SECONDS)):
        now += TICK_SECONDS
        capacity.observe_running(running, now)
        capacity.tick(in_flight, first, now, is_queueing=queues)
    return now


def test_there_is_no_limit_until_requests_queue() -> None:
    capacity = Capacity()
    run(capacity, 60.0, 64, 64, 0.0, queues=False)
    assert capacity.slots == math.inf


def test_an_unknown_limit_is_none_as_long_as_no_engine_has_one() -> None:
    capacity = Capacity()
    run(capacity, 60.0, 20, 20, 0.0, queues=False)
    assert capacity.room(math.inf) == math.inf


def test_beside_known_limits_an_unknown_one_is_theirs_or_a_multiple_of_its_own_maximum() -> None:
    capacity = Capacity()
    assert capacity.room(16.0) == 16
    now = run(capacity, 1.0, 20, 20, 0.0, queues=False)
    run(capacity, 60.0, 0, 0, now, queues=False)  # it has run so many, however long ago
    assert capacity.room(16.0) == 20 * ROOM_FACTOR
    assert capacity.room(64.0) == 64


def test_a_known_limit_is_its_own_whatever_others_have() -> None:
    capacity = Capacity()
    run(capacity, TICK_SECONDS, 8, 20, 0.0, queues=True)
    assert capacity.room(64.0) == Capacity(8).room(64.0) == 8


def test_the_limit_is_the_running_number_during_queueing() -> None:
    capacity = Capacity()
    run(capacity, TICK_SECONDS, 64, 80, 0.0, queues=True)
    assert capacity.slots == 64


def test_the_start_of_a_wave_lowers_no_limit() -> None:
    """All answers end in one step: for a moment few run and many wait."""
    capacity = Capacity()
    now = run(capacity, 1.0, 55, 55, 0.0, queues=False)
    for _ in range(20):
        now = run(capacity, TICK_SECONDS, 4, 55, now, queues=True)
        now = run(capacity, 3 * TICK_SECONDS, 55, 55, now, queues=True)
        assert capacity.slots == 55


def test_a_limit_that_binds_is_tried_again_and_soon_left_behind() -> None:
    """A full KV cache held 20 of 64: the engine gets its share again within ten seconds."""
    capacity = Capacity()
    now = run(capacity, RECENT_SECONDS + 1, 20, 40, 0.0, queues=True)
    assert capacity.slots == 20
    now = run(capacity, HOLD_SECONDS - TICK_SECONDS, 20, 20, now, queues=False)
    assert capacity.slots == 20
    for _ in range(40):
        allowed = int(min(capacity.slots, 64))
        now = run(capacity, TICK_SECONDS, allowed, allowed, now, queues=False)
    assert capacity.slots >= 64


def test_at_the_true_limit_a_raise_that_makes_first_tokens_late_is_taken_back() -> None:
    """64 run and a second is an answer: each one too many adds 1/64 s to all first tokens."""
    capacity = Capacity()
    now = run(capacity, 1.0, 64, 80, 0.0, queues=True)
    highest = 0.0
    for _ in range(4 * 60):
        late = max(0.0, capacity.slots - 64) / 64
        now = run(
            capacity, TICK_SECONDS, 64, int(capacity.slots), now, queues=False, first=0.06 + late
        )
        highest = max(highest, capacity.slots)
    assert 64 < highest <= 70
    assert 64 <= capacity.slots <= 70


def test_a_limit_that_does_not_bind_is_kept_and_then_forgotten() -> None:
    capacity = Capacity()
    now = run(capacity, 1.0, 64, 80, 0.0, queues=True)
    now = run(capacity, FORGET_LIMIT_SECONDS - 1, 30, 30, now, queues=False)
    assert capacity.slots == 64
    run(capacity, 1.5, 30, 30, now, queues=False)
    assert capacity.slots == math.inf


def test_a_limit_follows_a_cache_that_holds_fewer_sequences_than_before() -> None:
    capacity = Capacity()
    now = run(capacity, 10.0, 64, 64, 0.0, queues=False)
    now = run(capacity, SURE_SECONDS, 40, 80, now, queues=True)
    assert capacity.slots == 64
    run(capacity, 1.0, 40, 80, now, queues=True)
    assert capacity.slots == 40


def test_a_stated_limit_is_used_as_it_is() -> None:
    capacity = Capacity(32)
    assert capacity.slots == 32
    run(capacity, 30.0, 64, 80, 0.0, queues=True)
    assert capacity.slots == 32


def test_another_engine_at_the_same_address_has_no_limit() -> None:
    capacity = Capacity()
    now = run(capacity, 1.0, 64, 80, 0.0, queues=True)
    capacity.reset()
    assert capacity.slots == math.inf
    run(capacity, TICK_SECONDS, 4, 8, now, queues=True)
    assert capacity.slots == 4


@pytest.mark.parametrize(
    ("learned", "known", "expected"),
    [
        (4, 16.0, 16),  # it got few requests
        (64, 16.0, 64),
        (4, math.inf, math.inf),
        (None, 16.0, math.inf),
    ],
)
def test_a_limit_learned_while_slow_is_raised_to_that_of_others(
    learned: int | None, known: float, expected: float
) -> None:
    capacity = Capacity()
    now = 0.0
    if learned is not None:
        now = run(capacity, 1.0, learned, 80, 0.0, queues=True)
    capacity.forget_less_than(known)
    assert capacity.slots == expected
    run(capacity, TICK_SECONDS, 4, 4, now, queues=False)
    assert capacity.slots == expected


def test_failures_while_slow_do_not_count_later() -> None:
    capacity = Capacity()
    now = run(capacity, 1.0, 4, 80, 0.0, queues=True)
    while capacity.slots == 4:
        now = run(capacity, TICK_SECONDS, 4, 80, now, queues=False)
    capacity.forget_less_than(16.0)  # the raise to 5 is no longer of interest
    run(capacity, 2 * RAISE_SECONDS, 10, 16, now, queues=False)
    assert capacity.slots >= 16


def test_one_that_is_no_longer_slow_gets_no_more_than_it_runs_while_requests_are_delayed() -> None:
    capacity = Capacity()
    capacity.observe_running(20, 1.0)
    capacity.tick(30, None, 1.0, is_queueing=False, is_delayed=True)
    capacity.forget_less_than(16.0)
    assert capacity.room(16.0) == 20


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.booleans()), max_size=200),
)
def test_the_limit_is_never_below_the_recent_maximum(ticks: list[tuple[int, int, bool]]) -> None:
    capacity, now = Capacity(), 1000.0
    seen: list[tuple[float, int]] = []
    for running, waiting, queues in ticks:
        now += TICK_SECONDS
        capacity.observe_running(running, now)
        capacity.tick(running + waiting, 0.06, now, is_queueing=queues)
        seen.append((now, running))
        lately = [count for when, count in seen if when > now - SURE_SECONDS + 1]
        assert capacity.slots >= max(1, *lately, 1)


# What this router's own requests show.


UNHEARD = QueueDetector()
"""Of an engine whose gauges are not read."""


def engine(gap: float = 0.02, streams: int = 4) -> SpeedEstimator:
    """An engine whose streams run."""
    speed = SpeedEstimator()
    for _ in range(streams):
        LegTimer(speed.counts, None, 10, 0.0, tracks_first_token=True).first_token(0.0)
    speed.per_token = gap
    return speed


def ask(speed: SpeedEstimator, now: float, work: int = 10) -> LegTimer:
    """One more request there."""
    return LegTimer(speed.counts, None, work, now, tracks_first_token=True)


def test_a_long_wait_for_a_first_token_is_a_queue() -> None:
    speed = engine()
    ask(speed, 1.0)
    assert not waits_for_slot(speed, UNHEARD, 1.0 + QUEUE_SECONDS)
    assert waits_for_slot(speed, UNHEARD, 1.1 + QUEUE_SECONDS)


def test_a_slow_engine_takes_its_steps() -> None:
    speed = engine(gap=0.2)
    ask(speed, 1.0)
    assert not waits_for_slot(speed, UNHEARD, 1.0 + QUEUE_STEPS * 0.2)
    assert waits_for_slot(speed, UNHEARD, 1.1 + QUEUE_STEPS * 0.2)


def test_a_long_prompt_takes_its_time() -> None:
    speed = engine()
    speed.best_per_prompt_token = 1e-4
    ask(speed, 1.0, work=60_000)
    assert not waits_for_slot(speed, UNHEARD, 12.0)
    assert waits_for_slot(speed, UNHEARD, 14.0)


def test_a_request_that_later_ones_overtook_waits_for_something_else() -> None:
    speed = engine()
    ask(speed, 1.0)
    ask(speed, 2.0).first_token(2.1)
    speed.tick(2.25)
    assert not waits_for_slot(speed, UNHEARD, 9.0)


def test_where_nothing_runs_no_request_waits_for_a_slot() -> None:
    speed = engine(streams=0)
    ask(speed, 1.0)
    assert not waits_for_slot(speed, UNHEARD, 9.0)


def test_an_engine_that_has_stopped_has_no_queue() -> None:
    speed = engine()
    ask(speed, 1.0)
    speed.counts.is_stalled = True
    assert not waits_for_slot(speed, UNHEARD, 9.0)


def test_whoever_has_an_answer_or_left_waits_no_more() -> None:
    speed = engine()
    for leave in (LegTimer.first_token, LegTimer.unary_answer, LegTimer.end):
        leave(ask(speed, 1.0), 2.0)
        assert speed.counts.oldest_waiting is None


# What the engine's gauges show.


def queueing(*gauges: Gauges | None, has_transfers: bool = False) -> bool:
    """After these scrapes."""
    queue = QueueDetector()
    for second, each in enumerate(gauges):
        queue.observe(each, float(second), has_transfers=has_transfers)
    return queue.is_queueing


FULL = Gauges(running=64, waiting=5)
DEFERRED = Gauges(running=64, waiting=5, queued=0)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (FULL, FULL, True),
        (FULL, Gauges(running=60, waiting=9), True),
        (Gauges(running=64, waiting=0), FULL, False),
        (FULL, Gauges(running=64, waiting=0), False),
        (Gauges(running=10, waiting=50), FULL, False),
        (Gauges(running=0, waiting=50), Gauges(running=0, waiting=50), False),
        (None, FULL, False),
        (FULL, None, False),
        (DEFERRED, DEFERRED, False),
        (Gauges(running=64, waiting=5, queued=2), Gauges(running=64, waiting=5, queued=2), True),
        (
            Gauges(running=64, waiting=5, preemptions=1),
            Gauges(running=40, waiting=29, preemptions=2),
            True,
        ),
    ],
)
def test_two_scrapes_reveal_a_queue(before: Gauges, now: Gauges, expected: bool) -> None:
    assert queueing(before, now) is expected


def test_a_queue_is_over_with_the_first_scrape_without_one() -> None:
    assert not queueing(FULL, FULL, Gauges(running=64, waiting=0))


def test_where_caches_are_transferred_only_the_gauge_by_reason_counts() -> None:
    known = Gauges(running=64, waiting=9, queued=5)
    assert not queueing(FULL, FULL, has_transfers=True)
    assert queueing(known, known, has_transfers=True)


# Both.


def waits_by(gauges: Gauges | None, *, seconds: float, has_transfers: bool = False) -> bool:
    """Whether a request sent at 1.0 waits for a slot after so many seconds, by a scrape then."""
    speed, queue = engine(), QueueDetector()
    ask(speed, 1.0)
    now = 1.0 + seconds
    queue.observe(gauges, now, has_transfers=has_transfers)
    return waits_for_slot(speed, queue, now)


NONE_WAITS = Gauges(running=3, waiting=0)


def test_a_gauge_without_waiting_requests_means_a_slow_prompt() -> None:
    late = SURE_SECONDS - 0.1
    assert not waits_by(NONE_WAITS, seconds=late)
    assert not waits_by(DEFERRED, seconds=late)
    assert waits_by(FULL, seconds=late)


def test_an_engine_without_gauges_is_judged_by_requests_alone() -> None:
    late = SURE_SECONDS - 0.1
    assert waits_by(None, seconds=late)
    assert waits_by(Gauges(running=3), seconds=late)
    assert waits_by(NONE_WAITS, seconds=late, has_transfers=True)  # its gauge counts transfers too


def test_an_engine_is_not_believed_for_ever() -> None:
    assert waits_by(NONE_WAITS, seconds=SURE_SECONDS)


def test_an_old_scrape_is_no_evidence() -> None:
    speed, queue = engine(), QueueDetector()
    queue.observe(NONE_WAITS, 1.0, has_transfers=False)
    ask(speed, 2.0)
    assert not waits_for_slot(speed, queue, 1.0 + FRESH_SECONDS)
    assert waits_for_slot(speed, queue, 1.1 + FRESH_SECONDS)


def test_a_short_wait_may_be_for_a_slot() -> None:
    speed = engine()
    ask(speed, 1.0)
    now = 1.0 + max(DELAY_SECONDS, QUEUE_STEPS * 0.02)
    assert not may_wait_for_slot(speed, UNHEARD, now)
    assert may_wait_for_slot(speed, UNHEARD, now + 0.1)
    assert not waits_for_slot(speed, UNHEARD, now + 0.1)


@pytest.mark.parametrize(
    ("scraped", "requests", "may_wait"),
    [
        (0.9, BURST_REQUESTS, True),
        (1.0, BURST_REQUESTS, False),
        (1.1, BURST_REQUESTS, False),
        (0.9, BURST_REQUESTS - 1, False),  # a slow prefill delays so many
    ],
)
def test_old_scrape_proves_no_free_slot(scraped: float, requests: int, may_wait: bool) -> None:
    speed, queue = engine(), QueueDetector()
    queue.observe(NONE_WAITS, scraped, has_transfers=False)
    for _ in range(requests):
        ask(speed, 1.0)
    late = 1.1 + QUEUE_SECONDS
    assert may_wait_for_slot(speed, queue, late) is may_wait
    assert not waits_for_slot(speed, queue, late)  # nor that there is none


def test_a_request_counts_as_waiting_if_the_engines_gauge_confirms_it() -> None:
    speed, queue = engine(), QueueDetector()
    ask(speed, 1.0)
    queue.observe(FULL, 1.1, has_transfers=False)
    assert may_wait_for_slot(speed, queue, 1.4)


def test_two_scrapes_with_a_queue_are_a_delay_however_long_prompts_would_take() -> None:
    speed, queue = engine(), QueueDetector()
    queue.observe(FULL, 1.0, has_transfers=False)
    assert not may_wait_for_slot(speed, queue, 2.0)
    queue.observe(FULL, 2.0, has_transfers=False)
    assert may_wait_for_slot(speed, queue, 2.0 + FRESH_SECONDS)
    assert not may_wait_for_slot(speed, queue, 2.1 + FRESH_SECONDS)
    assert not waits_for_slot(speed, queue, 2.0)


def test_an_engine_of_unknown_limit_where_requests_are_delayed_has_no_more_room_than_it_runs():
    capacity = Capacity()
    capacity.observe_running(20, 1.0)
    capacity.tick(24, None, 1.0, is_queueing=False, is_delayed=True)
    assert capacity.room(16.0) == 20
    capacity.tick(24, None, 1.25, is_queueing=False)
    assert capacity.room(16.0) == 20  # a moment without delay proves nothing
    capacity.tick(20, None, 4.0, is_queueing=False)
    assert capacity.room(16.0) == 20 * ROOM_FACTOR


def test_a_raise_after_which_no_more_run_is_taken_back():
    """Though first tokens do not come much later: few wait."""
    capacity = Capacity()
    for now in range(3):
        capacity.observe_running(4, float(now))
        capacity.tick(6, None, float(now), is_queueing=True)
    limits = []
    for now in range(3, 11):
        capacity.observe_running(4, float(now))
        capacity.tick(6, 0.05, float(now), is_queueing=False)
        limits.append(capacity.slots)
    assert max(limits) == 5
    assert limits[-1] == 4
