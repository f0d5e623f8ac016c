from benchmarks.spread import Spread


def test_the_fullest_engine_less_the_emptiest() -> None:
    spread = Spread()
    for streams in ([3, 3, 3], [4, 3, 2], [3, 4, 3]):
        spread.look(streams)
    seen = spread.take()
    assert (seen["p50"], seen["p100"]) == (1.0, 2.0)
    assert spread.take() == {"p50": None, "p99": None, "p100": None}
