"""What is made of a measured phase: evaluation, files, and lines beyond the verdict's."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gate import judge
from benchmarks.gate.aiperf import environment
from benchmarks.gate.analysis.metrics import Metrics, summarise
from benchmarks.gate.analysis.records import Client, Run
from benchmarks.gate.analysis.slo import Goodput, goodput
from benchmarks.gate.analysis.timeline import timeline
from benchmarks.gate.endpoint.workers import Workers
from benchmarks.gate.inputs.prompts import Prompts
from benchmarks.gate.inputs.tokenizer import bundled
from benchmarks.gate.judge import Evaluation
from benchmarks.gate.options import AIPERF, Plan
from benchmarks.gate.output import export, results
from benchmarks.gate.provenance import provenance
from benchmarks.gate.traffic.answers import count
from benchmarks.gate.traffic.measured import (
    Cached,
    Measured,
    Offered,
    cached,
    client_of,
    request_of,
)
from benchmarks.streaming.client import Seen
from router import __version__

REPORT = "report.html"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Common data of all runs of a plan, read before the load."""

    prompts: Prompts
    workers: Workers
    version: str | None = None
    """The endpoint's /version."""


@dataclass(frozen=True, slots=True)
class RunArtifacts:
    """One run with all its texts, and its document."""

    evaluation: Evaluation
    goodput: Goodput | None
    cached: Cached
    document: dict[str, Any]
    tokens: str
    notes: list[str]

    @property
    def lines(self) -> list[str]:
        """Beyond the verdict's."""
        return [
            *([] if self.goodput is None else [self.goodput.line]),
            f"output tokens: {self.tokens}",
            f"{self._prompts}{self.cached.line}",
            *self._resent,
            *self.notes,
        ]

    @property
    def _resent(self) -> list[str]:
        count = self.evaluation.result.metrics.resent
        why = "as the kept connection was closed just when they were written"
        return [f"sent again, {why}: {count} requests"] if count else []

    @property
    def _prompts(self) -> str:
        """Repetitions of prompts; the note on conversations has it already."""
        given = self.document[results.OURS]["input"]
        if "reuse" not in given:
            return ""
        return (
            f"prompts: {given['prompts']} of {given['tokens']} tokens, each sent "
            f"{given['reuse']:.1f} times; "
        )


def tokens_from(metrics: Metrics) -> str:
    """Who counted output tokens."""
    if not metrics.requests:
        return "nothing was answered"
    if not metrics.chunk_counted:
        return "counted by the server (usage)"
    if metrics.chunk_counted == metrics.requests:
        return "chunks with content were counted, the server sent no usage"
    return f"counted by the server (usage), but for {metrics.chunk_counted} answers: chunks"


def run_of(plan: Plan, measured: Measured, workers: Workers) -> Run:
    """The record of a measured phase."""
    offered, offer, streams = measured.offered, plan.offer, plan.concurrency
    client = _client(plan, offered)
    requests = tuple(request_of(each, offered.begin) for each in offered.seen)
    if workers.unmatched(served_by(offered.seen)):
        # With both names each worker would count twice.
        requests = tuple(replace(each, worker=None, left=()) for each in requests)
    return Run(
        profile=plan.profile.name,
        url=plan.address.url,
        model=plan.model,
        gpus=plan.gpus,
        concurrency=streams if offer is None else offer.concurrency(streams, client.reached),
        started_at=offered.started_at.isoformat(),
        requests=requests,
        samples=measured.samples,
        client=client,
        interrupted=offered.interrupted,
        workers=plan.workers_expected or len(workers.urls) or None,
    )


def served_by(seen: Sequence[Seen]) -> set[str]:
    """The workers that answers name."""
    return {each.worker for each in seen if each.worker is not None}


def _unmatched(workers: Workers, seen: Sequence[Seen]) -> list[str]:
    """For display: why answers are not attributed to workers."""
    served = served_by(seen)
    if not workers.unmatched(served):
        return []
    return [
        f"--worker names none of the workers as answers do ({', '.join(sorted(served)[:3])}), so "
        "answers are put down to no worker: name them so, or leave --worker out where the "
        "endpoint's /endpoints lists them"
    ]


def _client(plan: Plan, offered: Offered) -> Client:
    """AIPerf does not say how late its loop was. (A credit waits some ms for its request's start,
    but that is in no latency.)"""
    client = client_of(offered)
    return replace(client, lag_p99_ms=None) if plan.generator == AIPERF else client


def kept(plan: Plan, name: str, measured: Measured, inputs: Inputs) -> RunArtifacts:
    """Judge it."""
    offer, seen, dropped = plan.offer, measured.offered.seen, measured.offered.dropped
    ours = count(seen, bundled().count) if offer is not None and offer.pace.keep else None
    run = run_of(plan, measured, inputs.workers)
    metrics = summarise(run)
    rows = provenance(plan, run, inputs.workers, inputs.version)
    result = results.Result(
        name, metrics, run, plan.constraints, plan.gpus, plan.gpus_total, run.interrupted, rows
    )
    evaluation = judge.evaluate(result, plan.constraints, plan.gpus, plan.gpus_total)
    good, known = goodput(run, metrics, plan.slos), cached(seen)
    tokens = tokens_from(metrics) if ours is None else ours.text
    extra = {
        "workload": asdict(plan.profile),
        "input": _input(plan, inputs.prompts, len(seen))
        if offer is None
        else offer.report(seen, dropped),
        "cached": asdict(known),
        "tokens_from": tokens,
        "goodput": None if good is None else {**asdict(good), "share": good.share},
        "workers": {"source": inputs.workers.source, "each": _each(run)},
        "warmup": {"requests": measured.warmup_requests, "failed": measured.warmup_failed},
        "generator": _generator(plan),
        "provenance": rows,
    }
    document = export.document(
        run,
        metrics,
        plan.constraints,
        evaluation.verdict,
        evaluation.diagnosis,
        extra,
        plan.gpus_total,
    )
    notes = [] if offer is None else offer.notes(seen, dropped)
    notes += _unmatched(inputs.workers, seen)
    return RunArtifacts(evaluation, good, known, document, tokens, notes)


def _generator(plan: Plan) -> dict[str, Any]:
    if plan.generator == AIPERF:
        return {"name": plan.generator, "version": environment.VERSION}
    return {"name": plan.generator, "version": __version__, "processes": plan.processes}


def _input(plan: Plan, prompts: Prompts, requests: int) -> dict[str, Any]:
    """The number of repetitions of each prompt decides about prefix-cache hits."""
    return {
        "prompts": len(prompts.texts),
        "tokens": prompts.tokens,
        "counted_by": prompts.counted_by,
        "seed": plan.profile.seed,
        "checksum": prompts.checksum,
        "unique": plan.unique,
        "reuse": reuse(plan, prompts, requests),
    }


def reuse(plan: Plan, prompts: Prompts, requests: int) -> float:
    """How many times each prompt is sent in a run of so many requests, warm-up included."""
    return 1.0 if plan.unique else (requests + plan.warmup) / len(prompts.texts)


def _each(run: Run) -> dict[str, Any]:
    """By worker: the most that it held, and how many answers were its own where these say so."""
    seen = timeline(run)
    loads = {} if seen is None else seen.loads
    served = [each.worker for each in run.requests if each.succeeded]
    return {
        name: {
            "peak_in_flight": None if np.isnan(load).all() else float(np.nanmax(load)),
            "answers": served.count(name) if any(served) else None,
        }
        for name, load in loads.items()
    }


def write(folder: Path, each: RunArtifacts) -> None:
    """All of one run but its pictures. Raises OSError."""
    run = each.evaluation.result.run
    assert run is not None
    export.write(folder, run, each.document)


def draw(
    plan: Plan, all_kept: list[RunArtifacts], folders: list[Path], broken: str | None = None
) -> Path:
    """Pictures beside each run, and report.html and CTRF for all of them; `broken` is the reason
    for missing runs. Raises OSError."""
    evaluations = [each.evaluation for each in all_kept]
    (plan.out / export.CTRF).write_bytes(results.to_json(judge.ctrf_of(evaluations, broken)))
    return report(plan.out, plan.must_pass, all_kept, folders, broken)


def report(
    out: Path,
    required: int | None,
    all_kept: Sequence[RunArtifacts],
    folders: list[Path],
    broken: str | None = None,
) -> Path:
    """Pictures beside each run, and one page in `out` for all. Raises OSError."""
    evaluations = [each.evaluation for each in all_kept]
    drawn = [judge.pictures_of(each) for each in evaluations]
    from benchmarks.gate.output import plots  # noqa: PLC0415 - matplotlib, a third of a start

    for pictures, folder in zip(drawn, folders, strict=True):
        plots.save(pictures, folder)
    path = out / REPORT
    notes = [each.lines for each in all_kept]
    path.write_text(judge.page(evaluations, required, drawn, notes, broken), encoding="utf-8")
    return path
