"""shortest_expected_delay: work ahead weighted by speed; slow engines get only what they finish
sooner."""

import math
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.candidate import Candidate
from router.core.judge.tuning import SLOW
from router.core.policies.least_loaded import least_loaded
from router.core.policies.shortest_expected_delay import shortest_expected_delay
from tests.core.fixtures import D0, candidate

OWN = 100
"""Prompt tokens of the request, which no engine holds."""


def engine(
    requests: int = 0,
    *,
    slowdown: float = 1.0,
    lowest: float | None = None,
    highest: float | None = None,
    slots: float = math.inf,
    slow_start_weight: float = 1.0,
    pending: int = 0,
    cost: float = 0.0,
) -> Candidate:
    """A candidate with so many requests. `lowest`, `highest`: None if it was always as slow."""
    it = candidate(D0, requests)
    it.slowdown, it.slots, it.slow_start_weight, it.prompt_cost = (
        slowdown,
        slots,
        slow_start_weight,
        cost,
    )
    it.lowest_slowdown = slowdown if lowest is None else lowest
    it.highest_slowdown = slowdown if highest is None else highest
    it.is_slow = slowdown >= SLOW
    it.load.add(0, 0, pending)
    return it


def best(*engines: Candidate) -> int:
    """The place of the one that is chosen."""
    scores = list(shortest_expected_delay(engines, [OWN] * len(engines), 0.0, Random(0)))
    assert len(scores) == len(engines)
    return scores.index(min(scores))


def spread(engines: list[Candidate], requests: int) -> list[int]:
    """Where so many requests go, none of which ends."""
    for _ in range(requests):
        engines[best(*engines)].load.add(1, 0, 0)
    return [it.load.requests for it in engines]


@given(st.lists(st.tuples(st.integers(0, 99), st.none() | st.integers(0, 99)), min_size=1))
def test_with_equal_engines_it_is_least_loaded(loads: list[tuple[int, int | None]]) -> None:
    engines = [candidate(D0, requests, others) for requests, others in loads]
    scores = shortest_expected_delay(engines, [OWN] * len(engines), 0.0, Random(0))
    wanted = least_loaded(engines, [OWN] * len(engines), 0.0, Random(0))
    order = sorted(range(len(engines)), key=lambda place: (scores[place], place))
    assert order == sorted(range(len(engines)), key=lambda place: (wanted[place], place))


def test_an_engine_at_half_the_speed_gets_an_eighth() -> None:
    slower, usual = spread([engine(slowdown=2.0), engine()], 180)
    assert slower == pytest.approx(180 / 9, abs=2)
    assert slower + usual == 180


def test_an_engine_at_twice_the_speed_gets_twice_the_work() -> None:
    quick, usual = spread([engine(slowdown=0.5), engine()], 90)
    assert quick == pytest.approx(2 * usual, abs=2)


def test_a_slow_engine_gets_nothing_while_others_have_room() -> None:
    assert spread([engine(slowdown=8.0), engine(slots=64), engine(slots=64)], 128) == [0, 64, 64]


def test_a_slow_engine_gets_only_requests_that_it_finishes_sooner() -> None:
    # 8 times as slow: it pays when the others' queues are 7 answers long.
    slow, usual = spread([engine(slowdown=8.0, slots=64), engine(slots=64)], 64 * 8 + 10)
    assert usual == pytest.approx(64 * 8, abs=2)
    assert slow == 64 * 8 + 10 - usual


def test_slow_engines_among_themselves_share_by_speed() -> None:
    assert best(engine(5, slowdown=SLOW), engine(5, slowdown=2 * SLOW)) == 0


def test_a_place_in_the_queue_for_few_slots_is_worse() -> None:
    small, large = engine(4, slots=4), engine(16, slots=16)
    small.queue_factor = 4.0
    assert best(small, large) == 1
    large.load.add(4, 0, 0)
    assert best(small, large) == 0


def test_a_free_slot_on_a_slower_engine_is_better_than_a_queue() -> None:
    assert best(engine(66, slots=64), engine(20, slowdown=2.0, slots=64)) == 1


def test_a_long_prompt_ahead_is_more_than_one_request_ahead() -> None:
    ahead = engine(1, pending=60_000, cost=0.001)
    assert best(ahead, engine(50, cost=0.001)) == 1


def choice(engines: list[Candidate], uncached: list[int]) -> int:
    """The place of the one that is chosen for a prompt which they hold in part."""
    scores = list(shortest_expected_delay(engines, uncached, 0.0, Random(0)))
    return scores.index(min(scores))


def test_cached_tokens_outweigh_some_requests() -> None:
    holder, other = engine(3), engine(0)
    assert choice([holder, other], [1, 1024]) == 0
    assert choice([engine(5), other], [1, 1024]) == 1


def test_a_holder_is_worth_more_if_a_copy_evicts_wanted_prefixes() -> None:
    other = engine(0)
    other.eviction_cost = 1 / 128
    assert choice([engine(11), other], [1, 1024]) == 0
    assert choice([engine(13), other], [1, 1024]) == 1
    assert choice([engine(1), other], [1024, 1024]) == 1, "both evict as much"


def test_a_slow_holder_is_worth_less() -> None:
    assert choice([engine(2, slowdown=1.9), engine(0)], [1, 1024]) == 1


def test_momentary_slowness_does_not_devalue_a_holder() -> None:
    holder, other = engine(2, slowdown=1.9, lowest=1.0), engine(0)
    assert choice([holder, other], [1, 1024]) == 0
    assert choice([holder, other], [1024, 1024]) == 1


def test_a_holder_is_not_left_for_an_engine_that_is_fast_for_a_moment() -> None:
    holder, moment, usual = engine(3), engine(0, slowdown=0.5, highest=1.0), engine(0, slowdown=0.5)
    held = [1, 1024]
    assert choice([holder, moment], held) == 0
    assert choice([holder, usual], held) == 1
    assert choice([engine(0), moment], [1024, 1024]) == 1


def test_an_engine_without_the_prefix_is_avoided_at_once_if_slow() -> None:
    hesitant, usual, holder = engine(0, slowdown=1.9, lowest=1.0), engine(1), engine(99)
    assert choice([hesitant, usual, holder], [1024, 1024, 1]) == 1


def test_holders_that_are_excluded_as_slow_come_last_though_they_were_fast_just_now() -> None:
    holder, other = engine(0, slowdown=SLOW, lowest=1.0, cost=0.001), engine(9, cost=0.001)
    assert choice([holder, other], [1, 1024]) == 1


def test_prompts_of_one_step_delay_no_stream_but_longer_ones_do() -> None:
    def waiting(tokens: int) -> list[Candidate]:
        first = engine(1, pending=tokens)
        second = engine(3)
        first.first_token_weight = second.first_token_weight = 1 / 32
        return [first, second]

    assert choice(waiting(2048), [OWN, OWN]) == 0
    assert choice(waiting(2048 + 100), [OWN, OWN]) == 1
    slow = waiting(1300 + 100)
    for each in slow:
        each.negligible_tokens = 1300  # on this hardware
    assert choice(slow, [OWN, OWN]) == 1
    busy, idle = waiting(1500)
    busy.load.add(9, 0, 0)
    assert choice([busy, idle], [OWN, OWN]) == 1


class Computed(NamedTuple):
    """The prompt in progress is computed so far."""

    tokens: float

    def progress(self, _now: float) -> float:
        return self.tokens


def test_computed_tokens_of_a_long_prompt_delay_no_request() -> None:
    nearly_done, waiting = engine(1, pending=50_000), engine(1, pending=8000)
    for it in (nearly_done, waiting):
        it.first_token_weight = 1 / 32
    assert best(nearly_done, waiting) == 1
    nearly_done.prefill = Computed(48_000.0)
    assert best(nearly_done, waiting) == 0


def test_prompts_count_more_where_they_take_longer() -> None:
    first, second = engine(1, pending=500), engine(3)
    first.first_token_weight = second.first_token_weight = 1 / 32
    assert choice([first, second], [OWN, OWN]) == 0
    first.prompt_slowdown = 8.0
    assert choice([first, second], [OWN, OWN]) == 1


def test_a_slow_engine_that_is_slower_with_prompts_is_expected_to_finish_later() -> None:
    slow, usual = engine(slowdown=3.0, cost=0.001), engine(240, slots=64.0)
    assert best(slow, usual) == 0
    slow.prompt_slowdown = 20.0
    assert best(slow, usual) == 1


def test_an_engine_that_comes_back_gets_its_share_of_the_ramp() -> None:
    back, usual = spread([engine(slow_start_weight=0.1), engine(50)], 12)
    assert back == pytest.approx(5, abs=1)
    assert usual == 62 - back


@given(
    st.lists(
        st.builds(
            engine,
            st.integers(0, 2000),
            slowdown=st.floats(0.5, 100),
            slots=st.just(math.inf) | st.integers(1, 1024).map(float),
            slow_start_weight=st.floats(0.1, 1),
            pending=st.integers(0, 10**7),
            cost=st.floats(0, 1),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_slow_engine_wins_only_if_it_finishes_first(engines: list[Candidate]) -> None:
    scores = shortest_expected_delay(engines, [OWN] * len(engines), 0.0, Random(0))
    assert all(math.isfinite(score) and score > 0 for score in scores)
