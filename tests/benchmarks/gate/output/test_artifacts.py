import itertools
from array import array
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.gate import judge, options
from benchmarks.gate.analysis.metrics import Metrics
from benchmarks.gate.analysis.records import Kind, WorkerSample
from benchmarks.gate.analysis.timeline import workers_of
from benchmarks.gate.analysis.verdict import Exit
from benchmarks.gate.endpoint.workers import Workers
from benchmarks.gate.inputs.prompts import build
from benchmarks.gate.options import Plan
from benchmarks.gate.output import artifacts, export, results
from benchmarks.gate.output.artifacts import Inputs, RunArtifacts, tokens_from
from benchmarks.gate.traffic.load import Outcome
from benchmarks.gate.traffic.measured import Measured, Offered
from benchmarks.streaming.client import Seen

AT = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)
FLAGS = ["--url", "http://r", "--model", "M", "--gpus", "2", "--profile", "smoke"]
ASKED = ["--throughput", ">= 1", "--ttft-p99", "<= 2000", "--slo", "ttft:2000"]


def plan(tmp_path: Path, *flags: str) -> Plan:
    return options.read([*FLAGS, *ASKED, "--out", str(tmp_path), *flags], AT)


def answered(number: int, *, error: str | None = None) -> Seen:
    sent = 100.0 + number / 10
    seen = Seen(number, number % 20, sent, written=sent, status=200, error=error)
    for at in (0.1, 0.15, 0.2):
        seen.arrival(sent + at)
    seen.ended = sent + 0.21
    seen.input_tokens, seen.output_tokens, seen.cached_tokens = 32, 3, 16
    return seen


def measured(
    *,
    stopped: bool = False,
    resent: bool = False,
    served_by: Sequence[str] = (),
    dropped: int = 0,
) -> Measured:
    seen = [answered(number) for number in range(40)]
    seen[0].resent = resent
    for each, worker in zip(seen, itertools.cycle(served_by), strict=False):
        each.worker = worker
    outcome = Outcome(seen, 0.2, array("d", [0.001]), stopped, dropped)
    samples = tuple(
        WorkerSample(at / 2, url, 4.0, 0.0, 0.1, 4, None, 0.01)
        for at in range(8)
        for url in ("http://a", "http://b")
    )
    # The profile requires eight in flight.
    for each in seen[:8]:
        each.written = seen[7].sent
        each.ended = seen[7].sent + 0.21
    return Measured(Offered(100.0, 105.0, AT, (outcome,)), samples, 8, 1)


def kept(plan: Plan, source: str = "router", **changes: Any) -> RunArtifacts:
    prompts = replace(build(20, 32, 100), counted_by="tokenize")
    inputs = Inputs(prompts, Workers(("http://a", "http://b"), source))
    return artifacts.kept(plan, "smoke", measured(**changes), inputs)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without plots, whose drawing takes a second."""
    monkeypatch.setattr(judge, "pictures_of", lambda _: {})


def test_a_run_has_a_verdict_and_its_basis(tmp_path: Path) -> None:
    found = kept(plan(tmp_path))
    assert found.evaluation.verdict.exit_code is Exit.PASS
    assert found.evaluation.diagnosis.kind is Kind.HEALTHY
    assert found.lines == [
        "Goodput (ttft:2000 ms): 40 of 40 requests (100.0%), 9.76 requests/sec",
        "output tokens: counted by the server (usage)",
        "prompts: 20 of 32 tokens, each sent 2.4 times; 50% of prompt tokens were cached by the "
        "server",
    ]
    ours = found.document["pd_router"]
    assert ours["goodput"]["share"] == 1.0
    assert ours["input"]["reuse"] == (40 + 8) / 20
    assert (ours["input"]["seed"], ours["input"]["counted_by"]) == (100, "tokenize")
    assert ours["workers"]["each"]["http://a"] == {"peak_in_flight": 4.0, "answers": None}
    assert ours["warmup"] == {"requests": 8, "failed": 1}
    assert orjson.dumps(found.document)


def test_unique_prompts_are_sent_once(tmp_path: Path) -> None:
    assert kept(plan(tmp_path, "--unique-prompts")).document["pd_router"]["input"]["reuse"] == 1.0


@pytest.mark.parametrize(
    ("flags", "expected"), [((), 2), (("--gpus", "8"), 2), (("--workers-expected", "3"), 3)]
)
def test_how_many_workers_were_expected_is_kept_with_the_run(
    flags: tuple[str, ...], expected: int, tmp_path: Path
) -> None:
    found = kept(plan(tmp_path, *flags))
    artifacts.write(tmp_path, found)
    run = results.read(tmp_path).run
    assert run is not None
    assert run.workers == expected


def test_unsent_due_requests_are_reported(tmp_path: Path) -> None:
    found = kept(plan(tmp_path, "--rate", "9", "--duration", "3"), dropped=7)
    assert "due and not sent before the 3 s were over: 7 of 47 requests" in found.lines
    assert found.document["pd_router"]["input"]["dropped"] == 7


def test_workers_by_two_names_do_not_count_twice(tmp_path: Path) -> None:
    found = kept(plan(tmp_path), "told", served_by=("http://10.0.0.1", "http://10.0.0.2"))
    run = found.evaluation.result.run
    assert run is not None
    assert workers_of(run) == ["http://a", "http://b"]
    assert {each.worker for each in run.requests} == {None}
    assert found.document["pd_router"]["workers"]["each"].keys() == {"http://a", "http://b"}
    assert "--worker names none of the workers as answers do (http://10.0.0.1, " in found.lines[-1]


@pytest.mark.parametrize("served_by", [("http://a", "http://b"), ("http://a",)])
def test_answers_belong_to_named_workers(served_by: tuple[str, ...], tmp_path: Path) -> None:
    found = kept(plan(tmp_path), "told", served_by=served_by)
    each = found.document["pd_router"]["workers"]["each"]
    assert {name for name, seen in each.items() if seen["answers"]} == {*served_by}
    assert not any("--worker" in line for line in found.lines)


def test_an_interrupted_run_is_void(tmp_path: Path) -> None:
    found = kept(plan(tmp_path), stopped=True)
    assert found.evaluation.verdict.exit_code is Exit.VOID
    assert found.document["was_cancelled"]


def test_a_stored_run_gives_the_same_verdict(tmp_path: Path) -> None:
    asked = plan(tmp_path)
    found = kept(asked)
    artifacts.write(tmp_path, found)
    report = artifacts.draw(asked, [found], [tmp_path])
    page = report.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert all(line in page for line in found.lines)
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {results.NAME, results.RUN, export.RECORDS, export.CTRF, "workers.png"}
    again = results.read(tmp_path)
    assert again.metrics == found.evaluation.result.metrics
    assert again.constraints == asked.constraints
    assert results.read(tmp_path / results.RUN).run == found.evaluation.result.run
    assert len((tmp_path / export.RECORDS).read_bytes().splitlines()) == 40


@pytest.mark.usefixtures("no_pictures")
def test_resent_requests_are_counted_and_reported(tmp_path: Path) -> None:
    asked = plan(tmp_path)
    found = kept(asked, resent=True)
    line = "sent again, as the kept connection was closed just when they were written: 1 requests"
    assert found.lines[-1] == line
    assert found.document["pd_router"]["resent"] == 1
    artifacts.write(tmp_path, found)
    page = artifacts.draw(asked, [found], [tmp_path]).read_text(encoding="utf-8")
    assert "40 answered, 0 failed, 1 sent again" in page
    assert results.read(tmp_path).metrics.resent == 1
    assert results.read(tmp_path / results.NAME).metrics == found.evaluation.result.metrics


def summary_of(folder: Path) -> tuple[int, int, list[str]]:
    """Passed and void tests of CTRF, and the messages of those that did not pass."""
    found = orjson.loads((folder / export.CTRF).read_bytes())["results"]
    messages = [each["message"] for each in found["tests"] if each["status"] != "passed"]
    return found["summary"]["passed"], found["summary"]["other"], messages


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("required", [(), ("--require", "1")])
def test_incomplete_series_is_void(required: tuple[str, ...], tmp_path: Path) -> None:
    asked = plan(tmp_path, "--runs", "5", *required)
    page = artifacts.draw(asked, [kept(asked)], [tmp_path], "process 0 ended").read_text("utf-8")
    assert "<title>VOID: inference performance" in page
    assert f"1 of 1 passed ({asked.must_pass} required)\n<br>void: process 0 ended" in page
    assert summary_of(tmp_path) == (1, 1, ["void: process 0 ended"])


@pytest.mark.usefixtures("no_pictures")
def test_fewer_runs_than_planned_do_not_pass(tmp_path: Path) -> None:
    asked = plan(tmp_path, "--runs", "2")
    page = artifacts.draw(asked, [kept(asked)], [tmp_path]).read_text("utf-8")
    assert "1 of 1 passed (2 required)" in page
    assert "<title>PASS" not in page


@pytest.mark.usefixtures("no_pictures")
def test_a_run_that_was_interrupted_is_one_void_test(tmp_path: Path) -> None:
    asked = plan(tmp_path)
    artifacts.draw(asked, [kept(asked, stopped=True)], [tmp_path], "interrupted: it was written")
    assert summary_of(tmp_path)[:2] == (0, 1)


def test_the_source_of_token_counts_is_reported() -> None:
    assert "usage" in tokens_from(Metrics(requests=4))
    assert "chunks with content" in tokens_from(Metrics(requests=4, chunk_counted=4))
    assert "but for 1 answers" in tokens_from(Metrics(requests=4, chunk_counted=1))
    assert tokens_from(Metrics(requests=0)) == "nothing was answered"


def test_measurements_keep_their_source_after_reading_back(tmp_path: Path) -> None:
    found = kept(plan(tmp_path, "--note", "policy=p"))
    rows = found.document["pd_router"]["provenance"]
    assert rows["policy"] == "p"
    artifacts.write(tmp_path, found)
    assert results.read(tmp_path).provenance == rows == found.evaluation.result.provenance
