import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gate.analysis.constraints import Constraints
from benchmarks.gate.analysis.metrics import ErrorCount, Metrics, summarise
from benchmarks.gate.analysis.records import Unreadable
from benchmarks.gate.output import export, results
from benchmarks.gate.output.results import Baseline, metrics_of, result_of, unframed
from tests.benchmarks.gate.runs import loop, request, round_robin, run

# As AIPerf 0.13.0 writes it (reference 2.4); scalars have a unit and avg only.
AIPERF: dict[str, Any] = {
    "schema_version": "1.4",
    "aiperf_version": "0.13.0",
    "request_throughput": {"unit": "requests/sec", "avg": 850.0},
    "request_count": {"unit": "requests", "avg": 12_288.0},
    "time_to_first_token": {
        "unit": "ms", "avg": 300.0, "p1": 20.0, "p50": 250.0, "p90": 500.0, "p95": 600.0,
        "p99": 687.5, "min": 18.0, "max": 900.0, "std": 90.0, "count": 12_288, "sum": 3_686_400.0,
    },
    "output_token_throughput": {"unit": "tokens/sec", "avg": 108_789.87},
    "error_request_count": {"unit": "requests", "avg": 4096.0},
    "error_summary": [
        {"error_details": {"code": 503, "type": "Unavailable", "message": "no"}, "count": 4096},
    ],
    "was_cancelled": False,
    "is_complete": True,
}  # fmt: skip


def test_aiperfs_own_export_is_read() -> None:
    found = result_of("theirs", orjson.dumps(AIPERF))
    assert found.metrics.output_token_throughput == 108_789.87
    assert found.metrics.ttft_p99_ms == 687.5
    assert (found.metrics.requests, found.metrics.errors) == (12_288, 4096)
    assert found.metrics.error_summary == (ErrorCount(503, "no", 4096),)
    assert (found.run, found.constraints, found.interrupted) == (None, None, False)


def test_figures_omitted_by_aiperf_are_absent_not_zero() -> None:
    found = metrics_of({"aiperf_version": "0.13.0"})
    assert found == Metrics()
    assert found.output_token_throughput is None


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "fast", None, True])
def test_infinite_numbers_are_absent(value: object) -> None:
    assert metrics_of({"output_token_throughput": {"avg": value}}).output_token_throughput is None


def test_aiperf_leaves_errors_out_where_there_were_none() -> None:
    some = {key: value for key, value in AIPERF.items() if key != "error_request_count"}
    assert metrics_of(some).errors == 0


def test_our_result_has_the_same_text(tmp_path: Path) -> None:
    seen = loop(round_robin)
    metrics, asked = summarise(seen), Constraints(">= 5", "<= 300", "1%", 100.0, 0.9)
    found = export.document(seen, metrics, asked, gpus_total=8)
    again = result_of("ours", results.to_json(found))
    assert again.metrics == metrics
    assert again.constraints == asked
    assert (again.gpus, again.gpus_total) == (4, 8)
    export.write(tmp_path / "run", seen, found)
    whole = results.read(tmp_path / "run")
    assert (whole.run, whole.metrics, whole.constraints) == (seen, metrics, asked)
    assert (whole.name, whole.gpus_total) == ("run", 8)


def test_a_folder_of_aiperfs_is_read(tmp_path: Path) -> None:
    (tmp_path / "profile_export_aiperf.json").write_bytes(orjson.dumps(AIPERF))
    assert results.read(tmp_path).metrics.ttft_p99_ms == 687.5


def test_an_interrupted_run_stays_so() -> None:
    seen = run([request()], interrupted=True)
    found = result_of("x", results.to_json(export.document(seen, summarise(seen))))
    assert found.interrupted
    assert result_of("x", seen.to_json()).interrupted


def test_a_log_is_read_between_its_first_two_sentinels() -> None:
    log = f"noise\n{export.framed(AIPERF)}more noise"
    assert unframed(log) == AIPERF
    assert result_of("log", log).metrics.ttft_p99_ms == 687.5


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("nothing", "likely failed"),
        ("===AIPERF-RESULT===\n{", "truncated"),
        ("===AIPERF-RESULT===\n{\n===AIPERF-RESULT===", "not JSON"),
    ],
)
def test_a_log_without_a_whole_result_is_unreadable(log: str, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        unframed(log)


leaves = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text()
things = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["avg", "p99", "unit", "count", "constraints"]), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*AIPERF, "pd_router", "requests", "samples"]), things))
def test_a_malformed_export_is_unreadable_or_has_finite_figures(found: dict[str, Any]) -> None:
    try:
        metrics = result_of("x", orjson.dumps(found)).metrics
    except Unreadable:
        return
    for figure in (metrics.output_token_throughput, metrics.ttft_p99_ms):
        assert figure is None or abs(figure) < float("inf")
    assert metrics.errors >= 0


@given(st.binary(max_size=100))
def test_any_other_bytes_are_unreadable(data: bytes) -> None:
    with pytest.raises(Unreadable):
        result_of("x", data)


@pytest.mark.parametrize("data", ["{}", "[]", '{"hello": 1}'])
def test_other_json_is_no_result(data: str) -> None:
    with pytest.raises(Unreadable):
        result_of("x", data)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "no.json", tmp_path):
        with pytest.raises(Unreadable, match=str(tmp_path)):
            results.read(path)


def test_a_baseline_is_the_median_of_healthy_runs(tmp_path: Path) -> None:
    path = tmp_path / "healthy.json"
    path.write_bytes(Baseline((100.0, 130.0, 110.0), 8).to_json())
    found = results.read_baseline(path)
    assert (found.median, found.gpus) == (110.0, 8)
    assert Baseline((100.0, 110.0)).median == 105.0


def test_one_result_can_be_the_baseline(tmp_path: Path) -> None:
    path = tmp_path / "healthy.json"
    path.write_bytes(orjson.dumps(AIPERF))
    assert results.read_baseline(path).median == 108_789.87


@pytest.mark.parametrize(
    "text",
    ['{"baseline": {}}', '{"baseline": {"throughputs": []}}', '{"baseline": {"throughputs": [0]}}',
     '{"baseline": {"throughputs": [1, "x"]}}', "{}", "x", '{"aiperf_version": "0.13.0"}'],
)  # fmt: skip
def test_a_baseline_without_a_throughput_is_unreadable(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(Unreadable, match=r"bad\.json"):
        results.read_baseline(path)


def test_a_packed_run_is_read_as_the_plain_one() -> None:
    plain = run([request()]).to_json()
    assert result_of("r", gzip.compress(plain)) == result_of("r", plain)


def test_a_torn_packed_run_is_unreadable() -> None:
    packed = gzip.compress(run([request()]).to_json())
    for torn in (packed[:-9], packed[:2] + b"?" + packed[3:]):
        with pytest.raises(Unreadable, match="not gzip"):
            result_of("r", torn)
