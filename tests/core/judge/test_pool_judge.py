"""The monitor of a pool: models, slots, engines that join, and how many may be excluded."""

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.fleet.leg_timer import LegTimer
from router.core.health import Health, State
from router.core.judge.member import Member
from router.core.judge.tuning import MIN_SLOW_START_WEIGHT
from router.core.judge.verdict import Exclusion, ExclusionConfig
from router.core.request_facts import PrefixKeys
from router.core.speed.capacity import Capacity
from router.core.speed.tuning import QUEUE_SECONDS, ROOM_FACTOR, TICK_SECONDS
from router.core.values import Role
from tests.core.fleets import card
from tests.core.judge.judged_pool import Pool, fail


def test_engines_are_grouped_again_only_when_their_models_or_they_change() -> None:
    pool = Pool(0.02, 0.02)
    before = pool.judge.groups()
    pool.run(1.0)
    assert pool.judge.groups() is before
    pool.judge.models_changed()
    assert pool.judge.groups() is not before
    pool.judge.watch(pool.members[:1])
    assert pool.judge.groups() == [pool.members[:1]]


@pytest.mark.parametrize("role", [Role.DECODE, Role.PREFILL])
def test_evicting_wanted_prefixes_costs(role: Role) -> None:
    pool = Pool(0.02, 0.02, role=role)
    pool.run(TICK_SECONDS)
    it = pool.members[0]
    assert it.view.eviction_cost == 0.0
    it.prompts.sent.resize(48)
    for number in range(4000):  # four prompts in turn, of which the cache holds three
        it.prompts.sent.claim(PrefixKeys((16 * (number % 4),), (16,))).confirm()
    pool.run(TICK_SECONDS)
    token = it.view.prompt_cost + it.view.first_token_weight
    weight = it.prompts.sent.evictions.weight
    assert weight > 1.0, "what is computed again evicts others in turn"
    assert it.view.eviction_cost == pytest.approx(weight * token)


def serving(pool: Pool, *names: str) -> Pool:
    """Each engine lists its model."""
    for member, name in zip(pool.members, names, strict=True):
        member.set_cards((card(name),))
    return pool


def test_limits_of_engines_with_another_model_are_ignored() -> None:
    pool = serving(Pool(0.02, 0.02, 0.02), "a", "a", "b")
    pool.members[0].capacity = Capacity(stated=4)
    pool.run(2 * TICK_SECONDS)
    assert [member.view.slots for member in pool.members] == [4, 4, math.inf]


def test_engines_of_a_larger_model_are_not_slow() -> None:
    pool = serving(Pool(*[0.08] * 2, *[0.02] * 6), *["large"] * 2, *["small"] * 6)
    pool.streams()
    pool.run(4.0)
    assert pool.exclusions == [None] * 8
    assert {member.view.slowdown for member in pool.members} == {1.0}
    large, small = (pool.judge.expected_delay(pool.members[place]) for place in (0, 7))
    assert large == pytest.approx(4 * (small or 0.0), rel=0.1)


def test_a_slow_engine_is_found_beside_many_of_a_larger_model() -> None:
    pool = serving(Pool(0.08, *[0.02] * 2, *[0.08] * 5), *["small"] * 3, *["large"] * 5)
    pool.streams()
    pool.run(4.0)
    assert pool.exclusions == [Exclusion.SLOW] + [None] * 7
    assert pool.members[0].view.slowdown == pytest.approx(4, rel=0.15)


@given(
    st.lists(st.sampled_from([0.02, 0.16, None]), min_size=1, max_size=9),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)
def test_never_more_than_the_share_is_shut(gaps: list[float | None], share: float) -> None:
    pool = Pool(*[0.02] * len(gaps), exclusion_config=ExclusionConfig(max_excluded=share))
    pool.streams(2)
    pool.run(1.0)
    for place, gap in enumerate(gaps):
        pool.set(place, gap)
    for _ in range(6):
        pool.run(1.0)
        assert sum(member.is_ejected_or_stalled for member in pool.members) <= share * len(gaps)
        assert not pool.judge.is_panic


def test_when_the_rest_goes_down_it_is_panic() -> None:
    pool = Pool(*[0.02] * 4)
    pool.streams()
    pool.run(1.0)
    pool.set(0, None)
    pool.run(4.0)
    for member in pool.members[1:]:
        member.health = Health(State.DOWN)
    pool.run(TICK_SECONDS)
    assert pool.judge.is_panic


def test_all_encode_engines_may_be_excluded_and_none_is_used_in_a_panic() -> None:
    """Requests go on without them."""
    strict = ExclusionConfig(max_excluded=0.0)
    pool = Pool(0.02, 0.02, role=Role.ENCODE, exclusion_config=strict)
    pool.run(1.0)
    fail(pool, 0, 5)
    pool.judge.configure(strict)
    fail(pool, 1, 5)
    assert Exclusion.EJECTED in pool.exclusions
    for member in pool.members:
        member.health = Health(State.DOWN, unanswered_since=0.0)
    pool.run(TICK_SECONDS)
    assert all(member.speed.counts.is_stalled for member in pool.members), "what waits leaves them"
    assert not pool.judge.is_panic


class Passes(list[Member]):
    """A pool that counts how often its engines are gone through."""

    times = 0

    def __iter__(self) -> Iterator[Member]:
        self.times += 1
        return super().__iter__()


def passes_when_all_stall(engines: int) -> list[int]:
    """Of each tick of three seconds in which half of them are excluded."""
    pool = Pool(*[0.02] * engines)
    pool.streams()
    pool.run(2.0)
    pool.gaps = [None] * engines
    passes = Passes(pool.members)
    pool.judge.watch(passes)
    counts = []
    for _ in range(12):
        before = passes.times
        pool.run(TICK_SECONDS)
        counts.append(passes.times - before)
    assert pool.exclusions.count(Exclusion.STALLED) == engines // 2
    return counts


def test_a_tick_in_which_a_large_pool_stalls_goes_through_it_as_often_as_through_a_small_one() -> (
    None
):
    assert passes_when_all_stall(60) == passes_when_all_stall(4)


def test_failures_of_engines_that_cannot_be_ejected_cost_no_look_at_the_pool() -> None:
    pool = Pool(*[None] * 8)
    passes = Passes(pool.members)
    pool.judge.watch(passes)
    for place in range(5):
        fail(pool, place, 5)
    assert pool.exclusions == [Exclusion.EJECTED] * 4 + [None] * 4
    before = passes.times
    for place in range(5):
        fail(pool, place, 5)
    assert passes.times == before


def test_a_restarted_engine_is_judged_as_a_new_one() -> None:
    pool = Pool(*[0.02] * 4)
    pool.members[1].view.load.add(1, 0, 0)
    fail(pool, 0, 5)
    pool.judge.joined(pool.members[0], 5.0)
    assert pool.members[0].exclusion is None
    assert pool.members[0].returned_at == 5.0


def test_a_restarted_engine_leaves_its_place_among_the_excluded_to_another() -> None:
    pool = Pool(*[None] * 4)
    for place in range(3):
        fail(pool, place, 5)
    assert pool.exclusions == [Exclusion.EJECTED, Exclusion.EJECTED, None, None]
    pool.judge.joined(pool.members[0], 5.0)
    fail(pool, 2, 1)
    assert pool.exclusions == [None, Exclusion.EJECTED, Exclusion.EJECTED, None]


def test_in_an_idle_pool_no_engine_needs_a_slow_start() -> None:
    pool = Pool(None, None)
    pool.judge.joined(pool.members[0], 5.0)
    assert pool.members[0].returned_at == -math.inf


def test_an_engine_is_full_when_streams_go_on_waiting() -> None:
    pool = Pool(0.02, 0.02)
    pool.streams(4)
    pool.run(1.0)
    waiting = [
        LegTimer(pool.members[0].speed.counts, None, 10, pool.now, tracks_first_token=True)
        for _ in range(2)
    ]
    pool.run(QUEUE_SECONDS)
    assert pool.members[0].view.slots == math.inf  # that may be their prefill
    pool.run(2 * TICK_SECONDS)
    assert pool.members[0].view.slots == 4
    assert pool.members[1].capacity.slots == math.inf
    assert pool.members[1].view.slots == 4 * ROOM_FACTOR  # not all that the first has no slots for
    for leg in waiting:
        leg.first_token(pool.now)


def test_an_engine_of_unknown_limit_gets_no_more_while_requests_are_delayed_there() -> None:
    pool = Pool(0.02, 0.02)
    pool.streams(4)
    pool.run(1.0)
    for _ in range(2):
        LegTimer(pool.members[0].speed.counts, None, 10, pool.now, tracks_first_token=True)
    pool.run(QUEUE_SECONDS + 2 * TICK_SECONDS)
    assert [member.view.slots for member in pool.members] == [4, 4 * ROOM_FACTOR]
    LegTimer(pool.members[1].speed.counts, None, 10, pool.now, tracks_first_token=True)
    pool.run(TICK_SECONDS)  # too short to say that it is full
    assert pool.members[1].capacity.slots == math.inf
    assert pool.members[1].view.slots == 4


@pytest.mark.parametrize(("others", "expected"), [(None, math.inf), (16, 16)])
def test_a_recovered_engine_drops_the_limit_learned_while_slow(
    others: int | None, expected: float
) -> None:
    """Nor is it unknown where others have one: three times what it runs would be allowed."""
    pool = Pool(0.16, *[0.02] * 7)
    pool.members[1].capacity = Capacity(stated=others)
    pool.streams()
    waiting = LegTimer(pool.members[0].speed.counts, None, 10, pool.now, tracks_first_token=True)
    pool.run(6.0)
    assert pool.members[0].view.slots == 8
    waiting.first_token(pool.now)
    pool.set(0, 0.02)
    pool.run(4.0)
    assert pool.exclusions[0] is None
    assert pool.members[0].view.slots == expected


def test_the_expected_time_of_a_usual_request() -> None:
    pool = Pool(0.16, *[0.02] * 7)
    assert pool.judge.expected_delay(pool.members[0]) is None
    pool.streams()
    pool.run(2.0)
    slow, usual = (pool.judge.expected_delay(pool.members[place]) for place in (0, 1))
    assert slow is not None
    assert usual is not None
    assert slow / usual == pytest.approx(8, rel=0.15)
    assert pool.members[1].view.prompt_cost == 0.0


def test_an_engine_that_joins_begins_with_its_small_share_at_once() -> None:
    pool = Pool(0.02, 0.02)
    pool.members[1].view.load.add(5, 0, 0)
    pool.judge.joined(pool.members[0], 100.0)
    assert pool.members[0].view.slow_start_weight == MIN_SLOW_START_WEIGHT
