"""What engines are measured by together: prompts, tokens per event, places in a queue."""

from dataclasses import fields

import pytest

from router.core.candidate import STEP_TOKENS
from router.core.fleet.leg_timer import LegTimer
from router.core.judge.assess import assess
from router.core.judge.tuning import MIN_NEGLIGIBLE_TOKENS, NEGLIGIBLE_SECONDS
from router.core.judge.verdict import ExclusionConfig
from router.core.speed.capacity import Capacity
from router.core.speed.tuning import TICK_SECONDS
from router.core.values import Role
from tests.core.judge.judged_pool import Pool

BASE = 0.02
"""Seconds of a first token without its prompt."""


def compute(pool: Pool, per_token: float, *lengths: int, places: range | None = None) -> None:
    """Engines compute prompts of such lengths for 10 s."""
    for _ in range(40):
        for place in places or range(len(pool.members)):
            for tokens in lengths:
                seconds = BASE + per_token * tokens
                speed = pool.members[place].speed
                leg = LegTimer(
                    speed.counts, None, tokens, pool.now - seconds, tracks_first_token=True
                )
                leg.first_token(pool.now)
                leg.end(pool.now)
        pool.run(TICK_SECONDS)


@pytest.mark.parametrize(
    ("per_token", "tokens"),
    [
        (1e-6, STEP_TOKENS),
        (1 / 20_000, 20_000 * NEGLIGIBLE_SECONDS),
        (1e-3, MIN_NEGLIGIBLE_TOKENS),
    ],
)
def test_negligible_tokens_are_those_computed_in_a_moment(per_token: float, tokens: float) -> None:
    pool = Pool(0.02, 0.02, 0.02)
    assert pool.members[0].view.negligible_tokens == STEP_TOKENS
    compute(pool, per_token, 100, 1000, 8000)
    for member in pool.members:
        assert member.view.negligible_tokens == pytest.approx(tokens, rel=0.05)


def test_prompts_of_one_length_do_not_reveal_the_cost_of_a_token() -> None:
    pool = Pool(0.02, 0.02, 0.02)
    compute(pool, 1e-4, 50)
    assert pool.members[0].view.negligible_tokens == STEP_TOKENS


def test_an_engine_slow_with_prompts_does_not_set_the_cost_of_the_others() -> None:
    pool = Pool(0.02, 0.02, 0.02)
    for _ in range(3):
        compute(pool, 1 / 20_000, 100, 1000, 8000, places=range(1, 3))
        compute(pool, 1e-3, 100, 1000, places=range(1))
    assert pool.members[0].view.prompt_slowdown > 1.0
    expected = 20_000 * NEGLIGIBLE_SECONDS
    assert pool.members[0].view.negligible_tokens == pytest.approx(expected, rel=0.1)


def test_an_engine_that_has_just_come_up_sends_as_many_tokens_in_an_event_as_the_others() -> None:
    pool = Pool(*[0.02] * 4)
    for member in pool.members[1:]:
        member.speed.counts.calibration.learn(2000, 100, by_usage=False)
    pool.run(TICK_SECONDS)
    assert [member.speed.counts.calibration.tokens_per_event for member in pool.members] == [
        20.0
    ] * 4
    pool.members[0].speed.counts.calibration.learn(300, 100, by_usage=False)
    pool.run(TICK_SECONDS)
    assert pool.members[0].speed.counts.calibration.tokens_per_event == 3.0  # it has learned itself


def test_a_place_in_a_queue_takes_longer_the_fewer_slots_an_engine_is_known_to_have() -> None:
    pool = Pool(0.02, 0.02, 0.02)
    for member, stated in zip(pool.members, (4, 16, None), strict=True):
        member.capacity = Capacity(stated=stated)
    pool.run(TICK_SECONDS)
    assert [member.view.queue_factor for member in pool.members] == [4.0, 1.0, 1.0]


def state(pool: Pool) -> list[object]:
    """What an assessment could change of the engines."""
    found: list[object] = []
    for member in pool.members:
        found += [member.verdict, member.view.load.pending, member.capacity.slots]
        found += [getattr(member.view, each.name) for each in fields(member.view)]
    return found


@pytest.mark.parametrize("role", list(Role))
def test_an_assessment_changes_nothing(role: Role) -> None:
    pool = Pool(0.02, 0.02, 0.2, role=role)
    pool.streams()
    pool.run(2.0)
    before = state(pool)
    found = [assess(pool.members, role, ExclusionConfig(), 100.0, pool.now) for _ in range(2)]
    assert found[0] == found[1]
    assert state(pool) == before


def test_a_verdict_says_since_when_an_engine_is_slow() -> None:
    pool = Pool(0.02, 0.02, 0.2)
    pool.streams()
    pool.run(2.0)
    verdicts = assess(pool.members, Role.DECODE, ExclusionConfig(), None, pool.now).verdicts
    assert [verdict.slow_since is not None for verdict in verdicts] == [False, False, True]
    assert [verdict.slowdowns[-1] for verdict in verdicts] == [1.0, 1.0, pytest.approx(10, rel=0.2)]
