"""The monitor of a pool: engines that are slow with prompts, and what prompts cost."""

import pytest

from router.core.fleet.ledger import Lease, Ledger
from router.core.fleet.leg_timer import LegTimer
from router.core.fleet.probing import speed_probe_work
from router.core.judge.verdict import Exclusion
from router.core.speed.tuning import TICK_SECONDS
from router.core.values import Role
from tests.core.judge.judged_pool import Pool

BASE, PER_TOKEN = 0.03, 1 / 20_000
"""Seconds of a prefill: fixed (a step, the network) and per prompt token."""


def prefill(pool: Pool, place: int, tokens: int, factor: float = 1.0) -> None:
    """An engine computes a prompt, in `factor` times the usual time."""
    seconds = factor * (BASE + PER_TOKEN * tokens)
    speed = pool.members[place].speed
    leg = LegTimer(speed.counts, None, tokens, pool.now - seconds, tracks_first_token=True)
    leg.unary_answer(pool.now)
    leg.end(pool.now)


def with_short_prompts(factor: float) -> Pool:
    """A pool whose first engine got short prompts only and took `factor` times the usual time."""
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
    assert pool.members[0].speed.counts.prompt_overhead == pytest.approx(BASE / PER_TOKEN, rel=0.2)


def test_a_slow_prefill_engine_is_seen_by_short_prompts_too() -> None:
    pool = with_short_prompts(4.0)
    assert pool.exclusions == [Exclusion.SLOW, None, None]


def test_a_prefill_engine_that_was_slow_returns_by_its_probes() -> None:
    """All prompts are equally long: the cost of a short one is unknown."""
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


def slow_for(pool: Pool, ticks: int, factor: float) -> None:
    """Its first engine takes `factor` times as long for so many ticks, after 10 s as usual."""
    for number in range(40 + ticks):
        for place in range(len(pool.members)):
            prefill(pool, place, 4000, factor if place == 0 and number >= 40 else 1.0)
        pool.run(TICK_SECONDS)


@pytest.mark.parametrize(("others", "excluded"), [(0, Exclusion.SLOW), (1, None)])
def test_others_prompts_delay_ours_for_seconds(others: int, excluded: Exclusion | None) -> None:
    """They are not known to the router; without others an engine that takes so long is slow."""
    pool = Pool(None, None, None, role=Role.PREFILL)
    pool.members[1].view.other_requests = others
    slow_for(pool, 10, 6.0)
    assert pool.exclusions == [excluded, None, None]
    assert (pool.members[0].view.slowdown == 1.0) is (others == 1)


def test_a_prefill_engine_that_stays_slow_is_seen_beside_other_clients_too() -> None:
    pool = Pool(None, None, None, role=Role.PREFILL)
    pool.members[1].view.other_requests = 1
    slow_for(pool, 20, 8.0)
    assert pool.exclusions == [Exclusion.SLOW, None, None]


def test_a_prefill_engine_that_joins_has_no_speed_of_the_one_before() -> None:
    pool = Pool(None, None, None, role=Role.PREFILL)
    slow_for(pool, 20, 8.0)
    assert pool.members[0].verdict.average_gap is not None
    pool.judge.joined(pool.members[0], pool.now)
    assert pool.members[0].verdict.average_gap is None


def test_a_prefill_pool_is_judged_by_prompt_tokens() -> None:
    pool = Pool(None, None, None, role=Role.PREFILL)
    for place, member in enumerate(pool.members):
        leg = LegTimer(member.speed.counts, None, 1000, 0.0, tracks_first_token=True)
        leg.unary_answer(8.0 if place == 0 else 1.0)
        leg.end(8.0)
    pool.run(TICK_SECONDS)
    assert pool.exclusions == [Exclusion.SLOW, None, None]
    assert pool.members[0].view.prompt_cost > 0


def test_a_long_unary_answer_does_not_hold_its_prompt_pending() -> None:
    """Also on an engine without a measured speed: its pool's counts."""
    pool = Pool(0.02, 0.02)
    first = LegTimer(pool.members[0].speed.counts, None, 1000, 0.0, tracks_first_token=True)
    first.first_token(1.0)
    first.end(1.0)
    load = pool.members[1].view.load
    lease = Lease(load, pool.members[1].endpoint, 4000, 4000)
    LegTimer(pool.members[1].speed.counts, lease, 4000, 0.0, tracks_first_token=False)
    pool.run(7.0)
    assert load.pending == 4000
    pool.run(2.0)
    assert load.pending == 0


def test_nor_does_one_in_a_pool_without_any_streams() -> None:
    pool = Pool(0.02, 0.02)
    load = pool.members[0].view.load
    lease = Lease(load, pool.members[0].endpoint, 32_000, 32_000)
    leg = LegTimer(pool.members[0].speed.counts, lease, 32_000, 0.0, tracks_first_token=False)
    pool.run(6.0)
    assert load.pending == 32_000
    pool.run(1.0)
    assert load.pending == 0
    leg.end(pool.now)


def test_prompt_tokens_are_weighted_by_their_duration() -> None:
    pool = Pool(0.02, 0.02)
    for member in pool.members:
        leg = LegTimer(member.speed.counts, None, 936, 0.0, tracks_first_token=True)
        leg.first_token(1.0)
    pool.now = 1.0
    pool.run(1.0)
    # 1 ms a prompt token; 50 tokens of 20 ms a request so far.
    cost = pool.members[0].view.prompt_cost
    assert cost == pytest.approx(0.001 / (0.02 * 50), rel=0.2)


def test_an_engine_that_is_slow_with_prompts_only_is_seen() -> None:
    pool = Pool(0.02, 0.02, 0.02)
    for place, member in enumerate(pool.members):
        leg = LegTimer(member.speed.counts, None, 936, 0.0, tracks_first_token=True)
        leg.first_token(2.0 if place == 0 else 0.1)
    pool.now = 2.0
    pool.run(1.0)
    slowdowns = [member.view.prompt_slowdown for member in pool.members]
    assert slowdowns == [pytest.approx(20.0), 1.0, 1.0]
    assert pool.exclusions == [None, None, None]


def test_the_expected_time_of_a_usual_prompt() -> None:
    pool = Pool(None, role=Role.PREFILL)
    leg = LegTimer(pool.members[0].speed.counts, None, 936, 0.0, tracks_first_token=True)
    leg.unary_answer(1.0)
    pool.run(TICK_SECONDS)
    assert pool.judge.expected_delay(pool.members[0]) == pytest.approx(0.064)


def test_a_prefill_that_is_overtaken_is_still_to_be_computed() -> None:
    """On a decode engine its first token would be held back."""
    pool = Pool(None, role=Role.PREFILL)
    (member,) = pool.members
    lease = Ledger().lease(member.endpoint, 5000, 5000)
    LegTimer(member.speed.counts, lease, 5000, 1.0, tracks_first_token=True)
    LegTimer(member.speed.counts, None, 10, 2.0, tracks_first_token=True).unary_answer(2.1)
    pool.run(3.0)
    assert lease.pending == 5000
