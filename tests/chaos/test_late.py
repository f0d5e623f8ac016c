"""When a fault of some engines counts as one for the streams of the others."""

from tests.chaos.run import ENOUGH, NOTHING, late

USUAL = [0.1] * ENOUGH


def test_three_times_as_late_is_wrong_and_named() -> None:
    [line] = late({NOTHING: USUAL, "half-open": [0.31] * ENOUGH, "slow head": [0.29] * ENOUGH})
    assert line == "half-open: the others' TTFT p99 is 0.310 s, and may be 0.300 s"


def test_a_few_streams_tell_no_percentile() -> None:
    assert late({NOTHING: USUAL, "half-open": [9.0] * (ENOUGH - 1)}) == []
    assert late({NOTHING: [0.1], "half-open": [9.0] * ENOUGH}) == []
    assert late({"half-open": [9.0] * ENOUGH}) == []


def test_what_is_wrong_with_the_router_concerns_all_streams() -> None:
    names = ("SIGSTOP of a worker", "half-open + SIGSTOP of a worker")
    assert late({NOTHING: USUAL, **dict.fromkeys(names, [9.0] * ENOUGH)}) == []
