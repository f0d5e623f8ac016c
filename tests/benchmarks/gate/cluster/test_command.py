"""`pd-bench cluster`: exit statuses, reports, and the validator's guards."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gate.analysis.constraints import Constraints
from benchmarks.gate.analysis.metrics import summarise
from benchmarks.gate.analysis.records import Client, Diagnosis, Kind, Run
from benchmarks.gate.analysis.verdict import SKIPPED, judge
from benchmarks.gate.cluster import command
from benchmarks.gate.output import export
from tests.benchmarks.gate.cluster.conftest import FakeCluster
from tests.benchmarks.gate.cluster.objects import ended_pod, pod
from tests.benchmarks.gate.runs import request
from tests.benchmarks.gate.runs import run as run_of


def report(out: Path) -> Any:
    """The one test of the CTRF report."""
    document = json.loads((out / export.CTRF).read_text())
    [test] = document["results"]["tests"]
    return test


MEASURED = run_of([request(n) for n in range(20)])


def log_of(throughput: str, measured: Run = MEASURED, why: Diagnosis | None = None) -> str:
    """What the Job prints of a run that is judged by this threshold."""
    metrics, constraints = summarise(measured), Constraints(throughput)
    verdict = judge(metrics, constraints, client=measured.client, in_flight=measured.concurrency)
    document = export.document(measured, metrics, constraints, verdict, why)
    return f"waiting\n{export.framed(document)}"


def run(out: Path, *arguments: str) -> int:
    """The command."""
    return command.main(["--out", str(out), *arguments])


@pytest.mark.parametrize(
    ("throughput", "status", "word"), [(">= 1", 0, "passed"), (">= 1e9", 1, "failed")]
)
def test_the_jobs_verdict_is_the_commands(
    throughput: str, status: int, word: str, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.says(log_of(throughput))
    cluster.save(gate=[[ended_pod(status)]])
    out = tmp_path / "out"
    assert run(out, "--throughput", throughput) == status
    assert report(out)["status"] == word
    assert "RESULT: Inference throughput" in report(out)["stdout"][0]
    assert (out / command.LOG).read_text().strip() == log_of(throughput).strip()


def test_a_void_run_is_reported_as_void(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.says(log_of(">= 1", replace(MEASURED, client=Client(0.99, 1.0, 20))))
    cluster.save(gate=[[ended_pod(3)]])
    out = tmp_path / "out"
    assert run(out, "--throughput", ">= 1") == 3
    assert report(out)["status"] == "other"
    assert report(out)["message"].startswith("void: the client used 0.99 of a core")


def test_the_report_has_the_jobs_own_diagnosis(cluster: FakeCluster, tmp_path: Path) -> None:
    backup = Diagnosis(Kind.BACKUP, "w3", "w3 held up to 200 requests", 1.0, 2.0)
    cluster.says(log_of(">= 1e9", why=backup))
    cluster.save(gate=[[ended_pod(1)]])
    out = tmp_path / "out"
    run(out, "--throughput", ">= 1e9")
    assert report(out)["extra"] == {"diagnosis": "single-worker backup"}
    assert "w3 held up to 200 requests" in report(out)["message"]


def test_without_thresholds_it_is_skipped_without_a_cluster_call(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(out) == 2
    assert report(out)["status"] == "skipped"
    assert capsys.readouterr().out == f"skipped: {SKIPPED}\n"
    assert cluster.calls == []


def test_trouble_with_the_cluster_is_no_verdict(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.save(pods=[pod("train", "n0", 8)])
    out = tmp_path / "out"
    assert run(out, "--platform", "h100-eks") == 3
    assert report(out)["status"] == "other"
    assert "n0: 0 of 8 free (team/train has 8)" in report(out)["message"]
    assert "error: no node has 8 free GPUs" in capsys.readouterr().err


def test_a_gate_that_died_is_no_verdict(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.says("waiting\nKilled")
    cluster.save(gate=[[ended_pod(137)]])
    out = tmp_path / "out"
    assert run(out, "--platform", "h100-eks") == 3
    assert "ended with status 137: no sentinel in the log" in report(out)["message"]
    assert "Killed" in report(out)["message"]


def test_a_wrong_threshold_is_reported_before_any_cluster_call(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(tmp_path / "out", "--throughput", "5000")
    assert ended.value.code == 3
    assert cluster.calls == []


def test_job_gets_the_command_lines_thresholds(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.says(log_of(">= 1"))
    run(tmp_path / "a", "--throughput", ">= 1", "--gpus", "8")
    _, [job] = cluster.applied
    [container] = job["spec"]["template"]["spec"]["containers"]
    given = " ".join(container["args"])
    assert "--throughput=>= 1" in given
    assert "--platform" not in given


def test_namespaces_are_new_and_kept_on_demand(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.says(log_of(">= 1"))
    for out in ("a", "b"):
        run(tmp_path / out, "--throughput", ">= 1", "--no-cleanup")
    created = [words[2] for words in cluster.calls if words[:2] == ("create", "namespace")]
    assert len(set(created)) == 2
    assert all(name.startswith("pd-router-gate-") for name in created)
    assert not cluster.did("delete")


@pytest.mark.parametrize("name", [command.LOG, "profile_export_aiperf.json"])
def test_results_of_an_earlier_run_are_not_overwritten(
    name: str, cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("earlier")
    (tmp_path / export.CTRF).write_text("earlier")
    with pytest.raises(SystemExit) as ended:
        run(tmp_path, "--throughput", ">= 1")
    assert ended.value.code == 3
    assert f"--out: {tmp_path} holds results already" in capsys.readouterr().err
    assert (tmp_path / export.CTRF).read_text() == "earlier"
    assert cluster.calls == []


def test_a_run_that_came_to_nothing_may_be_repeated(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.save(fail="The connection to the server was refused")
    assert run(tmp_path, "--throughput", ">= 1") == 3
    assert run(tmp_path, "--throughput", ">= 1") == 3


def test_a_folder_that_cannot_be_made_is_bad_usage(cluster: FakeCluster, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        run(tmp_path / "file", "--throughput", ">= 1")
    assert ended.value.code == 3


def test_unreadable_json_and_write_errors_give_no_verdict(program: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "a", "--throughput", ">= 1") == 3
    assert report(tmp_path / "a")["status"] == "other"
    program.write_text("no program")
    assert run(tmp_path / "b", "--throughput", ">= 1") == 3
    assert "Exec format error" in report(tmp_path / "b")["message"]
