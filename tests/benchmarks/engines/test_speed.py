import pytest

from benchmarks.engines import speed
from benchmarks.engines.speed import FREEZE, Change, Pace


def steps(pace: Pace, beats: int, now_s: float = 0.0) -> int:
    return sum(pace.due(now_s) for _ in range(beats))


@pytest.mark.parametrize(
    ("factor", "beats", "expected"),
    [(1, 10, 10), (2, 10, 5), (8, 80, 10), (3, 30, 10), (2.5, 10, 4)],
)
def test_a_factor_stretches_the_step(factor: float, beats: int, expected: int) -> None:
    assert steps(Pace([Change(0, 0, factor)]), beats) == expected


def test_without_changes_every_beat_is_a_step() -> None:
    assert steps(Pace(), 5) == 5


def test_a_change_holds_from_its_time_on_until_the_next() -> None:
    pace = Pace([Change(5, 0, FREEZE), Change(15, 0, 1)])
    assert [steps(pace, 10, now) for now in (0, 4.99, 5, 14.99, 15, 99)] == [10, 10, 0, 0, 10, 10]


def test_changes_may_come_in_any_order_and_several_at_once() -> None:
    pace = Pace([Change(2, 0, 1), Change(0, 0, 8), Change(1, 0, 4)])
    assert steps(pace, 8, 9) == 8


def test_factors_at_a_time() -> None:
    changes = [Change(0, 1, 8), Change(8, 1, 1), Change(5, 0, FREEZE)]
    assert speed.factors(changes, 2, 0) == [1, 8]
    assert speed.factors(changes, 2, 8) == [FREEZE, 1]


def test_freezes_and_recoveries_of_a_schedule() -> None:
    freeze = [Change(5, 0, FREEZE), Change(15, 0, 1)]
    assert speed.frozen(freeze) == (5, 15)
    assert speed.recovery(freeze) == Change(15, 0, 1)
    assert speed.frozen([Change(5, 0, FREEZE)]) is None
    assert speed.frozen([Change(0, 0, 8)]) is None
    assert speed.recovery([Change(0, 0, 1)]) is None
    assert speed.phases(freeze) == [(0, 5), (5, 15), (15, float("inf"))]
    assert speed.phases([]) == [(0, float("inf"))]
