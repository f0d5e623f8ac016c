from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gate.analysis.records import Client, Request, Run, Unreadable, WorkerSample
from tests.benchmarks.gate.runs import loop, request, round_robin, run, sampled

finite = st.floats(allow_nan=False, allow_infinity=False)
requests = st.builds(
    Request,
    number=st.integers(0, 2**40),
    prompt=st.integers(0, 1000),
    worker=st.none() | st.text(),
    sent=finite,
    first=st.none() | finite,
    last=st.none() | finite,
    ended=st.none() | finite,
    input_tokens=st.none() | st.integers(0, 10**6),
    output_tokens=st.none() | st.integers(0, 10**6),
    status=st.none() | st.integers(100, 599),
    error=st.none() | st.text(),
    gaps=st.lists(finite, max_size=4).map(tuple),
    cancelled=st.booleans(),
)
samples = st.builds(
    WorkerSample,
    at=finite,
    worker=st.text(),
    running=st.none() | finite,
    waiting=st.none() | finite,
    kv_usage=st.none() | finite,
    in_flight=st.none() | st.integers(0, 10**6),
    exclusion=st.none() | st.text(),
    seconds_per_token=st.none() | finite,
)
runs = st.builds(
    Run,
    profile=st.text(),
    url=st.text(),
    model=st.text(),
    gpus=st.integers(1, 64),
    concurrency=st.integers(1, 10**5),
    started_at=st.text(),
    requests=st.lists(requests, max_size=3).map(tuple),
    samples=st.lists(samples, max_size=3).map(tuple),
    client=st.builds(Client, cpu=finite, lag_p99_ms=finite, reached=st.integers(0, 10**5)),
    interrupted=st.booleans(),
)


@given(runs)
def test_a_run_that_is_stored_comes_back_as_it_was(seen: Run) -> None:
    assert Run.from_json(seen.to_json()) == seen


def test_runs_stored_before_cancellations_existed_are_readable() -> None:
    document = orjson.loads(run([request()]).to_json())
    del document["requests"][0]["cancelled"]
    assert Run.from_json(orjson.dumps(document)).requests == (request(),)


def test_a_cancelled_request_is_neither_success_nor_failure() -> None:
    one, half = request(cancelled=True), request(ended=None)
    assert not one.succeeded
    assert run().gave_up(one)
    assert not run().gave_up(half)
    assert run(interrupted=True).gave_up(half)


leaves = st.none() | st.integers(-(2**60), 2**60) | st.text()
documents = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(st.binary(max_size=200) | documents.map(orjson.dumps))
def test_invalid_runs_are_unreadable(data: bytes) -> None:
    with pytest.raises(Unreadable):
        Run.from_json(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client": None}, "run.client"),
        ({"client": {"cpu": 1}}, "run.client.lag_p99_ms: Field required"),
        ({"interrupted": 0}, "run.interrupted"),
        ({"gpus": True}, "run.gpus"),
        ({"requests": [1]}, r"run\.requests\[0\]: Input should be"),
        ({"samples": {}}, "run.samples: Input should be a valid array"),
    ],
)
def test_errors_in_a_stored_run_are_reported(change: dict[str, object], words: str) -> None:
    stored = orjson.loads(sampled(loop(round_robin, count=70)).to_json()) | change
    with pytest.raises(Unreadable, match=words):
        Run.from_json(orjson.dumps(stored))


def test_a_field_of_one_request_is_found_by_its_number() -> None:
    stored = orjson.loads(run([request(0), request(1)]).to_json())
    stored["requests"][1]["gaps"] = [0.1, "soon"]
    with pytest.raises(Unreadable, match=r"run\.requests\[1\]\.gaps"):
        Run.from_json(orjson.dumps(stored))


def test_fields_of_later_versions_are_ignored() -> None:
    stored = orjson.loads(run([request()]).to_json()) | {"weather": "fine"}
    assert Run.from_json(orjson.dumps(stored)) == run([request()])


@pytest.mark.parametrize(
    "changes",
    [{"error": "timeout"}, {"status": 503}, {"first": None}, {"last": None}, {"ended": None}],
)
def test_only_an_answer_with_content_and_no_error_is_a_success(changes: dict[str, Any]) -> None:
    assert request().succeeded
    assert not request(**changes).succeeded


def test_chunks_count_if_tokens_are_unknown() -> None:
    assert request(output_tokens=None).tokens == 4
    assert request(output_tokens=7).tokens == 7
    assert request(output_tokens=None, first=None, gaps=()).tokens == 0
