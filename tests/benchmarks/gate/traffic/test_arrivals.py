from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gate.traffic.arrivals import Arrivals, Pattern, replayed, share, starts, times

patterns = st.builds(
    Arrivals,
    rate=st.floats(0.1, 1000),
    pattern=st.sampled_from(Pattern),
    burstiness=st.floats(0.1, 10),
    ramp=st.just(0.0) | st.floats(0.01, 20),
)
seeds = st.integers(0, 2**31)


@given(patterns, seeds, st.integers(0, 500))
def test_a_count_is_kept_and_times_are_in_order(arrivals: Arrivals, seed: int, count: int) -> None:
    found = times(arrivals, seed, count=count)
    assert len(found) == count
    assert (np.diff(found) >= 0).all()
    assert (found >= 0).all()


@given(patterns, seeds, st.floats(0, 20))
def test_a_duration_is_kept(arrivals: Arrivals, seed: int, duration: float) -> None:
    found = times(arrivals, seed, duration=duration)
    assert (found <= duration).all()
    assert (np.diff(found) >= 0).all()


@given(patterns, seeds)
def test_of_a_count_and_a_duration_the_first_to_end_holds(arrivals: Arrivals, seed: int) -> None:
    few = times(arrivals, seed, count=30)
    cut = times(arrivals, seed, count=30, duration=float(few[14]) + 1e-9)
    assert 0 < len(cut) <= 30
    assert cut.tolist() == few[: len(cut)].tolist()


@given(patterns, seeds)
def test_the_seed_decides(arrivals: Arrivals, seed: int) -> None:
    assert (times(arrivals, seed, count=50) == times(arrivals, seed, count=50)).all()


@pytest.mark.parametrize("ramp", [0.0, 10.0])
@pytest.mark.parametrize(
    ("pattern", "burstiness"),
    [
        (Pattern.CONSTANT, 1.0),
        (Pattern.POISSON, 1.0),
        (Pattern.GAMMA, 0.25),
        (Pattern.GAMMA, 4.0),
    ],
)
def test_the_rate_is_the_requested_one(pattern: Pattern, burstiness: float, ramp: float) -> None:
    arrivals = Arrivals(100, pattern, burstiness, ramp)
    found = times(arrivals, 1, duration=200)
    # The count's standard deviation is sqrt(n / burstiness); five of them are no chance.
    assert abs(len(found) - arrivals.expected(200)) <= 5 * (20_000 / burstiness) ** 0.5


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_burstiness_is_the_shape_of_the_gaps(burstiness: float) -> None:
    gaps = np.diff(times(Arrivals(50, Pattern.GAMMA, burstiness), 3, count=100_000))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.03)


def test_gamma_of_shape_1_is_poisson() -> None:
    gamma = times(Arrivals(9, Pattern.GAMMA, 1.0), 5, count=99)
    assert (gamma == times(Arrivals(9, Pattern.POISSON), 5, count=99)).all()


def test_constant_is_a_clock() -> None:
    found = times(Arrivals(4, Pattern.CONSTANT), 0, duration=1)
    assert found.tolist() == [0, 0.25, 0.5, 0.75]


def test_a_ramp_rises_in_a_straight_line() -> None:
    found = times(Arrivals(100, Pattern.CONSTANT, ramp=10), 0, duration=20)
    in_each, _ = np.histogram(found, bins=20, range=(0, 20))
    assert in_each[:10] == pytest.approx(np.arange(5, 100, 10), abs=1.5)
    assert in_each[10:] == pytest.approx(np.full(10, 100), abs=1.5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Arrivals(0),
        lambda: Arrivals(float("inf")),
        lambda: Arrivals(1, burstiness=0),
        lambda: Arrivals(1, ramp=-1),
    ],
)
def test_impossible_values_are_refused(wrong: Callable[[], Arrivals]) -> None:
    with pytest.raises(ValueError, match="must be"):
        wrong()


def test_an_end_is_needed() -> None:
    with pytest.raises(ValueError, match="needed"):
        times(Arrivals(1), 0)


def test_streams_begin_at_once_or_evenly() -> None:
    assert starts(3, 0).tolist() == [0, 0, 0]
    assert starts(4, 2).tolist() == [0, 0.5, 1, 1.5]
    assert starts(0, 2).tolist() == []


def test_a_trace_is_replayed_from_its_first_on() -> None:
    assert replayed([7, 5, 6], speed=2).tolist() == [0, 0.5, 1]
    assert replayed([]).tolist() == []
    with pytest.raises(ValueError, match="speed"):
        replayed([1], speed=0)


@given(st.integers(0, 100), st.integers(1, 5))
def test_processes_share_all_of_a_schedule(count: int, parts: int) -> None:
    schedule = times(Arrivals(3), 1, count=count)
    found = np.concatenate([share(schedule, part, parts) for part in range(parts)])
    assert np.sort(found).tolist() == schedule.tolist()
