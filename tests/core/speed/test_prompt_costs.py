"""Prompt costs: lines through measurements, which grow with the prompt and forget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.fleet.ledger import Ledger
from router.core.fleet.leg_timer import LegTimer
from router.core.speed.prompt_costs import (
    NOTHING,
    Line,
    LineFit,
    PromptCosts,
    Samples,
    overhead_of,
    seconds_per_token,
)
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.speed.speed_totals import SpeedTotals
from router.core.speed.tuning import (
    EQUAL_TOKENS,
    MAX_COST_RATIO,
    MAX_OVERHEAD,
    MEMORY_SAMPLES,
    PROMPT_OVERHEAD,
    RECENT_PROMPT_SECONDS,
    TICK_SECONDS,
)
from tests.core.fixtures import D0

lengths = st.integers(1, 100_000).map(float)
seconds = st.floats(0.0, 600.0)


def fit_of(*samples: tuple[float, float]) -> LineFit:
    """A fit of these tokens and seconds."""
    fit = LineFit()
    for tokens, taken in samples:
        fit.add(tokens, taken)
    return fit


def line_of(fit: LineFit) -> Line:
    """The line, which there is."""
    line = fit.sums.line()
    assert line is not None
    return line


def test_without_samples_there_is_no_line() -> None:
    assert NOTHING.line() is None


def test_the_overhead_is_the_base_in_tokens_of_all_fits_together() -> None:
    assert overhead_of([]) is None
    assert overhead_of([fit_of((100.0, 1.0))]) is None  # too few
    long = fit_of(*[(float(tokens), 0.03 + tokens / 20_000) for tokens in range(2000, 9000, 100)])
    short = fit_of(*[(20.0, 0.03 + 20 / 20_000)] * 20)
    assert overhead_of([long, LineFit(), short]) == pytest.approx(600, rel=0.1)


def test_the_overhead_is_bounded_and_has_a_default() -> None:
    assert overhead_of([fit_of(*[(4000.0, 0.5)] * 20)]) == pytest.approx(PROMPT_OVERHEAD)
    growing = fit_of(*[(float(tokens), tokens / 20_000) for tokens in range(20, 9000, 100)])
    assert overhead_of([growing]) == PROMPT_OVERHEAD
    flat = fit_of(*[(float(tokens), 1.0 + tokens * 1e-6) for tokens in range(20, 9000, 100)])
    assert overhead_of([flat]) == MAX_OVERHEAD
    assert overhead_of([fit_of(*[(4000.0, 0.0)] * 20)]) is None  # no time at all


@given(st.floats(0.0, 1.0), st.floats(1e-5, 1e-3))
def test_samples_on_a_line_give_that_line(base: float, per_token: float) -> None:
    tokens = [float(length) for length in (100, 500, 2000, 8000, 20_000)] * 20
    line = line_of(fit_of(*((length, base + per_token * length) for length in tokens)))
    for length in (500.0, 4000.0, 16_000.0):
        assert line.seconds(length) == pytest.approx(base + per_token * length, rel=0.1)


@given(st.lists(st.tuples(lengths, seconds), min_size=1, max_size=50))
def test_cost_grows_with_the_prompt_from_zero(samples: list[tuple[float, float]]) -> None:
    line = line_of(fit_of(*samples))
    assert line.base >= 0.0
    assert line.per_token >= 0.0


@given(st.lists(st.tuples(lengths, seconds), min_size=1, max_size=7))
def test_the_line_goes_through_the_weighted_means(samples: list[tuple[float, float]]) -> None:
    sums = fit_of(*samples).sums
    line = sums.line()
    assert line is not None
    assert line.seconds(sums.x / sums.weight) == pytest.approx(sums.y / sums.weight, abs=1e-6)


def test_prompts_of_one_length_are_extrapolated_in_proportion() -> None:
    line = line_of(fit_of(*[(1000.0, 0.5)] * 50))
    assert line.seconds(1000.0) == pytest.approx(0.5)
    assert line.per_token == pytest.approx(0.5 / (1000.0 + PROMPT_OVERHEAD))


def test_old_samples_are_forgotten() -> None:
    fit = fit_of(*[(1000.0, 1.0), (3000.0, 3.0)] * 100)
    for tokens in (1000.0, 3000.0) * int(4 * MEMORY_SAMPLES):
        fit.add(tokens, 2.0 * tokens / 1000.0)
    assert line_of(fit).seconds(2000.0) == pytest.approx(4.0, rel=0.05)
    assert fit.sums.samples == pytest.approx(MEMORY_SAMPLES, rel=0.01)


def test_short_prompts_decide_about_the_base_beside_a_very_long_one() -> None:
    fit = fit_of(*[(EQUAL_TOKENS, 0.1), (2 * EQUAL_TOKENS, 0.1)] * 30, (100_000.0, 10.0))
    assert line_of(fit).seconds(EQUAL_TOKENS) == pytest.approx(0.1, rel=0.3)


def test_a_minute_of_graph_capture_is_no_prompt_cost() -> None:
    fit = fit_of(*[(1000.0, 0.1)] * 100)
    fit.add(1000.0, 60.0)
    limit = 0.1 + MAX_COST_RATIO * 0.1 / 50
    assert 0.1 < line_of(fit).seconds(1000.0) < limit


# The samples of a tick.


def add_all(fit: LineFit, *samples: tuple[float, float]) -> None:
    """They came in one tick."""
    some = Samples()
    for tokens, taken in samples:
        some.add(tokens, taken)
    fit.add_all(some.take())
    assert some.take() == NOTHING


@given(st.floats(0.01, 1.0), st.floats(1e-5, 1e-3))
def test_batched_samples_give_the_same_line(base: float, per_token: float) -> None:
    samples = [(float(tokens), base + per_token * tokens) for tokens in (100, 500, 2000, 8000)]
    fit = LineFit()
    for _ in range(50):
        add_all(fit, *samples)
    for tokens, taken in samples:
        assert line_of(fit).seconds(tokens) == pytest.approx(taken, rel=0.1)
    assert fit.sums.samples == pytest.approx(fit_of(*samples * 50).sums.samples, rel=0.02)


def test_a_tick_without_samples_changes_nothing() -> None:
    fit = fit_of((1000.0, 0.1))
    before = fit.sums
    add_all(fit)
    assert fit.sums is before


def test_graph_capture_in_a_tick_is_no_prompt_cost() -> None:
    fit = fit_of(*[(1000.0, 0.1)] * 100)
    add_all(fit, (1000.0, 60.0))
    assert 0.1 < line_of(fit).seconds(1000.0) < 0.1 + MAX_COST_RATIO * 0.1 / 50


def test_prompts_that_took_no_time_at_first_do_not_count_for_ever() -> None:
    fit = fit_of(*[(1000.0, 0.0)] * 20, *[(1000.0, 0.1)] * 400)
    assert line_of(fit).seconds(1000.0) == pytest.approx(0.1, rel=0.2)


def test_seconds_per_token_are_those_of_all_engines_without_the_base() -> None:
    def fit(tokens: range) -> LineFit:
        return fit_of(*[(float(length), 0.03 + length / 20_000) for length in tokens])

    short, long = fit(range(20, 120, 10)), fit(range(4000, 5000, 100))
    assert seconds_per_token([short, LineFit(), long]) == pytest.approx(1 / 20_000, rel=0.05)
    for alone in (short, long):  # of nearly equal length; the base may be anything
        assert seconds_per_token([alone]) is None
    assert seconds_per_token([fit_of((20.0, 0.1), (4000.0, 1.0))]) is None  # too few
    assert seconds_per_token([]) is None
    falling = fit_of(*[(float(length), 1.0 - length / 20_000) for length in range(20, 9000, 100)])
    assert seconds_per_token([falling]) is None


# What is counted as what.


def timed(own: int, ahead: int = 0, loads: int = 0) -> tuple[SpeedEstimator, LegTimer]:
    """A leg that begins at 1.0, behind prompts of so many tokens."""
    speed = SpeedEstimator()
    speed.counts.costs = PromptCosts()
    ledger = Ledger()
    ledger.lease(D0, ahead, ahead)
    lease = ledger.lease(D0, own or loads, own)
    lease.loads = loads
    return speed, LegTimer(speed.counts, lease, lease.pending_there, 1.0, tracks_first_token=True)


def costs_of(speed: SpeedEstimator) -> PromptCosts:
    """They are measured."""
    assert speed.counts.costs is not None
    return speed.counts.costs


def test_a_prompt_counts_with_those_ahead_of_it() -> None:
    speed, leg = timed(own=1000, ahead=3000)
    leg.first_token(1.4)
    costs = costs_of(speed)
    assert line_of(costs.computing).seconds(4000.0) == pytest.approx(0.4)
    assert speed.counts.computed == 1000
    assert costs.loading.sums is NOTHING


def test_a_cache_that_comes_from_another_engine_counts_as_loaded() -> None:
    speed, leg = timed(own=0, ahead=3000, loads=2000)
    leg.first_token(1.2)
    costs = costs_of(speed)
    assert line_of(costs.loading).seconds(2000.0) == pytest.approx(0.2)
    assert costs.computing.sums is NOTHING
    assert speed.counts.computed == 0


@pytest.mark.parametrize(("own", "loads"), [(1000, 0), (0, 1000)])
def test_a_leg_with_an_unreading_client_is_no_evidence(own: int, loads: int) -> None:
    speed, leg = timed(own=own, loads=loads)
    leg.pause(1.1)
    leg.resume(5.0)
    leg.first_token(5.1)
    assert costs_of(speed).computing.sums is NOTHING
    assert costs_of(speed).loading.sums is NOTHING
    assert speed.counts.computed == own


def test_a_unary_answer_has_no_first_token_time_but_marks_its_prompt_as_computed() -> None:
    speed = SpeedEstimator()
    speed.counts.costs = PromptCosts()
    lease = Ledger().lease(D0, 100, 100)
    leg = LegTimer(speed.counts, lease, lease.pending_there, 0.0, tracks_first_token=False)
    leg.unary_answer(3.0, 100)
    assert costs_of(speed).computing.sums is NOTHING
    assert speed.counts.computed == 100


def test_a_unary_prompt_is_counted_once_also_when_its_answer_comes_much_later() -> None:
    speed = SpeedEstimator()
    speed.counts.costs = PromptCosts()
    lease = Ledger().lease(D0, 100, 100)
    leg = LegTimer(speed.counts, lease, lease.pending_there, 0.0, tracks_first_token=False)
    speed.settle_prompts(0.001, 1.0)
    assert speed.counts.computed == 100
    leg.unary_answer(9.0, 500)
    assert speed.counts.computed == 100


def test_a_new_engine_begins_anew() -> None:
    speed, leg = timed(own=1000)
    leg.first_token(1.4)
    speed.tick(1.5)
    speed.reset()
    costs = costs_of(speed)
    assert costs.computing.sums is NOTHING
    assert costs.recent_tokens == 0.0


def test_recent_tokens_are_those_of_some_seconds() -> None:
    speed, leg = timed(own=1000)
    leg.first_token(1.4)
    costs, now = costs_of(speed), 1.5
    speed.tick(now)
    assert costs.recent_tokens == 1000.0
    for _ in range(int(RECENT_PROMPT_SECONDS / TICK_SECONDS)):
        now += TICK_SECONDS
        speed.tick(now)
    assert costs.recent_tokens == pytest.approx(1000.0 / 2.718, rel=0.01)


class Elsewhere:
    """Another worker has computed so many tokens since the last look."""

    def __init__(self, tokens: float) -> None:
        self.tokens = tokens
        self.published = SpeedTotals()

    def publish(self, totals: SpeedTotals) -> None:
        self.published = totals

    def others(self) -> SpeedTotals:
        tokens, self.tokens = self.tokens, 0.0
        return SpeedTotals(computed_tokens=tokens)


def test_prompts_of_other_workers_count() -> None:
    others = Elsewhere(500.0)
    speed = SpeedEstimator(others)
    speed.counts.costs = PromptCosts()
    speed.counts.computed = 1000
    speed.counts.sync(1.0)
    speed.tick(1.0)
    speed.counts.sync(1.25)
    assert others.published.computed_tokens == 1000.0
    assert costs_of(speed).recent_tokens == 1500.0


def test_no_measurement_without_a_reader() -> None:
    others = Elsewhere(500.0)
    speed = SpeedEstimator(others)
    speed.counts.sync(1.0)
    speed.tick(1.0)
    assert speed.counts.costs is None
    assert others.published.computed_tokens == 0.0
    assert speed.counts.counted.computed == 500.0
