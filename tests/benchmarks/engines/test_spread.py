from benchmarks.engines.spread import Extremes, Spread
from benchmarks.loadgen.spans import PERIOD_S


def test_the_fullest_engine_less_the_emptiest() -> None:
    spread = Spread()
    for streams in ([3, 3, 3], [4, 3, 2], [3, 4, 3]):
        spread.look(streams)
    seen = spread.take()
    assert (seen["p50"], seen["p100"]) == (1.0, 2.0)
    assert spread.take() == {"p50": None, "p99": None, "p100": None}


def test_engines_that_are_too_full_in_turn_show_as_one_that_always_is() -> None:
    extremes = Extremes()
    for streams in ([64, 46], [46, 64]):
        extremes.look(streams, elapsed_s=1.0)
    assert extremes.take() == [{"fullest": 64.0, "emptiest": 46.0}]
    assert extremes.take() == []


def test_each_period_has_its_own_extremes() -> None:
    extremes = Extremes()
    extremes.look([5, 3], elapsed_s=0.0)
    extremes.look([], elapsed_s=1.0)  # no engine is healthy
    extremes.look([9, 1], elapsed_s=2 * PERIOD_S)
    first, second, third = extremes.take()
    assert first == {"fullest": 5.0, "emptiest": 3.0}
    assert second == {"fullest": None, "emptiest": None}
    assert third == {"fullest": 9.0, "emptiest": 1.0}
