"""Speed that varies by chance."""

import math
from random import Random
from statistics import fmean, pstdev

import pytest

from router.simulator.virtual.drift import SECONDS, Drift


def test_a_steady_engine_asks_nothing_of_chance():
    rng = Random(1)
    before = rng.getstate()
    assert [Drift(0.0, rng).factor(now) for now in (0.0, 5.0)] == [1.0, 1.0]
    assert rng.getstate() == before


def test_in_the_long_run_it_is_as_wide_as_asked_for_and_one_on_average():
    drift = Drift(0.4, Random(1))
    factors = [drift.factor(5.0 * SECONDS * n) for n in range(5000)]
    assert pstdev(map(math.log, factors)) == pytest.approx(0.4, rel=0.05)
    assert fmean(factors) == pytest.approx(1.0, abs=0.03)


def test_in_a_step_it_changes_little_and_in_some_seconds_much():
    drift = Drift(0.4, Random(1))
    now, step, later = 0.0, 0.02 * SECONDS, 5.0 * SECONDS
    in_a_step, in_seconds = [], []
    for _ in range(500):
        first, second = drift.factor(now), drift.factor(now + step)
        in_a_step.append(abs(math.log(second / first)))
        now += step + later
        in_seconds.append(abs(math.log(drift.factor(now) / second)))
    assert fmean(in_a_step) < 0.25 * fmean(in_seconds)
