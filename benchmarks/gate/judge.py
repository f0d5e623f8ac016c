"""`judge`, `report` and `plot`: verdict and pictures again, from stored results.

Reads what `validate` or AIPerf wrote. Exit status: 0 pass, 1 fail, 2 skipped, 3 void or broken;
bad usage is 3 too, because 2 already means skipped.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import command_line
from benchmarks.command_line import VALIDATOR, positive, program
from benchmarks.gate.analysis import verdict
from benchmarks.gate.analysis.constraints import Constraints, InvalidConstraint
from benchmarks.gate.analysis.diagnosis import classify
from benchmarks.gate.analysis.records import Diagnosis, Kind, Unreadable
from benchmarks.gate.analysis.verdict import Exit, Verdict
from benchmarks.gate.output import export, report, results
from benchmarks.gate.output.report import Judged
from benchmarks.gate.output.results import Result
from benchmarks.gate.profiles import PLATFORMS
from router import __version__


class Parser(command_line.Parser):
    """Exits with 3 on bad usage: 2 means skipped."""

    status: int = Exit.VOID


def add_constraints(parser: argparse.ArgumentParser) -> None:
    """What a run is judged by: the options that `validate` and `judge` share."""
    parser.add_argument("--platform", choices=PLATFORMS, help="the published thresholds")
    parser.add_argument("--throughput", help='tokens per second, such as ">= 50000"')
    parser.add_argument("--ttft-p99", help='milliseconds, such as "<= 2000"')
    parser.add_argument("--max-errors", help='requests that may fail: "3" or "1%%"; default 0')
    parser.add_argument("--baseline", type=Path, help="healthy runs to compare with, a file")
    parser.add_argument("--baseline-floor", type=float, help="of their median; default 0.85")
    parser.add_argument("--gpus-total", type=positive, help="GPUs that the throughput is asked of")


def constraints_of(
    arguments: argparse.Namespace, stored: Constraints | None, gpus: int | None
) -> Constraints:
    """From the options; without any, the stored constraints of the result. `gpus`
    are benchmarked, None if not given.

    Raises InvalidConstraint, Unreadable.
    """
    platform = PLATFORMS[arguments.platform].constraints if arguments.platform else None
    given = {
        "throughput": arguments.throughput,
        "ttft_p99": arguments.ttft_p99,
        "max_errors": arguments.max_errors,
        "baseline": _baseline(arguments.baseline, gpus) if arguments.baseline else None,
        "baseline_floor": arguments.baseline_floor,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    asks = platform is not None or changes.keys() & {"throughput", "ttft_p99", "baseline"}
    base = platform or (Constraints() if asks else stored) or Constraints()
    found = replace(base, **changes)
    found.check()
    return found


def _baseline(path: Path, gpus: int | None) -> float:
    """Its median. Throughput is not proportional to GPUs: the counts must be equal."""
    found = results.read_baseline(path)
    if found.gpus and gpus and found.gpus != gpus:
        raise InvalidConstraint(
            f"baseline {path} was measured with {found.gpus} GPUs, {gpus} are benchmarked now: "
            "measure one with as many"
        )
    return found.median


def total_of(arguments: argparse.Namespace, result: Result) -> int | None:
    """The GPUs to which the throughput limit applies; None if not given."""
    if arguments.gpus_total is not None:
        return int(arguments.gpus_total)
    return PLATFORMS[arguments.platform].gpus if arguments.platform else result.gpus_total


RELATIVE = frozenset({Kind.HEALTHY, Kind.JITTER, Kind.DEGRADED})
"""The kinds of diagnosis by figures; the other kinds need the requests."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One stored result with its constraints, verdict and reasons."""

    result: Result
    constraints: Constraints
    verdict: Verdict
    diagnosis: Diagnosis


def evaluate(
    result: Result,
    constraints: Constraints,
    gpus: int | None = None,
    total: int | None = None,
) -> Evaluation:
    """Judge and classify one result; the same for `validate` and for stored ones. Raises
    InvalidConstraint."""
    run = result.run
    benchmarked = gpus if gpus is not None else result.gpus
    found = verdict.judge(
        result.metrics,
        constraints,
        benchmarked,
        total,
        client=result.client if run is None else run.client,
        in_flight=result.in_flight if run is None else min(run.concurrency, len(run.requests)),
        interrupted=result.interrupted,
    )
    same = (constraints, benchmarked, total) == (result.constraints, result.gpus, result.gpus_total)
    why = _stored(result, same=same)
    return Evaluation(
        result,
        constraints,
        found,
        why or classify(run, result.metrics, constraints, total),
    )


def _stored(result: Result, *, same: bool) -> Diagnosis | None:
    """The diagnosis made when the requests were known, if only figures are left; `same`: the limits
    are those of that time."""
    if result.run is not None or result.diagnosis is None:
        return None
    return result.diagnosis if same or result.diagnosis.kind not in RELATIVE else None


def _parser(command: str, about: str) -> Parser:
    parser = Parser(prog=program(command), description=about, epilog=VALIDATOR)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="or folder, per run")
    add_constraints(parser)
    parser.add_argument("--gpus", type=positive, help="GPUs benchmarked, where files do not say")
    return parser


def _evaluations(arguments: argparse.Namespace) -> list[Evaluation]:
    """Raises Unreadable, InvalidConstraint."""
    found = []
    for path in arguments.files:
        result = results.read(path)
        gpus = result.gpus if arguments.gpus is None else arguments.gpus
        asked = constraints_of(arguments, result.constraints, gpus)
        found.append(evaluate(result, asked, gpus, total_of(arguments, result)))
    return found


def series_of(
    evaluations: Sequence[Evaluation], required: int | None = None, broken: str | None = None
) -> verdict.Series:
    """All of them as one; `broken` is the reason for missing runs."""
    verdicts = [each.verdict for each in evaluations]
    return verdict.series(verdicts, [each.result.metrics for each in evaluations], required, broken)


def show(evaluations: Sequence[Evaluation], overall: verdict.Series) -> None:
    """Lines for a terminal or a log."""
    for each in evaluations:
        print(f"{each.verdict.word}: {each.result.name}")
        for line in (*each.verdict.lines, each.verdict.message):
            if line:
                print(f"  {line}")
        print(f"  looks like {each.diagnosis.kind.value}: {each.diagnosis.text}")
    for line in overall.lines:
        print(line)


def main_judge(argv: Sequence[str]) -> int:
    """`judge FILE...`."""
    about = "Judge stored results again by the validator's rule, ours or AIPerf's."
    parser = _parser("judge", about)
    parser.add_argument("--require", type=positive, help="runs that must pass; default: all")
    parser.add_argument("--ctrf", type=Path, help="write a CTRF report there")
    parser.add_argument("--write-baseline", type=Path, help="write the passed runs as a baseline")
    arguments = parser.parse_args(argv)
    if arguments.require is not None and arguments.require > len(arguments.files):
        parser.error(f"argument --require: there are only {len(arguments.files)} files")
    try:
        evaluations = _evaluations(arguments)
        overall = series_of(evaluations, arguments.require)
        show(evaluations, overall)
        if arguments.ctrf is not None:
            arguments.ctrf.write_bytes(results.to_json(ctrf_of(evaluations)))
        if arguments.write_baseline is not None:
            _keep(evaluations, arguments.gpus, arguments.write_baseline)
    except (Unreadable, InvalidConstraint, OSError) as error:
        return _broken(error)
    return int(overall.exit_code)


def _broken(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return int(Exit.VOID)


def ctrf_of(evaluations: Sequence[Evaluation], broken: str | None = None) -> dict[str, object]:
    """A test for each run, and one for the missing runs of a `broken` series, unless its last run
    reports it."""
    begins = [
        datetime.now(UTC) if run is None else datetime.fromisoformat(run.started_at)
        for run in (each.result.run for each in evaluations)
    ]
    verdicts = [each.verdict for each in evaluations]
    durations = [each.result.metrics.duration or 0.0 for each in evaluations]
    if broken is not None and not evaluations[-1].result.interrupted:
        verdicts.append(Verdict(passed=False, lines=(), failures=(), void_reason=broken))
        begins.append(datetime.now(UTC))
        durations.append(0.0)
    return export.ctrf(
        verdicts,
        begins,
        durations,
        __version__,
        [each.diagnosis for each in evaluations],
    )


def _keep(evaluations: Sequence[Evaluation], gpus: int | None, path: Path) -> None:
    """Only what passed is healthy; `gpus` were benchmarked, else as many as the results say. Raises
    Unreadable where nothing passed, or not with as many GPUs."""
    passed = [each.result for each in evaluations if each.verdict.exit_code is Exit.PASS]
    values = [each.metrics.output_token_throughput for each in passed]
    throughputs = tuple(each for each in values if each is not None)
    if not throughputs:
        raise Unreadable("no run passed: nothing to write as a baseline")
    counts = {each.gpus for each in passed} if gpus is None else {gpus}
    if len(counts) > 1:
        named = " and ".join(sorted("unknown" if each is None else str(each) for each in counts))
        raise Unreadable(f"the runs that passed had {named} GPUs: no baseline for any count")
    path.write_bytes(results.Baseline(throughputs, counts.pop()).to_json())


def pictures_of(each: Evaluation) -> dict[str, bytes]:
    """PNGs by name; none where no requests are stored."""
    run, asked = each.result.run, each.constraints
    if run is None:
        return {}
    limit = None if asked.ttft_p99 is None else asked.ttft_limit_ms
    from benchmarks.gate.output import plots  # noqa: PLC0415 - matplotlib, a third of a start

    return plots.draw(run, each.result.metrics, each.diagnosis, limit)


def _drawn(each: Evaluation) -> dict[str, bytes]:
    """Raises Unreadable without data to plot."""
    if not (pictures := pictures_of(each)):
        raise Unreadable(f"{each.result.name}: no requests are stored, nothing to draw")
    return pictures


def page(
    evaluations: Sequence[Evaluation],
    required: int | None = None,
    drawn: Sequence[dict[str, bytes]] | None = None,
    notes: Sequence[Sequence[str]] | None = None,
    broken: str | None = None,
) -> str:
    """report.html of some runs that were judged alike; their pictures, and what else is to be said
    of each, where there are some; and why there are not more."""
    pictures = [pictures_of(each) for each in evaluations] if drawn is None else drawn
    said = [()] * len(evaluations) if notes is None else notes
    judged = [
        Judged(each.result, each.verdict, each.diagnosis, some, lines)
        for each, some, lines in zip(evaluations, pictures, said, strict=True)
    ]
    return report.html(judged, series_of(evaluations, required, broken), evaluations[0].constraints)


def main_report(argv: Sequence[str]) -> int:
    """`report FILE...`. Exit status 0 if it was written, for any verdict."""
    parser = _parser("report", "Write report.html from stored results.")
    parser.add_argument("--out", type=Path, default=Path("report.html"))
    arguments = parser.parse_args(argv)
    try:
        arguments.out.write_text(page(_evaluations(arguments)), encoding="utf-8")
    except (Unreadable, InvalidConstraint, OSError) as error:
        return _broken(error)
    print(f"written to {arguments.out}")
    return 0


def main_plot(argv: Sequence[str]) -> int:
    """`plot FILE...`. Exit status 0 where every file had something to draw."""
    from benchmarks.gate.output import plots  # noqa: PLC0415 - as above

    parser = _parser("plot", "Draw PNGs from stored runs.")
    parser.add_argument("--out", type=Path, default=Path("plots"), help="a folder")
    arguments = parser.parse_args(argv)
    try:
        for each in _evaluations(arguments):
            pictures = _drawn(each)
            prefix = f"{each.result.name}-" if len(arguments.files) > 1 else ""
            for path in plots.save(pictures, arguments.out, prefix):
                print(path)
    except (Unreadable, InvalidConstraint, OSError) as error:
        return _broken(error)
    return 0
