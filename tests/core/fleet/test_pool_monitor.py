"""The monitor of a pool, in virtual time: slow, stalled and failing engines, and their return."""

import math
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.fleet.ledger import Lease
from router.core.fleet.leg_timer import LegTimer
from router.core.fleet.member import Exclusion, Member
from router.core.fleet.pool_monitor import MIN_SLOW_START_WEIGHT, ExclusionConfig, PoolMonitor
from router.core.fleet.probing import SPEED_PROBE_TIMEOUT_SECONDS, speed_probe_work
from router.core.health import Health, State
from router.core.speed.capacity import QUEUE_SECONDS, ROOM_FACTOR, Capacity
from router.core.speed.speed_estimator import FORGET_SECONDS, TICK_SECONDS
from router.core.speed.stall import RETRY_SECONDS
from router.core.values import Candidate, Endpoint, Gauges, PrefixKeys, Role
from tests.core.fleets import card

UP = Health(State.UP)


class Pool:
    """Engines that give tokens at gaps of their own, watched by a monitor."""

    def __init__(
        self,
        *gaps: float | None,
        role: Role = Role.DECODE,
        exclusion_config: ExclusionConfig | None = None,
    ):
        self.gaps = list(gaps)
        self.members = [
            Member(Candidate(Endpoint(f"http://e{number}", role), number), UP)
            for number in range(len(gaps))
        ]
        self.monitor = PoolMonitor(role, self.members, exclusion_config or ExclusionConfig())
        self.now = 0.0
        self._due = [gap or 0.0 for gap in gaps]

    def streams(self, count: int = 8) -> list[LegTimer]:
        """Open so many on every engine, each past its first token."""
        legs = []
        for member in self.members:
            for _ in range(count):
                leg = LegTimer(member.speed, None, 10, self.now, tracks_first_token=True)
                leg.first_token(self.now)
                legs.append(leg)
        return legs

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / TICK_SECONDS)):
            self.now += TICK_SECONDS
            for place, member in enumerate(self.members):
                gap = self.gaps[place]
                while gap is not None and self._due[place] <= self.now + 1e-9:
                    member.speed.tokens += member.speed.streams
                    self._due[place] += gap
            self.monitor.tick(self.now)

    def set(self, place: int, gap: float | None) -> None:
        """Change an engine's gap from now on."""
        self.gaps[place] = gap
        self._due[place] = self.now + (gap or 0.0)

    @property
    def exclusions(self) -> list[Exclusion | None]:
        """Each engine's exclusion."""
        return [member.exclusion for member in self.members]


# Speed.


def test_engines_are_grouped_again_only_when_their_models_or_they_change() -> None:
    pool = Pool(0.02, 0.02)
    before = pool.monitor.rivals()
    pool.run(1.0)
    assert pool.monitor.rivals() is before
    pool.monitor.models_changed()
    assert pool.monitor.rivals() is not before
    pool.monitor.watch(pool.members[:1])
    assert pool.monitor.rivals() == [pool.members[:1]]


@pytest.mark.parametrize("role", [Role.DECODE, Role.PREFILL])
def test_it_costs_to_evict_what_is_asked_for_again(role: Role) -> None:
    pool = Pool(0.02, 0.02, role=role)
    pool.run(TICK_SECONDS)
    it = pool.members[0]
    assert it.view.eviction_cost == 0.0
    it.prefixes.resize(48)
    for number in range(4000):  # four prompts in turn, of which the cache holds three
        it.prefixes.claim(PrefixKeys((16 * (number % 4),), (16,))).confirm()
    pool.run(TICK_SECONDS)
    token = it.view.prompt_cost + it.view.first_token_weight
    weight = it.prefixes.evictions.weight
    assert weight > 1.0, "what is computed again evicts others in turn"
    assert it.view.eviction_cost == pytest.approx(weight * token)


def test_a_slow_engine_is_known_within_a_second_and_by_how_much() -> None:
    pool = Pool(0.16, *[0.02] * 7)
    pool.streams()
    pool.run(1.0)
    assert pool.exclusions == [Exclusion.SLOW] + [None] * 7
    assert pool.members[0].view.slowdown == pytest.approx(8, rel=0.15)
    assert {member.view.slowdown for member in pool.members[1:]} == {1.0}
    assert pool.monitor.pool_median == pytest.approx(0.02, rel=0.05)


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


def test_a_slowdown_lasts_when_it_has_been_seen_for_two_seconds() -> None:
    pool = Pool(*[0.02] * 8)
    pool.streams()
    pool.run(2.0)
    view = pool.members[0].view
    pool.set(0, 0.04)
    pool.run(1.5)
    assert view.slowdown == pytest.approx(2, rel=0.15)
    assert view.lasting_slowdown == 1.0
    pool.run(1.25)
    assert view.lasting_slowdown == pytest.approx(view.slowdown, rel=0.3)
    assert view.lasting_slowdown > 1.0
    pool.set(0, 0.02)
    pool.run(1.25)
    assert view.lasting_slowdown == view.slowdown == 1.0


def test_an_engine_that_comes_up_has_no_lasting_slowdown() -> None:
    pool = Pool(0.16, *[0.02] * 7)
    pool.streams()
    pool.run(4.0)
    it = pool.members[0]
    assert it.view.lasting_slowdown > 3.0
    pool.monitor.joined(it, pool.now)
    assert it.view.lasting_slowdown == it.view.slowdown == 1.0
    assert list(it.slowdowns) == [1.0]


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


def test_who_was_slow_for_a_moment_has_a_short_slow_start() -> None:
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


def test_who_is_slow_again_and_again_has_a_slow_start_for_all_of_that_time() -> None:
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


def test_an_engine_that_has_just_come_up_sends_as_many_tokens_in_an_event_as_the_others() -> None:
    pool = Pool(*[0.02] * 4)
    for member in pool.members[1:]:
        member.speed.calibration.learn(2000, 100, by_usage=False)
    pool.run(TICK_SECONDS)
    assert [member.speed.calibration.tokens_per_event for member in pool.members] == [20.0] * 4
    pool.members[0].speed.calibration.learn(300, 100, by_usage=False)
    pool.run(TICK_SECONDS)
    assert pool.members[0].speed.calibration.tokens_per_event == 3.0  # it has learned itself


BASE, PER_TOKEN = 0.03, 1 / 20_000
"""Seconds of a prefill, as a step and the network take them whatever the prompt, and of a token."""


def prefill(pool: Pool, place: int, tokens: int, factor: float = 1.0) -> None:
    """An engine computes a prompt, in a time so many times the usual."""
    seconds = factor * (BASE + PER_TOKEN * tokens)
    speed = pool.members[place].speed
    leg = LegTimer(speed, None, tokens, pool.now - seconds, tracks_first_token=True)
    leg.unary_answer(pool.now)
    leg.end(pool.now)


def with_short_prompts(factor: float) -> Pool:
    """A pool whose first engine got short ones only, and took so many times the usual for them."""
    pool = Pool(None, None, None, role=Role.PREFILL)
    for _ in range(40):
        for tokens in (30, 200, 8000):
            prefill(pool, 1, tokens)
            prefill(pool, 2, tokens)
        prefill(pool, 0, 30, factor)
        pool.run(TICK_SECONDS)
    return pool


def test_a_prefill_engine_that_gets_short_prompts_only_is_not_slow() -> None:
    pool = with_short_prompts(1.0)
    assert [member.view.slowdown for member in pool.members] == [1.0, 1.0, 1.0]
    assert pool.members[0].speed.prompt_overhead == pytest.approx(BASE / PER_TOKEN, rel=0.2)


def test_a_slow_prefill_engine_is_seen_by_short_prompts_too() -> None:
    pool = with_short_prompts(4.0)
    assert pool.exclusions == [Exclusion.SLOW, None, None]


def test_a_prefill_engine_that_was_slow_returns_by_its_probes() -> None:
    """All prompts are equally long: nobody knows what a short one takes."""
    pool = Pool(None, None, None, role=Role.PREFILL)
    slow = []
    for number in range(160):
        for place in (0, 1, 2):
            factor = 4.0 if place == 0 and number < 40 else 1.0
            if place != 0 or pool.exclusions[0] is None:
                prefill(pool, place, 4000, factor)
            elif number % 4 == 0:
                prefill(pool, 0, speed_probe_work(pool.members[0]), factor)
        pool.run(TICK_SECONDS)
        slow += [number] * (pool.exclusions[0] is Exclusion.SLOW)
    assert slow == list(range(slow[0], slow[-1] + 1))
    assert slow[0] <= 4
    assert 39 <= slow[-1] <= 40 + 3 / TICK_SECONDS
    assert pool.exclusions == [None, None, None]


def test_a_prefill_pool_is_judged_by_prompt_tokens() -> None:
    pool = Pool(None, None, None, role=Role.PREFILL)
    for place, member in enumerate(pool.members):
        leg = LegTimer(member.speed, None, 1000, 0.0, tracks_first_token=True)
        leg.unary_answer(8.0 if place == 0 else 1.0)
        leg.end(8.0)
    pool.run(TICK_SECONDS)
    assert pool.exclusions == [Exclusion.SLOW, None, None]
    assert pool.members[0].view.prompt_cost > 0


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


def test_a_long_unary_answer_does_not_hold_its_prompt_pending() -> None:
    """Also on an engine whose speed nobody has measured: its pool's counts."""
    pool = Pool(0.02, 0.02)
    first = LegTimer(pool.members[0].speed, None, 1000, 0.0, tracks_first_token=True)
    first.first_token(1.0)
    first.end(1.0)
    load = pool.members[1].view.load
    lease = Lease(load, pool.members[1].endpoint, 4000, 4000)
    LegTimer(pool.members[1].speed, lease, 4000, 0.0, tracks_first_token=False)
    pool.run(7.0)
    assert load.pending == 4000
    pool.run(2.0)
    assert load.pending == 0


def test_nor_does_one_in_a_pool_without_any_streams() -> None:
    pool = Pool(0.02, 0.02)
    load = pool.members[0].view.load
    lease = Lease(load, pool.members[0].endpoint, 32_000, 32_000)
    leg = LegTimer(pool.members[0].speed, lease, 32_000, 0.0, tracks_first_token=False)
    pool.run(6.0)
    assert load.pending == 32_000
    pool.run(1.0)
    assert load.pending == 0
    leg.end(pool.now)


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


# Models: requests choose among the engines that serve theirs, so these are compared.


def serving(pool: Pool, *names: str) -> Pool:
    """Each engine tells which model it serves."""
    for member, name in zip(pool.members, names, strict=True):
        member.set_cards((card(name),))
    return pool


def test_the_limits_of_engines_with_another_model_say_nothing() -> None:
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
    large, small = (pool.monitor.expected_delay(pool.members[place]) for place in (0, 7))
    assert large == pytest.approx(4 * (small or 0.0), rel=0.1)


def test_a_slow_engine_is_found_beside_many_of_a_larger_model() -> None:
    pool = serving(Pool(0.08, *[0.02] * 2, *[0.08] * 5), *["small"] * 3, *["large"] * 5)
    pool.streams()
    pool.run(4.0)
    assert pool.exclusions == [Exclusion.SLOW] + [None] * 7
    assert pool.members[0].view.slowdown == pytest.approx(4, rel=0.15)


# Silence.


def test_a_frozen_engine_is_excluded_until_it_has_tokens() -> None:
    pool = Pool(*[0.02] * 8)
    pool.streams()
    pool.run(2.0)
    pool.set(0, None)
    pool.run(2.75)
    assert pool.members[0].exclusion is Exclusion.STALLED
    assert pool.members[0].speed.is_stalled
    pool.set(0, 0.02)
    pool.run(TICK_SECONDS)
    assert pool.members[0].stall.since is None
    assert pool.members[0].view.slow_start_weight < 1.0


def test_a_stalled_engine_that_everybody_left_is_tried_again() -> None:
    pool = Pool(*[0.02] * 4)
    legs = pool.streams()
    pool.run(1.0)
    pool.set(0, None)
    pool.run(4.0)
    assert pool.members[0].is_blocked
    for leg in legs:
        leg.end(pool.now)
    pool.run(RETRY_SECONDS + 1)
    assert not pool.members[0].is_blocked


def test_an_engine_that_hangs_is_stalled_as_long_as_its_probes_wait_in_vain() -> None:
    pool = Pool(*[0.02] * 4)
    it = pool.members[0]
    for leg in pool.streams():
        leg.end(pool.now + TICK_SECONDS)
    pool.run(1.0)
    pool.set(0, None)
    user = LegTimer(it.speed, None, 10, pool.now, tracks_first_token=True)
    pool.run(13.0)
    user.end(pool.now)
    for _ in range(30):
        assert pool.exclusions[0] is Exclusion.STALLED
        probe = LegTimer(it.speed, None, 2, pool.now, tracks_first_token=True)
        pool.run(SPEED_PROBE_TIMEOUT_SECONDS)
        probe.end(pool.now)
        pool.run(1.0)
    probe = LegTimer(it.speed, None, 2, pool.now, tracks_first_token=True)
    probe.first_token(pool.now)
    pool.run(TICK_SECONDS)
    assert pool.exclusions[0] is None


def test_an_engine_that_hung_while_nobody_was_there_stalls_under_the_first_request() -> None:
    pool = Pool(*[0.02] * 4)
    legs = pool.streams()
    pool.run(2.0)
    for leg in legs:
        leg.end(pool.now)
    pool.set(0, None)
    pool.run(FORGET_SECONDS + 10)
    LegTimer(pool.members[0].speed, None, 10, pool.now, tracks_first_token=True)
    pool.members[0].view.load.add(1, 10, 10)
    pool.run(2.5)
    assert pool.exclusions == [Exclusion.STALLED, None, None, None]


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
        assert sum(member.is_blocked for member in pool.members) <= share * len(gaps)
        assert not pool.monitor.is_panic


def test_when_the_rest_goes_down_it_is_panic() -> None:
    pool = Pool(*[0.02] * 4)
    pool.streams()
    pool.run(1.0)
    pool.set(0, None)
    pool.run(4.0)
    for member in pool.members[1:]:
        member.health = Health(State.DOWN)
    pool.run(TICK_SECONDS)
    assert pool.monitor.is_panic


# Errors.


def fail(pool: Pool, place: int, times: int) -> None:
    """So many failures in a row."""
    for _ in range(times):
        pool.monitor.answered(pool.members[place], pool.now, is_good=False)


def test_failures_in_a_row_eject_and_time_brings_it_back_slowly() -> None:
    pool = Pool(*[0.02] * 4)
    fail(pool, 0, 4)
    pool.monitor.answered(pool.members[0], 0.0, is_good=True)
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
    """A model fails everywhere from a moment on: who fails at once has the fewest requests, gets
    the next ones, and so looks alone."""
    pool = Pool(*[0.02] * 8)
    for member in pool.members:
        for _ in range(50):
            pool.monitor.answered(member, pool.now, is_good=True)
    for place in range(4):
        fail(pool, place, 5)
    pool.run(TICK_SECONDS)
    assert pool.exclusions == [Exclusion.EJECTED] * 4 + [None] * 4
    for place in range(4, 8):
        for is_good in (False, True, False, False, False):
            pool.monitor.answered(pool.members[place], pool.now, is_good=is_good)
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
                pool.monitor.answered(broken, pool.now, is_good=False)
                asked += 1
            else:
                pool.monitor.answered(other, pool.now, is_good=rng.random() >= 0.03)
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
        pool.monitor.answered(pool.members[0], pool.now, is_good=True)
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
            pool.monitor.answered(member, pool.now, is_good=is_good)
    pool.run(9.75)
    assert pool.exclusions == [None] * 8
    pool.run(0.5)
    assert pool.exclusions == [Exclusion.EJECTED] + [None] * 7


def test_with_zero_failures_no_engine_is_ejected() -> None:
    exclusion_config = ExclusionConfig(outliers=ExclusionConfig().outliers.__class__(consecutive=0))
    pool = Pool(*[None] * 8, exclusion_config=exclusion_config)
    fail(pool, 0, 1000)
    pool.run(20.0)
    assert pool.exclusions == [None] * 8


# What may be excluded is counted once, however many engines look bad.


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
    pool.monitor.watch(passes)
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
    pool.monitor.watch(passes)
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
    pool.monitor.joined(pool.members[0], 5.0)
    assert pool.members[0].exclusion is None
    assert pool.members[0].returned_at == 5.0


def test_a_restarted_engine_leaves_its_place_among_the_excluded_to_another() -> None:
    pool = Pool(*[None] * 4)
    for place in range(3):
        fail(pool, place, 5)
    assert pool.exclusions == [Exclusion.EJECTED, Exclusion.EJECTED, None, None]
    pool.monitor.joined(pool.members[0], 5.0)
    fail(pool, 2, 1)
    assert pool.exclusions == [None, Exclusion.EJECTED, Exclusion.EJECTED, None]


def test_in_an_idle_pool_no_engine_needs_a_slow_start() -> None:
    pool = Pool(None, None)
    pool.monitor.joined(pool.members[0], 5.0)
    assert pool.members[0].returned_at == -math.inf


# Slots, prompts, expectations.


def test_an_engine_is_full_when_streams_go_on_waiting() -> None:
    pool = Pool(0.02, 0.02)
    pool.streams(4)
    pool.run(1.0)
    waiting = [
        LegTimer(pool.members[0].speed, None, 10, pool.now, tracks_first_token=True)
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
        LegTimer(pool.members[0].speed, None, 10, pool.now, tracks_first_token=True)
    pool.run(QUEUE_SECONDS + 2 * TICK_SECONDS)
    assert [member.view.slots for member in pool.members] == [4, 4 * ROOM_FACTOR]
    LegTimer(pool.members[1].speed, None, 10, pool.now, tracks_first_token=True)
    pool.run(TICK_SECONDS)  # too short to say that it is full
    assert pool.members[1].capacity.slots == math.inf
    assert pool.members[1].view.slots == 4


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


def test_what_a_slow_engine_was_seen_to_run_is_not_its_limit_when_it_has_recovered() -> None:
    pool = Pool(0.16, *[0.02] * 7)
    pool.streams()
    waiting = LegTimer(pool.members[0].speed, None, 10, pool.now, tracks_first_token=True)
    pool.run(6.0)
    assert pool.members[0].view.slots == 8
    waiting.first_token(pool.now)
    pool.set(0, 0.02)
    pool.run(4.0)
    assert pool.exclusions[0] is None
    assert pool.members[0].view.slots == math.inf


def test_what_a_usual_request_would_take() -> None:
    pool = Pool(0.16, *[0.02] * 7)
    assert pool.monitor.expected_delay(pool.members[0]) is None
    pool.streams()
    pool.run(2.0)
    slow, usual = (pool.monitor.expected_delay(pool.members[place]) for place in (0, 1))
    assert slow is not None
    assert usual is not None
    assert slow / usual == pytest.approx(8, rel=0.15)
    assert pool.members[1].view.prompt_cost == 0.0


def test_prompt_tokens_weigh_what_they_take() -> None:
    pool = Pool(0.02, 0.02)
    for member in pool.members:
        leg = LegTimer(member.speed, None, 936, 0.0, tracks_first_token=True)
        leg.first_token(1.0)
    pool.now = 1.0
    pool.run(1.0)
    # 1 ms a prompt token; 50 tokens of 20 ms a request so far.
    cost = pool.members[0].view.prompt_cost
    assert cost == pytest.approx(0.001 / (0.02 * 50), rel=0.2)


def test_an_engine_that_is_slow_with_prompts_only_is_seen() -> None:
    pool = Pool(0.02, 0.02, 0.02)
    for place, member in enumerate(pool.members):
        leg = LegTimer(member.speed, None, 936, 0.0, tracks_first_token=True)
        leg.first_token(2.0 if place == 0 else 0.1)
    pool.now = 2.0
    pool.run(1.0)
    slowdowns = [member.view.prompt_slowdown for member in pool.members]
    assert slowdowns == [pytest.approx(20.0), 1.0, 1.0]
    assert pool.exclusions == [None, None, None]


def test_what_a_usual_prompt_would_take() -> None:
    pool = Pool(None, role=Role.PREFILL)
    leg = LegTimer(pool.members[0].speed, None, 936, 0.0, tracks_first_token=True)
    leg.unary_answer(1.0)
    pool.run(TICK_SECONDS)
    assert pool.monitor.expected_delay(pool.members[0]) == pytest.approx(0.064)


def test_errors_that_all_engines_give_eject_none() -> None:
    pool = Pool(*[0.02] * 8)
    rng = Random(3)
    for _ in range(400):
        pool.now += 0.05
        for member in pool.members:
            pool.monitor.answered(member, pool.now, is_good=rng.random() < 0.5)
        pool.monitor.tick(pool.now)
    assert pool.exclusions == [None] * 8


def test_an_engine_that_joins_begins_with_its_small_share_at_once() -> None:
    pool = Pool(0.02, 0.02)
    pool.members[1].view.load.add(5, 0, 0)
    pool.monitor.joined(pool.members[0], 100.0)
    assert pool.members[0].view.slow_start_weight == MIN_SLOW_START_WEIGHT


def test_the_first_gaps_after_a_start_make_no_engine_slow() -> None:
    """A late turn of the router's own loop stretches them."""
    pool = Pool(0.16, *[0.02] * 7)
    pool.streams(1)
    pool.run(2 * TICK_SECONDS)
    assert pool.members[0].view.slowdown == 1.0
    pool.run(2.0)
    assert pool.members[0].view.slowdown == pytest.approx(8, rel=0.2)


def test_a_router_that_stood_still_blames_no_engine() -> None:
    pool = Pool(*[0.02] * 8)
    pool.streams()
    pool.run(2.0)
    for member in pool.members[:3]:  # what these said has been read already
        member.speed.tokens += 8 * 150
    pool.now += 3.0
    pool.monitor.tick(pool.now)
    assert pool.exclusions == [None] * 8
    assert {member.view.slowdown for member in pool.members} == {1.0}
    pool.run(TICK_SECONDS)
    assert pool.exclusions == [None] * 8


def test_a_silence_of_all_engines_makes_none_of_them_slow() -> None:
    """The host stood still for a second; some engines had no stream to show it."""
    pool = Pool(*[0.02] * 8)
    pool.streams(4)
    pool.run(2.0)
    for place in range(8):
        pool.set(place, None)
    pool.run(1.5)
    assert pool.exclusions == [None] * 8
    assert all(member.speed.per_token == pytest.approx(0.02, rel=0.2) for member in pool.members)


def test_an_engine_that_stands_still_for_a_second_keeps_its_share() -> None:
    pool = Pool(*[0.02] * 8)
    pool.streams(4)
    pool.run(2.0)
    for gap, seconds in ((None, 1.0), (0.02, 2.0)):
        pool.set(0, gap)
        for _ in range(round(seconds / TICK_SECONDS)):
            pool.run(TICK_SECONDS)
            view = pool.members[0].view
            assert (view.slowdown, view.is_slow, view.slow_start_weight) == (1.0, False, 1.0)


def test_an_engine_whose_streams_have_just_ended_shows_that_the_others_are_silent() -> None:
    """These have streams at the tick, and that one had tokens before it: the host did not stand
    still."""
    pool = Pool(*[0.02] * 3)
    legs = pool.streams(4)
    pool.run(2.0)
    for place in (0, 1):
        pool.set(place, None)
    pool.members[2].speed.tokens += 40
    for leg in legs[8:]:
        leg.end(pool.now)
    pool.monitor.tick(pool.now + TICK_SECONDS)
    pool.now += TICK_SECONDS
    assert all(member.speed.pauses.hides_speed for member in pool.members[:2])


def test_a_silence_of_one_engine_is_its_own() -> None:
    pool = Pool(*[0.02] * 8)
    pool.streams(4)
    pool.run(2.0)
    pool.set(0, None)
    pool.run(1.5)
    assert pool.exclusions[0] is not None


# What events do not tell.


def scrape(pool: Pool, gap: float, held: int, seconds: float, slow: float | None = None) -> None:
    """Let time pass in which each engine also generates for so many streams whose tokens are held
    back; `slow`: the gap of the first engine's."""
    for second in range(round(seconds)):
        pool.run(1.0)
        for place, member in enumerate(pool.members):
            own = slow if slow is not None and place == 0 else gap
            streams = member.speed.all_streams
            before = member.gauges.generated if member.gauges else 0
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
        member.speed.is_warm = True
    scrape(pool, 0.02, 8, 3.0, slow=0.02)
    hung = pool.members[0]
    for _ in range(4):
        scrape(pool, 0.02, 8, 1.0, slow=math.inf)
    assert hung.stall.since is not None
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
                leg = LegTimer(member.speed, None, work, pool.now, tracks_first_token=False)
                took = factors[place] * (0.04 + 0.0001 * work)
                leg.unary_answer(pool.now + took, 1)
        pool.run(TICK_SECONDS)


def test_a_slow_engine_is_found_by_answers_of_one_token() -> None:
    pool = Pool(*[None] * 8)
    short_answers(pool, 3.0, [8.0] + [1.0] * 7, [300] * 8)
    assert pool.exclusions == [Exclusion.SLOW] + [None] * 7
    assert pool.members[0].view.slowdown == pytest.approx(8, rel=0.15)
    pool.set(0, 0.16)
    probe = LegTimer(pool.members[0].speed, None, 2, pool.now, tracks_first_token=True)
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


def test_answers_that_all_take_as_long_tell_slow_engines_too() -> None:
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
