"""The delay of streams by prompts, separated from the time of both."""

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.speed.speed_buckets import Bucket, Interference, most_prompt_share, prompt_share_of
from router.core.speed.tuning import MAX_PROMPT_SHARE, PROMPT_SHARE_MARGIN

STEP, PER_PROMPT_TOKEN = 0.02, 0.000125
SHARE = PER_PROMPT_TOKEN / STEP


def fit_of(*measured: tuple[float, float], noise: float = 0.0, factor: float = 1.0) -> Interference:
    """Of so many tokens and prompt tokens, which take what they do."""
    fit, rng = Interference(), Random(1)
    for tokens, prompts in measured:
        seconds = factor * (STEP * tokens + PER_PROMPT_TOKEN * prompts)
        fit.add(tokens, prompts, seconds * rng.uniform(1.0 - noise, 1.0 + noise))
    return fit


MIXED = [(float(t), float(p)) for t, p in product((50, 100, 400), (0, 3000, 20_000))]


@pytest.mark.parametrize("factor", [1.0, 8.0])
def test_prompt_costs_are_separated_from_token_costs(factor: float) -> None:
    """In tokens it is the same however slow the engine is."""
    assert prompt_share_of([fit_of(*MIXED * 5, factor=factor)]) == pytest.approx(SHARE, rel=0.2)


def test_measurements_of_several_engines_count_together() -> None:
    with_prompts = fit_of(*[(50.0, 20_000.0)] * 9)
    without = fit_of(*[(400.0, 0.0)] * 9)
    assert prompt_share_of([with_prompts]) == 0.0
    assert prompt_share_of([with_prompts, without]) == pytest.approx(SHARE, rel=0.3)


def test_it_is_found_in_noise() -> None:
    assert prompt_share_of([fit_of(*MIXED * 9, noise=0.3)]) == pytest.approx(SHARE, rel=0.4)


@pytest.mark.parametrize("prompts", [0.0, 3000.0])
def test_counters_that_always_grow_together_are_not_separated(prompts: float) -> None:
    assert prompt_share_of([fit_of(*[(100.0, prompts)] * 50, noise=0.1)]) < SHARE / 4


def test_an_unknown_engine_has_no_history() -> None:
    assert prompt_share_of([]) == 0.0
    assert prompt_share_of([Interference()]) == 0.0


def test_where_tokens_seem_to_take_no_time_a_prompt_token_counts_for_no_more_than_this() -> None:
    fit = Interference()
    for tokens, prompts, seconds in ((1.0, 3000.0, 1.0), (100.0, 100.0, 0.02)):
        fit.add(tokens, prompts, seconds)
    assert prompt_share_of([fit]) == MAX_PROMPT_SHARE


def latest(tokens: float, prompts: float, *, cost: float, streams: int = 4) -> Bucket:
    """The last ticks of an engine: so many tokens, and prompt tokens beside so many streams, that
    took `cost` seconds each until their first tokens."""
    seconds = STEP * tokens + PER_PROMPT_TOKEN * prompts * streams
    return Bucket(tokens, seconds, prompts * streams, int(prompts), cost * prompts)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_prompt_token_delays_streams_by_little_longer_than_it_takes(factor: float) -> None:
    cost = factor * PER_PROMPT_TOKEN
    most = most_prompt_share([latest(500.0, 3000.0, cost=cost), latest(4000.0, 0.0, cost=cost)])
    # What prompts do not take is the tokens'.
    left = STEP * 4500.0 + (PER_PROMPT_TOKEN - cost) * 12_000.0
    assert most == pytest.approx(PROMPT_SHARE_MARGIN * cost * 4500.0 / left)
    assert (most > SHARE) is (factor >= 1.0)


@pytest.mark.parametrize("prompts", [0.0, 3000.0])
def test_no_bound_without_prompts_or_if_they_took_all_time(prompts: float) -> None:
    assert most_prompt_share([latest(50.0, prompts, cost=1.0)]) == MAX_PROMPT_SHARE
    assert most_prompt_share([]) == MAX_PROMPT_SHARE


@given(st.floats(0.0, MAX_PROMPT_SHARE))
def test_the_bound_holds(most: float) -> None:
    assert prompt_share_of([fit_of(*MIXED)], most) == min(most, prompt_share_of([fit_of(*MIXED)]))


def test_old_values_count_less() -> None:
    fit = fit_of(*MIXED * 9)
    for _ in range(60):
        for tokens, prompts in MIXED:
            fit.add(tokens, prompts, STEP * tokens + 2.0 * PER_PROMPT_TOKEN * prompts)
    assert prompt_share_of([fit]) == pytest.approx(2.0 * SHARE, rel=0.2)


@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(0, 1e9), st.floats(1e-6, 1e6)), max_size=20))
def test_estimate_stays_within_its_bounds(measured: list[tuple[float, float, float]]) -> None:
    fit = Interference()
    for tokens, prompts, seconds in measured:
        fit.add(tokens, prompts, seconds)
    assert 0.0 <= prompt_share_of([fit]) <= MAX_PROMPT_SHARE
