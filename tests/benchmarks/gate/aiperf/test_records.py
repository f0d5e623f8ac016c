"""AIPerf 0.13.0's own export of a small run: 6 requests of 4 tokens, of which one was refused, one
timed out, and one ended in an error event, which AIPerf counts as answered. Cut to what is read."""

import shutil
from pathlib import Path

import orjson
import pytest

from benchmarks.distributions import Distribution
from benchmarks.gate.aiperf.records import Record, prompts, records
from benchmarks.gate.analysis.metrics import summarise
from benchmarks.gate.analysis.records import Unreadable
from benchmarks.gate.output.results import read
from benchmarks.gate.traffic.measured import request_of
from tests.benchmarks.gate.runs import run

DATA = Path(__file__).parent / "data"
WRONG = (b"{", b"[]", b"{}", b'{"metadata":{}}', b'{"metadata":{"session_num":"x"}}', b"3")


def recorded() -> list[Record]:
    return list(records((DATA / "profile_export.jsonl").read_bytes().splitlines()))


def measured() -> list[Record]:
    return sorted((each for each in recorded() if not each.warmup), key=lambda e: e.seen.number)


def test_warm_up_and_measured_phase_are_distinguished() -> None:
    assert [each.warmup for each in recorded()].count(True) == 1
    assert [each.seen.number for each in measured()] == [0, 1, 2, 3, 4, 5]


def test_every_outcome_is_read() -> None:
    refused, slow, broken, *sound = [each.seen for each in measured()]
    assert (refused.status, refused.error) == (400, "status 400: BadRequestError")
    assert (slow.status, slow.error) == (None, "TimeoutError")
    assert refused.first is slow.first is None
    assert (broken.error, broken.chunks, broken.output_tokens) == (None, 2, None)
    for each in sound:
        assert (each.error, each.chunks, each.output_tokens) == (None, 4, 4)
        assert each.input_tokens is not None
        assert each.first is not None
        assert each.last is not None
        assert each.sent < each.first < each.last
        assert each.last - each.first == pytest.approx(sum(each.gaps), abs=1e-6)


def test_prompts_are_numbered_as_in_aiperfs_data_set() -> None:
    made = prompts(DATA / "inputs.json", 8, "cl100k_base")
    assert len(made.texts) == 3
    assert made.texts[0] == " of your praise richly compiled Reserve their"
    # The warm-up took the first one; the walk continues.
    assert [each.seen.prompt for each in measured()] == [1, 2, 0, 1, 2, 0]


def test_figures_are_those_that_aiperf_reports() -> None:
    begin = measured()[0].seen.sent
    ours = summarise(run([request_of(each.seen, begin) for each in measured()]))
    theirs = read(DATA / "profile_export_aiperf.json").metrics
    assert (ours.requests, ours.errors) == (theirs.requests, theirs.errors) == (4, 2)
    for name in ("ttft_ms", "latency_ms", "gap_ms"):
        same(getattr(ours, name), getattr(theirs, name))
    assert ours.duration == pytest.approx(theirs.duration, abs=2e-6)


def same(ours: Distribution, theirs: Distribution) -> None:
    """To the microsecond that runs are kept with."""
    for name in ("avg", "p50", "p90", "p99", "min", "max", "count"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=2e-3)


@pytest.mark.parametrize("line", WRONG)
def test_invalid_records_are_named_by_line(line: bytes) -> None:
    sound = (DATA / "profile_export.jsonl").read_bytes().splitlines()[0]
    with pytest.raises(Unreadable, match="line 2"):
        list(records([sound, line]))


def test_an_error_that_is_no_status_keeps_its_name() -> None:
    row = orjson.loads((DATA / "profile_export.jsonl").read_bytes().splitlines()[0])
    for error, status, text in (
        ({"code": 503, "type": "Service Unavailable", "message": "<html>"}, 503,
         "status 503: Service Unavailable"),
        ({"code": None, "type": "ClientConnectorError"}, None, "ClientConnectorError"),
        ({}, None, "unnamed"),
    ):  # fmt: skip
        found = next(records([orjson.dumps({**row, "metrics": {}, "error": error})]))
        assert (found.seen.status, found.seen.error) == (status, text)


def test_prompts_of_a_run_that_was_stopped_before_it_had_any(tmp_path: Path) -> None:
    assert prompts(tmp_path / "inputs.json", 8, "cl100k_base").texts == ()
    shutil.copy(DATA / "profile_export_aiperf.json", tmp_path / "inputs.json")
    with pytest.raises(Unreadable, match="inputs"):
        prompts(tmp_path / "inputs.json", 8, "cl100k_base")
