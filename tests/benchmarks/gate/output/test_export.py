from datetime import UTC, datetime

import orjson
import pytest

from benchmarks.gate.analysis.constraints import Constraints
from benchmarks.gate.analysis.diagnosis import classify
from benchmarks.gate.analysis.metrics import summarise
from benchmarks.gate.analysis.records import Diagnosis, Kind
from benchmarks.gate.analysis.verdict import Verdict, judge
from benchmarks.gate.output import export, results
from tests.benchmarks.gate.runs import Stall, loop, request, round_robin, run


def test_the_result_has_aiperfs_shape() -> None:
    seen = loop(round_robin)
    metrics = summarise(seen)
    found = orjson.loads(results.to_json(export.document(seen, metrics)))
    # What the validator reads (reference 1.3).
    assert found["output_token_throughput"]["avg"] == metrics.output_token_throughput
    assert found["time_to_first_token"]["p99"] == metrics.ttft_p99_ms
    assert found["time_to_first_token"]["unit"] == "ms"
    spread = {"p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99"}
    spread |= {"unit", "avg", "min", "max", "std", "count", "sum"}
    for tag in ("time_to_first_token", "inter_token_latency", "request_latency",
                "output_sequence_length", "input_sequence_length"):  # fmt: skip
        assert set(found[tag]) == spread
    assert found["request_count"] == {"unit": "requests", "avg": 640}
    assert found["is_complete"] is True
    assert "error_request_count" not in found, "AIPerf leaves it out where there were none"


def test_our_evidence_is_under_its_own_key() -> None:
    seen = loop(round_robin, stall=Stall(2, 0.5, 2.5))
    metrics, asked = summarise(seen), Constraints(ttft_p99="<= 300")
    verdict, why = judge(metrics, asked), classify(seen, metrics, asked)
    document = export.document(seen, metrics, asked, verdict, why, {"prompts": "sha256:1"})
    found = orjson.loads(results.to_json(document))
    ours = found.pop("pd_router")
    assert ours["diagnosis"]["kind"] == "single-worker backup"
    assert ours["diagnosis"]["worker"] == "w2"
    assert ours["verdict"]["word"] == "FAIL"
    assert ours["prompts"] == "sha256:1"
    assert not {"verdict", "diagnosis", "client"} & set(found)


def test_a_run_without_an_answer_has_no_figures_in_its_result() -> None:
    seen = run([request(status=500, first=None, last=None)])
    found = export.document(seen, summarise(seen))
    assert "output_token_throughput" not in found
    assert found["error_request_count"]["avg"] == 1
    assert found["error_summary"] == [
        {"error_details": {"code": 500, "message": "status 500"}, "count": 1}
    ]


def test_stdout_can_be_framed_and_is_whole_lines() -> None:
    lines = export.framed({"a": 1}).splitlines()
    assert lines[0] == lines[-1] == "===AIPERF-RESULT==="
    assert orjson.loads("".join(lines[1:-1])) == {"a": 1}


def test_every_request_has_its_line() -> None:
    seen = run(
        [
            request(0, sent=1.0, first=1.25, last=2.0, ended=2.5),
            request(1, status=503, first=None, last=None, output_tokens=None, gaps=()),
            request(2, ended=None, last=None),
        ],
        interrupted=True,
    )
    good, bad, given_up = map(orjson.loads, export.request_lines(seen).splitlines())
    start = int(datetime(2026, 11, 21, 10, tzinfo=UTC).timestamp()) * 10**9
    assert good["metadata"]["request_start_ns"] == start + 10**9
    assert good["metadata"]["request_end_ns"] == start + 2_500_000_000
    assert good["metadata"]["worker_id"] == "w0"
    assert good["metrics"]["time_to_first_token"] == {"value": 250.0, "unit": "ms"}
    assert good["metrics"]["inter_token_latency"]["value"] == pytest.approx(250.0)
    assert good["error"] is None
    assert bad["error"] == {"code": 503, "message": "status 503"}
    assert bad["metrics"] == {"input_sequence_length": {"value": 8, "unit": "tokens"}}
    assert given_up["metadata"]["was_cancelled"] is True
    assert given_up["error"] is None


AT = datetime(2026, 11, 21, 10, tzinfo=UTC)
VERDICTS = [
    Verdict(True, ("RESULT: fine",), ()),
    Verdict(False, (), ("x" * 5000,)),
    Verdict(False, (), (), skipped=True),
    Verdict(False, (), (), void_reason="interrupted"),
]


def test_ctrf_distinguishes_pass_fail_skip_and_void() -> None:
    why = [Diagnosis(Kind.BACKUP, "w2", "w2 held too much.")] * 4
    found = export.ctrf(VERDICTS, [AT] * 4, [1.0, 2.0, 3.0, 4.0], "0.1.0", why)
    tests = found["results"]["tests"]
    assert [test["status"] for test in tests] == ["passed", "failed", "skipped", "other"]
    summary = found["results"]["summary"]
    assert {key: summary[key] for key in ("tests", "passed", "failed", "skipped", "other")} == {
        "tests": 4, "passed": 1, "failed": 1, "skipped": 1, "other": 1,
    }  # fmt: skip
    assert summary["stop"] - summary["start"] == 4000
    assert tests[0]["message"] == ""
    assert tests[0]["stdout"] == ["RESULT: fine"]
    assert len(tests[1]["message"]) == 4096
    assert tests[3]["message"] == "void: interrupted\nw2 held too much."
    assert tests[1]["extra"] == {"diagnosis": "single-worker backup"}
    assert found["reportFormat"] == "CTRF"
    assert orjson.dumps(found)
