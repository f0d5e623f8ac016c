"""`ab`: the same input against the router with one policy after the other, in interleaved rounds.

Each run is a `validate` run with a fresh router and, unless engines are given, fresh engines, so
that runs are independent. An error ends with status 3; earlier measurements are kept.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks.gate import validate
from benchmarks.gate.ab import options, plot, result
from benchmarks.gate.ab.fleet import Injected, refused, router, simulated
from benchmarks.gate.ab.options import RESULT, Comparison
from benchmarks.gate.ab.result import Row
from benchmarks.gate.analysis.verdict import Exit
from benchmarks.gate.output import artifacts, results
from benchmarks.gate.output.artifacts import RunArtifacts
from benchmarks.gate.traffic.processes import make_room
from benchmarks.system.processes import StartError

PICTURE = "ab.png"


class Broken(Exception):
    """The comparison cannot continue, for the reason in the text."""


def main(argv: Sequence[str]) -> int:
    """Run it and return the exit status."""
    comparison = options.read(argv, datetime.now(UTC))
    # Before any traffic: a typo in the last policy would cost the time of all before it.
    if why := refused(comparison.policies, comparison.engines, comparison.router):
        print(f"error: {why}", file=sys.stderr)
        return int(Exit.VOID)
    # Wide enough that no line is cut when the output goes to a file.
    console = Console() if sys.stdout.isatty() else Console(width=180)
    rows: list[Row] = []
    kept: list[RunArtifacts] = []
    try:
        comparison.out.mkdir(parents=True, exist_ok=True)
        wrong = _compared(comparison, console, rows, kept)
        if rows:
            _finished(comparison, console, rows, kept, wrong)
    except KeyboardInterrupt:
        wrong = "interrupted while results were written"
    except OSError as error:
        wrong = str(error)
    if wrong is not None:
        print(f"error: {wrong}", file=sys.stderr)
    return int(Exit.PASS if wrong is None else Exit.VOID)


def _compared(
    comparison: Comparison, console: Console, rows: list[Row], kept: list[RunArtifacts]
) -> str | None:
    """Fill `rows` and `kept`; what ended it early is returned."""
    try:
        for number in range(1, comparison.rounds + 1):
            for policy in comparison.order(number):
                console.rule(f"{policy}, round {number} of {comparison.rounds}", align="left")
                row, found = _run(comparison, number, policy, console)
                rows.append(row)
                kept.append(found)
                if result.one_input(rows) is None:
                    return "the input was not the same in all runs"
    except StartError as error:
        return f"{error}\n{error.log}"
    except Broken as error:
        return str(error)
    except KeyboardInterrupt:
        return "interrupted"
    return None


def _run(
    comparison: Comparison, number: int, policy: str, console: Console
) -> tuple[Row, RunArtifacts]:
    """Run one policy once. Raises Broken, StartError, OSError, KeyboardInterrupt."""
    folder = comparison.folder(number, policy)
    folder.mkdir()
    with ExitStack() as stack:
        engines = stack.enter_context(_engines(comparison, folder))
        url = stack.enter_context(router(policy, engines, comparison.router, folder / "router.log"))
        found = _measured(comparison, number, policy, url, engines, console)
    row = result.row(policy, number, found, engines)
    console.print(f"{row.verdict}: {row.message or row.why}", markup=False, highlight=False)
    return row, found


@contextmanager
def _engines(comparison: Comparison, folder: Path) -> Iterator[tuple[str, ...]]:
    if comparison.engines:
        yield comparison.engines
        return
    with simulated(comparison.count, comparison.simulator, folder / "engines.log") as urls:
        yield urls


def _measured(
    comparison: Comparison,
    number: int,
    policy: str,
    url: str,
    engines: Sequence[str],
    console: Console,
) -> RunArtifacts:
    """Raises Broken, OSError, KeyboardInterrupt."""
    plan = comparison.plan(number, policy, url)
    make_room(plan.concurrency)
    found: list[RunArtifacts] = []
    if comparison.fault is None:
        wrong = validate.carried_out(plan, console, found)
    else:
        injected = Injected(comparison.fault, engines)
        try:
            wrong = validate.carried_out(plan, console, found, injected.happen)
        finally:
            if comparison.engines:
                asyncio.run(injected.end())
        if wrong is None and injected.wrong is not None:
            raise Broken(f"{plan.label}: {comparison.fault.line}: {injected.wrong}")
    if wrong is not None:
        raise Broken(f"{plan.label}: {wrong}")
    return found[0]


def _finished(
    comparison: Comparison,
    console: Console,
    rows: Sequence[Row],
    kept: Sequence[RunArtifacts],
    broken: str | None,
) -> None:
    """Print and write the result. Raises OSError."""
    title = title_of(comparison, rows)
    document = result.document(comparison, rows, broken)
    (comparison.out / RESULT).write_bytes(results.to_json(document))
    console.print(result.table(result.lines(comparison.policies, rows), title))
    asked = kept[0].evaluation.constraints
    limit = None if asked.ttft_p99 is None else asked.ttft_limit_ms
    picture = comparison.out / PICTURE
    picture.write_bytes(plot.draw(comparison.policies, rows, title, limit))
    console.print(f"written to {picture} and {comparison.out / RESULT}", soft_wrap=True)
    if broken is None:
        rounds = range(1, comparison.rounds + 1)
        folders = [comparison.folder(n, each) for n in rounds for each in comparison.order(n)]
        page = artifacts.report(comparison.out, None, kept, folders)
        console.print(f"each run: {page}", soft_wrap=True)


def title_of(comparison: Comparison, rows: Sequence[Row]) -> str:
    """Settings that all runs share."""
    checksum = result.one_input(rows) or "not the same"
    engines = f"{comparison.count} {'given' if comparison.engines else 'simulated'} engines"
    fault = "" if comparison.fault is None else f"; {comparison.fault.line}"
    return f"{engines}{fault}; input {checksum[:16]}"
