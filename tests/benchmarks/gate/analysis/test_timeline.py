from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gate.analysis.records import WorkerSample
from benchmarks.gate.analysis.timeline import (
    attributed,
    chunk_times,
    rate,
    timeline,
    visits,
    workers_of,
)
from tests.benchmarks.gate.runs import least_loaded, loop, request, round_robin, run, sampled


def sample(at: float, worker: str, in_flight: int | None, running: float | None = None):
    return WorkerSample(at, worker, running, None, None, in_flight, None, None)


def test_requests_with_a_worker_give_its_held_requests() -> None:
    seen = run(
        [
            request(0, worker="a", sent=0.0, ended=4.0),
            request(1, worker="a", sent=1.0, ended=2.0),
            request(2, worker="b", sent=1.0, ended=3.0),
        ]
    )
    found = timeline(seen)
    assert found is not None
    assert found.source == "requests"
    at = {second: int(np.searchsorted(found.times, second)) for second in (0.5, 1.5, 2.5, 3.5)}
    assert [found.loads["a"][at[t]] for t in (0.5, 1.5, 2.5, 3.5)] == [1, 2, 1, 1]
    assert [found.loads["b"][at[t]] for t in (0.5, 1.5, 2.5, 3.5)] == [0, 1, 1, 0]


def test_a_request_that_moved_was_at_the_worker_that_it_left_until_its_first_token() -> None:
    moved = request(worker="b", left=("a",), sent=0.0, first=2.0, last=2.5, ended=3.0, gaps=(0.5,))
    dead = request(1, worker=None, left=("a",), sent=1.0, first=None, last=None, ended=4.0)
    seen = timeline(run([moved, dead, request(2, worker="b", sent=3.5, ended=4.0)]))
    assert seen is not None
    at = {
        name: dict(zip(seen.times.round(2), load, strict=True)) for name, load in seen.loads.items()
    }
    moments = [
        min(at["a"], key=lambda time: abs(time - when)) for when in (0.5, 1.5, 2.5, 3.2, 3.7)
    ]
    assert [at["a"][time] for time in moments] == [1, 2, 1, 1, 1]
    assert [at["b"][time] for time in moments] == [0, 0, 1, 0, 1]


def test_a_request_that_moved_visited_both_workers() -> None:
    plain, moved = request(0, worker="b"), request(1, worker="b", left=("a",))
    returned, unserved = request(2, worker="a", left=("a",)), request(3, worker=None)
    found = visits(run([plain, moved, returned, unserved]))
    assert found == {"a": [moved, returned], "b": [plain, moved]}


def test_samples_agree_with_the_requests() -> None:
    seen = loop(round_robin, prefill_all=0.01)
    told, counted = timeline(sampled(seen, interval=0.02)), timeline(seen)
    assert told is not None
    assert counted is not None
    assert told.source == "router"
    for name, load in counted.loads.items():
        assert np.nanmean(told.loads[name]) == pytest.approx(load.mean(), rel=0.1)


def test_where_the_router_is_silent_the_engines_speak() -> None:
    found = timeline(sampled(loop(least_loaded), router=False))
    assert found is not None
    assert found.source == "engines"
    assert max(found.loads["w0"]) == 16


def test_without_any_witness_there_is_no_timeline() -> None:
    assert timeline(run([request(worker=None)])) is None
    assert timeline(run()) is None


def test_a_sample_goes_stale() -> None:
    samples = (*(sample(t, "a", 5) for t in (0.0, 0.1, 0.2)), sample(10.0, "b", 1))
    found = timeline(run([request()], samples=samples))
    assert found is not None
    assert found.loads["a"][4] == 5
    assert np.isnan(found.loads["a"][-1]), "0.2 s is long ago at 10 s"
    assert np.isnan(found.loads["b"][0]), "nobody had asked b yet"


def test_single_samples_that_are_missing_do_not_silence_the_witness() -> None:
    samples = tuple(sample(t / 10, "a", 5 if t % 3 else None) for t in range(100))
    found = timeline(run([request()], samples=samples))
    assert found is not None
    assert set(found.loads["a"][10:]) == {5.0}


def test_the_others_are_the_median_of_the_known() -> None:
    seen = loop(round_robin, workers=3, concurrency=9, count=90)
    found = timeline(seen)
    assert found is not None
    other = (found.loads["w1"] + found.loads["w2"]) / 2
    assert list(found.others("w0")) == list(other)


def test_nearly_all_answers_must_name_their_worker() -> None:
    seen = loop(round_robin)
    nameless = [replace(each, worker=None) for each in seen.requests]
    assert attributed(seen)
    assert attributed(replace(seen, requests=(*nameless[:20], *seen.requests[20:])))
    assert not attributed(replace(seen, requests=(*nameless[:64], *seen.requests[64:])))
    assert workers_of(seen) == ["w0", "w1", "w2", "w3"]


def test_content_is_counted_when_it_came() -> None:
    at = chunk_times([request(first=1.0, gaps=(0.5, 0.5)), request(first=None, gaps=())])
    assert list(at) == [1.0, 1.5, 2.0]
    assert list(rate(at, np.array([0.0, 1.2, 2.2]))) == pytest.approx([1 / 1.2, 2.0])
