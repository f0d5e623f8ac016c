"""What a comparison of policies comes to: a row for each run, a line for each policy, one document.

Pure.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from benchmarks.distributions import Summary, summarise
from benchmarks.gate.ab.options import Comparison
from benchmarks.gate.analysis.verdict import Exit
from benchmarks.gate.output.artifacts import RunArtifacts
from benchmarks.gate.output.results import OURS
from benchmarks.reporting.report import cell
from router import __version__

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One run. Workers are called by their number, as their ports are other ones in every run."""

    policy: str
    round: int
    verdict: str
    message: str
    kind: str
    worker: str | None
    why: str
    throughput: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    errors: int
    checksum: str


def row(policy: str, number: int, kept: RunArtifacts, engines: Sequence[str]) -> Row:
    """The row of a run that was completed."""
    found, metrics = kept.evaluation, kept.evaluation.result.metrics
    why = found.diagnosis
    return Row(
        policy=policy,
        round=number,
        verdict=found.verdict.word,
        message=found.verdict.message,
        kind=why.kind.value,
        worker=named(why.worker, engines),
        why=why.text,
        throughput=metrics.output_token_throughput,
        ttft_p50_ms=metrics.ttft_ms.p50 if metrics.ttft_ms else None,
        ttft_p99_ms=metrics.ttft_p99_ms,
        errors=metrics.errors,
        checksum=str(kept.document[OURS]["input"]["checksum"]),
    )


def named(worker: str | None, engines: Sequence[str]) -> str | None:
    """An engine's number, from 1."""
    return f"engine {engines.index(worker) + 1}" if worker in engines else worker


@dataclass(frozen=True, slots=True)
class Line:
    """The runs of one policy."""

    policy: str
    verdicts: str
    throughput: Summary | None
    ttft_p50_ms: Summary | None
    ttft_p99_ms: Summary | None
    errors: int
    failed: tuple[str, ...]


def lines(policies: Sequence[str], rows: Sequence[Row]) -> list[Line]:
    """A line for each policy that has run."""
    return [_line(each, mine) for each in policies if (mine := _of(each, rows))]


def _of(policy: str, rows: Sequence[Row]) -> list[Row]:
    return [each for each in rows if each.policy == policy]


def _line(policy: str, rows: Sequence[Row]) -> Line:
    """Figures of void runs are excluded: they describe the client."""
    sound = [each for each in rows if each.verdict != Exit.VOID.name]
    return Line(
        policy,
        verdicts(rows),
        summarise([each.throughput for each in sound]),
        summarise([each.ttft_p50_ms for each in sound]),
        summarise([each.ttft_p99_ms for each in sound]),
        sum(each.errors for each in rows),
        failures(rows),
    )


def verdicts(rows: Sequence[Row]) -> str:
    """Such as "2 of 3 passed, 1 void"."""
    seen = Counter(each.verdict for each in rows)
    if seen[Exit.SKIPPED.name] == len(rows):
        return "nothing was asked"
    void = seen[Exit.VOID.name]
    return f"{seen[Exit.PASS.name]} of {len(rows)} passed" + (f", {void} void" if void else "")


def failures(rows: Sequence[Row]) -> tuple[str, ...]:
    """Diagnoses of the runs that did not pass, most frequent first."""
    bad = [each for each in rows if each.verdict in (Exit.FAIL.name, Exit.VOID.name)]
    seen = Counter(each.kind + (f": {each.worker}" if each.worker else "") for each in bad)
    return tuple(f"{text} ({count} of {len(rows)})" for text, count in seen.most_common())


def table(found: Sequence[Line], title: str) -> Table:
    """For a terminal."""
    grid = Table(title=title, title_justify="left", title_style="")
    grid.add_column("policy")
    grid.add_column("verdict")
    for name in ("tokens/s", "TTFT p50 ms", "TTFT p99 ms", "errors"):
        grid.add_column(name, justify="right")
    grid.add_column("failed runs look like")
    for each in found:
        grid.add_row(
            each.policy,
            each.verdicts,
            cell(each.throughput, 0),
            cell(each.ttft_p50_ms, 1),
            cell(each.ttft_p99_ms, 1),
            str(each.errors),
            "\n".join(each.failed),
        )
    return grid


def one_input(rows: Sequence[Row]) -> str | None:
    """The checksum that all runs share; None where they do not."""
    found = {each.checksum for each in rows}
    return found.pop() if len(found) == 1 else None


def document(of: Comparison, rows: Sequence[Row], broken: str | None) -> dict[str, Any]:
    """For machines."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "started_at": of.at.isoformat(),
        "policies": list(of.policies),
        "rounds": of.rounds,
        "engines": list(of.engines) or {"simulated": of.count, "options": list(of.simulator)},
        "router_options": list(of.router),
        "fault": None if of.fault is None else asdict(of.fault),
        "checksum": one_input(rows),
        "broken": broken,
        "summary": [asdict(each) for each in lines(of.policies, rows)],
        "runs": [asdict(each) for each in rows],
    }
