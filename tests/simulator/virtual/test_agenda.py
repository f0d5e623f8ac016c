"""Virtual time: what happens when, and speed that varies by chance."""

import math
from random import Random
from statistics import fmean, pstdev

import pytest

from router.simulator.virtual.agenda import DRIFT_SECONDS, Agenda, Drift, Event


def test_events_happen_in_order_of_time_and_then_of_planning():
    agenda = Agenda()
    seen: list[tuple[float, str]] = []

    def note(name: str) -> Event:
        return lambda now: seen.append((now, name))

    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        agenda.at(when, note(name))
    agenda.run_while(lambda: len(seen) < 3, until=10.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert (agenda.now, agenda.events) == (2.0, 3)


def test_repetitions_continue():
    agenda = Agenda()
    seen: list[float] = []
    agenda.every(0.5, 1.0, seen.append)
    agenda.run_while(lambda: len(seen) < 3, until=10.0)
    assert seen == [1.0, 1.5, 2.0]


def test_an_unended_value_is_an_error():
    agenda = Agenda()
    agenda.every(1.0, 0.0, lambda _: None)
    with pytest.raises(RuntimeError, match="did not end within 5"):
        agenda.run_while(lambda: True, until=5.0)


def test_a_steady_engine_uses_no_randomness():
    rng = Random(1)
    before = rng.getstate()
    assert [Drift(0.0, rng).factor(now) for now in (0.0, 5.0)] == [1.0, 1.0]
    assert rng.getstate() == before


def test_in_the_long_run_it_has_the_requested_width_and_mean_one():
    drift = Drift(0.4, Random(1))
    factors = [drift.factor(5.0 * DRIFT_SECONDS * n) for n in range(5000)]
    assert pstdev(map(math.log, factors)) == pytest.approx(0.4, rel=0.05)
    assert fmean(factors) == pytest.approx(1.0, abs=0.03)


def test_in_a_step_it_changes_little_and_in_some_seconds_much():
    drift = Drift(0.4, Random(1))
    now, step, later = 0.0, 0.02 * DRIFT_SECONDS, 5.0 * DRIFT_SECONDS
    in_a_step, in_seconds = [], []
    for _ in range(500):
        first, second = drift.factor(now), drift.factor(now + step)
        in_a_step.append(abs(math.log(second / first)))
        now += step + later
        in_seconds.append(abs(math.log(drift.factor(now) / second)))
    assert fmean(in_a_step) < 0.25 * fmean(in_seconds)
