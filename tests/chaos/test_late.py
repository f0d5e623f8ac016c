"""When a fault of some engines counts for the streams of the others, and the run's message."""

from collections import Counter

import pytest

from tests.chaos.router_faults import LEFT_OUT
from tests.chaos.run import ENOUGH, NOTHING, Verdict, broken, late

USUAL = [0.1] * ENOUGH


def test_three_times_as_late_is_wrong_and_named() -> None:
    [line] = late({NOTHING: USUAL, "half-open": [0.31] * ENOUGH, "slow head": [0.29] * ENOUGH})
    assert line == "half-open: the others' TTFT p99 is 0.310 s, and may be 0.300 s"


def test_few_streams_give_no_percentile() -> None:
    assert late({NOTHING: USUAL, "half-open": [9.0] * (ENOUGH - 1)}) == []
    assert late({NOTHING: [0.1], "half-open": [9.0] * ENOUGH}) == []
    assert late({"half-open": [9.0] * ENOUGH}) == []


def test_faults_of_the_router_affect_all_streams() -> None:
    names = ("SIGSTOP of a worker", "half-open + SIGSTOP of a worker")
    assert late({NOTHING: USUAL, **dict.fromkeys(names, [9.0] * ENOUGH)}) == []


def test_a_broken_stream_is_wrong_where_another_engine_could_go_on() -> None:
    ended = {
        "a stalled engine": Counter({"broken": 2}),
        "error events": Counter({"broken": 9}),
        "connections dropped": Counter({"error event": 1, "right": 9}),
    }
    assert broken(ended) == ["a stalled engine: 2 streams broke"]


def test_a_run_lists_its_skipped_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LEFT_OUT, "clock jumps", "needs apt install faketime")
    assert "left out: clock jumps, needs apt install faketime" in str(Verdict(1))


def test_a_run_reports_too_few_streams() -> None:
    verdict = Verdict(1, first_tokens={NOTHING: USUAL, "half-open": [0.1]})
    assert "the others' TTFT is not judged in 1 of 2" in str(verdict)
