from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from benchmarks.gate.analysis.constraints import Constraints
from benchmarks.gate.analysis.metrics import summarise
from benchmarks.gate.analysis.records import Client, Run
from benchmarks.gate.judge import evaluate, main_judge, main_plot, main_report
from benchmarks.gate.output import export, results
from benchmarks.gate.output.results import Baseline, Result
from tests.benchmarks.gate.runs import Stall, least_loaded, loop, round_robin

ASKED = Constraints(">= 500", "<= 300")
STALL = Stall(2, 0.5, 2.5)
PNG = b"\x89PNG\r\n\x1a\n"


def kept(folder: Path, seen: Run, asked: Constraints | None = ASKED) -> str:
    export.write(folder, seen, export.document(seen, summarise(seen), asked))
    return str(folder)


@pytest.fixture
def stalled(tmp_path: Path) -> str:
    return kept(tmp_path / "round-robin", loop(round_robin, stall=STALL))


@pytest.fixture
def steady(tmp_path: Path) -> str:
    return kept(tmp_path / "least-loaded", loop(least_loaded, stall=STALL))


def test_a_stored_run_is_judged_as_it_was(stalled: str, steady: str, capsys) -> None:
    assert main_judge([steady]) == 0
    assert "TTFT p99 constraint: <= 300 → PASS" in capsys.readouterr().out
    assert main_judge([stalled]) == 1
    out = capsys.readouterr().out
    assert "FAIL: round-robin" in out
    assert "looks like single-worker backup: w2 held up to" in out


def test_it_can_be_judged_by_something_else(stalled: str) -> None:
    assert main_judge([stalled, "--ttft-p99", "<= 5000"]) == 0
    assert main_judge([stalled, "--platform", "h100-eks"]) == 1
    assert main_judge([stalled, "--throughput", ">= 1e9"]) == 1


def test_several_runs_report_k_of_n(stalled: str, steady: str, capsys) -> None:
    assert main_judge([steady, stalled]) == 1
    assert "1 of 2 passed (2 required)" in capsys.readouterr().out
    assert main_judge([steady, stalled, "--require", "1"]) == 0


def test_engines_on_several_gpus_are_found_again(tmp_path: Path, capsys) -> None:
    slow = replace(loop(round_robin, prefill_all=0.05), gpus=8)
    assert main_judge([kept(tmp_path / "one-each", slow)]) == 1
    assert "looks like under-provisioned: 4 of 8 workers" in capsys.readouterr().out
    assert main_judge([kept(tmp_path / "two-each", replace(slow, workers=4))]) == 1
    assert "looks like balanced degradation" in capsys.readouterr().out


def test_without_constraints_it_is_skipped(tmp_path: Path) -> None:
    assert main_judge([kept(tmp_path / "plain", loop(round_robin), None)]) == 2


@pytest.mark.parametrize(
    "options",
    [["--throughput", "50000"], ["--baseline", "/no/such"], ["--max-errors", "x"],
     ["--baseline-floor", "7"]],
)  # fmt: skip
def test_an_unjudgeable_run_is_broken_not_failed(options: list[str], steady: str, capsys) -> None:
    assert main_judge([steady, *options]) == 3
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [[], ["--nonsense"], ["x", "--gpus", "0"], ["x", "--require", "2"]]
)
def test_bad_usage_is_broken_and_not_skipped(argv: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main_judge(argv)
    assert ended.value.code == 3


def test_a_file_that_is_no_result_is_broken(tmp_path: Path, capsys) -> None:
    (tmp_path / "x.json").write_text("{}")
    for main in (main_judge, main_report, main_plot):
        assert main([str(tmp_path / "x.json")]) == 3
    assert "x.json" in capsys.readouterr().err


def test_aiperfs_export_is_judged(tmp_path: Path, capsys) -> None:
    path = tmp_path / "profile_export_aiperf.json"
    found = {
        "aiperf_version": "0.13.0",
        "output_token_throughput": {"unit": "tokens/sec", "avg": 48_920.0},
        "time_to_first_token": {"unit": "ms", "p99": 30_743.0},
    }
    path.write_bytes(orjson.dumps(found))
    assert main_judge([str(path), "--platform", "h100-eks"]) == 1
    assert 'inference TTFT p99 30743.00 ms does not satisfy constraint "<= 2000"' in (
        capsys.readouterr().out
    )


def test_the_nodes_throughput_is_scaled_to_the_benchmarked_gpus(tmp_path: Path) -> None:
    path = kept(tmp_path / "half", loop(round_robin))  # 3200 tokens/s on 4 GPUs
    assert main_judge([path, "--throughput", ">= 6000"]) == 1
    assert main_judge([path, "--throughput", ">= 6000", "--gpus-total", "8"]) == 0


def test_a_passed_run_is_the_baseline_of_the_next(
    stalled: str, steady: str, tmp_path: Path, capsys
) -> None:
    healthy = kept(tmp_path / "healthy", loop(least_loaded))
    file = tmp_path / "baseline.json"
    assert main_judge([healthy, "--write-baseline", str(file)]) == 0
    assert main_judge([healthy, "--baseline", str(file)]) == 0
    assert main_judge([stalled, "--baseline", str(file)]) == 1
    assert "of the healthy median 3200.00" in capsys.readouterr().out
    assert main_judge([stalled, "--write-baseline", str(file)]) == 3, "nothing passed"


def test_baseline_of_other_gpu_count_is_refused(steady: str, tmp_path: Path, capsys) -> None:
    file = tmp_path / "baseline.json"
    file.write_bytes(Baseline((600.0,), 8).to_json())
    assert main_judge([steady, "--baseline", str(file)]) == 3
    told = capsys.readouterr().err
    assert f"baseline {file} was measured with 8 GPUs, 4 are benchmarked now" in told
    assert main_judge([steady, "--baseline", str(file), "--gpus", "8"]) == 0
    file.write_bytes(Baseline((600.0,)).to_json())
    assert main_judge([steady, "--baseline", str(file)]) == 0, "nobody knows of how many it is"


def test_a_baseline_is_of_one_number_of_gpus(tmp_path: Path, capsys) -> None:
    four, eight = (
        kept(tmp_path / str(gpus), replace(loop(least_loaded), gpus=gpus)) for gpus in (4, 8)
    )
    file = tmp_path / "baseline.json"
    assert main_judge([four, eight, "--write-baseline", str(file)]) == 3
    assert "the runs that passed had 4 and 8 GPUs" in capsys.readouterr().err
    assert not file.exists()
    assert main_judge([four, four, "--write-baseline", str(file)]) == 0
    assert results.read_baseline(file).gpus == 4
    assert main_judge([four, eight, "--gpus", "2", "--write-baseline", str(file)]) == 0
    assert results.read_baseline(file).gpus == 2


def test_ctrf_is_written(stalled: str, tmp_path: Path) -> None:
    main_judge([stalled, "--ctrf", str(tmp_path / "ctrf.json")])
    found = orjson.loads((tmp_path / "ctrf.json").read_bytes())
    assert found["results"]["tests"][0]["status"] == "failed"
    assert "w2 held up to" in found["results"]["tests"][0]["message"]


def test_the_report_is_one_complete_file(stalled: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert main_report([stalled, "--out", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    verdict, why, evidence = (
        text.index(words) for words in ("<strong>FAIL</strong>", "single-worker backup: w2", "<img")
    )
    assert verdict < why < evidence
    assert text.count("data:image/png;base64,") == 4
    assert "http-equiv" not in text
    assert "<script" not in text
    assert 'src="http' not in text


def test_plots_are_pngs(stalled: str, tmp_path: Path) -> None:
    assert main_plot([stalled, "--out", str(tmp_path / "plots")]) == 0
    files = sorted((tmp_path / "plots").iterdir())
    assert [file.stem for file in files] == [
        "distributions", "first-tokens", "throughput", "workers",
    ]  # fmt: skip
    assert all(file.read_bytes().startswith(PNG) for file in files)


def figures_of(path: Path, seen: Run, asked: Constraints | None = ASKED) -> str:
    """The result alone, as the log of a Job has it, without the requests."""
    metrics = summarise(seen)
    live = evaluate(Result("live", metrics, seen), asked or Constraints(), seen.gpus)
    document = export.document(seen, metrics, asked, live.verdict, live.diagnosis)
    path.write_bytes(results.to_json(document))
    return str(path)


@pytest.mark.parametrize(
    ("client", "told"),
    [
        (Client(0.99, 1.0, 64), "the client used 0.99 of a core"),
        (Client(0.1, 400.0, 64), "the client's loop was late: p99 400 ms"),
        (Client(0.1, None, 40), "the client reached 40 of 64 requests in flight"),
    ],
)
def test_void_run_stays_void(client: Client, told: str, tmp_path: Path, capsys) -> None:
    seen = replace(loop(least_loaded), client=client)
    file, baseline = figures_of(tmp_path / "void.json", seen), tmp_path / "baseline.json"
    assert main_judge([file, "--ctrf", str(tmp_path / "ctrf.json")]) == 3
    assert f"void: {told}" in capsys.readouterr().out
    [test] = orjson.loads((tmp_path / "ctrf.json").read_bytes())["results"]["tests"]
    assert (test["status"], test["extra"]["diagnosis"]) == ("other", "client-limited")
    assert main_judge([file, "--write-baseline", str(baseline)]) == 3
    assert not baseline.exists()


def test_fewer_requests_than_streams_are_all_that_could_be_reached(tmp_path: Path) -> None:
    seen = replace(loop(least_loaded), concurrency=1000, client=Client(0.1, 1.0, 640))
    assert main_judge([figures_of(tmp_path / "few.json", seen)]) == 0


def test_the_worker_to_blame_is_named_without_the_requests(tmp_path: Path, capsys) -> None:
    file = figures_of(tmp_path / "stalled.json", loop(round_robin, stall=STALL))
    for options in ([], ["--ttft-p99", "<= 400"]):
        assert main_judge([file, *options]) == 1
        assert "looks like single-worker backup: w2 held up to" in capsys.readouterr().out


def test_health_depends_on_the_constraints(tmp_path: Path, capsys) -> None:
    file = figures_of(tmp_path / "healthy.json", loop(least_loaded))
    main_judge([file])
    assert "looks like healthy" in capsys.readouterr().out
    main_judge([file, "--throughput", ">= 1e9"])
    assert "looks like balanced degradation" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["client", "diagnosis"])
def test_evidence_that_is_malformed_is_broken(key: str, tmp_path: Path, capsys) -> None:
    file = Path(figures_of(tmp_path / "x.json", loop(round_robin)))
    found = orjson.loads(file.read_bytes())
    found["pd_router"][key] = {"cpu": "much", "kind": "strange"}
    file.write_bytes(results.to_json(found))
    assert main_judge([str(file)]) == 3
    assert f"error: {file}: {key}" in capsys.readouterr().err


def test_figures_alone_can_be_reported_not_drawn(stalled: str, tmp_path: Path, capsys) -> None:
    summary = str(Path(stalled) / "profile_export_aiperf.json")
    assert main_plot([summary, "--out", str(tmp_path / "plots")]) == 3
    assert main_report([summary, "--out", str(tmp_path / "report.html")]) == 0
    assert "<strong>FAIL</strong>" in (tmp_path / "report.html").read_text(encoding="utf-8")
