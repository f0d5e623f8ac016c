"""`pd-bench`, and `python -m benchmarks`: one command line for the bench and the gate.

Exit status of compare, results, instructions and peers: 0 sound, 1 something void, failed, missing
or grown, 2 bad usage, 130 interrupted; of the others the validator's: 0 pass, 1 fail, 2 skipped,
3 void or broken. Where the command line does not begin with one of the former: 3.
"""

import argparse
import gc
import pkgutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from benchmarks.command_line import VALIDATOR, Parser, program
from benchmarks.comparison import limits
from benchmarks.comparison.scenarios import SCENARIOS, Scenario
from benchmarks.routers.table import DEFAULT, ROUTERS
from benchmarks.system import signals

# They read their own command lines; of the gate's, exit statuses are the validator's.
OWN = {
    "instructions": "benchmarks.instructions.command:main",
    "validate": "benchmarks.gate.validate:main",
    "ab": "benchmarks.gate.ab.rounds:main",
    "judge": "benchmarks.gate.judge:main_judge",
    "report": "benchmarks.gate.judge:main_report",
    "plot": "benchmarks.gate.judge:main_plot",
    "aiperf": "benchmarks.gate.aiperf.environment:main",
    "cluster": "benchmarks.gate.cluster.command:main",
    "h100": "benchmarks.h100.command:main",
}

GATED = ("validate", "ab", "judge", "report", "plot", "cluster")
"""For the validator and the gate 2 means skipped: a pipeline would continue."""

ABOUT = (
    "The bench measures routers side by side (compare, results, peers); the gate measures an "
    "endpoint and says whether it passes, and why not (the other commands)."
)

YOUNG = 100_000
"""As in router/garbage.py: imported objects are never garbage."""

RESULTS = Path(__file__).resolve().parent / "results"


def positive(text: str) -> int:
    """A whole number above zero."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def seconds(text: str) -> float:
    """A time above zero."""
    number = float(text)
    if not 0 < number < 3600:
        raise argparse.ArgumentTypeError(f"must be between 0 and 3600 seconds, not {text}")
    return number


def parser(first: str = "") -> argparse.ArgumentParser:
    """The command line, which begins with the word `first`. If that is no command of the bench it
    may have been meant for the gate: see GATED."""
    top = Parser(prog=program(), description=ABOUT, epilog=VALIDATOR)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    side = commands.add_parser("compare", help="measure routers side by side")
    side.add_argument("--scenario", choices=SCENARIOS, action="append", help="default: relay")
    side.add_argument(
        "--router", choices=ROUTERS, action="append", help=f"repeat; default: {', '.join(DEFAULT)}"
    )
    side.add_argument("--relative-to", choices=ROUTERS, help="ratios are to it; default: the first")
    side.add_argument("--streams", type=positive, help="concurrent clients")
    side.add_argument("--tokens", type=positive, help="tokens per answer")
    side.add_argument("--step", type=seconds, help="seconds of a decode step")
    side.add_argument("--requests", type=positive, help="requests in all, of a finite job")
    side.add_argument("--rounds", type=positive, default=5)
    side.add_argument("--attempts", type=positive, default=3, help="turns at most until one counts")
    side.add_argument("--patience", type=float, default=60.0, help="seconds to wait for quiet")
    side.add_argument("--window", type=seconds, help="seconds measured per turn")
    side.add_argument("--results", type=Path, default=RESULTS, help="where the JSON file goes")
    for name, text in (
        ("instructions", "count instructions and system calls per request and chunk"),
        ("validate", "the gate: put the validator's load on an endpoint and judge the outcome"),
        ("ab", "put the validator's load on the router with one policy after the other"),
        ("judge", "judge stored results of a load test again, ours or AIPerf's"),
        ("report", "write report.html from stored results"),
        ("plot", "draw PNGs from stored runs"),
        ("aiperf", "install AIPerf, for validate --generator aiperf"),
        ("cluster", "run the gate on a Kubernetes cluster, as a Job"),
        ("h100", "real vLLM engines on one lent GPU"),
    ):
        commands.add_parser(name, help=text)
    commands.add_parser("results", help="write RESULTS.md and its picture from stored runs")
    peer = commands.add_parser("peers", help="the other routers")
    peer.add_argument("action", choices=("install",))
    engines = commands.add_parser("engine", help="simulated engines (started by the bench)")
    engines.add_argument("plan", help="JSON, see benchmarks.engines.engine.Plan")
    offered = commands.add_parser("load", help="load generator (started by the bench)")
    offered.add_argument("plan", help="JSON, see benchmarks.loadgen.plan.Plan")
    steps = commands.add_parser("lockstep", help="engines and client (started by the bench)")
    steps.add_argument("decode", type=int, help="decode engines")
    steps.add_argument("prefill", type=int, help="prefill engines")
    if first not in commands.choices:
        top.status = 3
    return top


class Unfit(Exception):
    """Arguments that do not go together."""


def scenario_of(arguments: argparse.Namespace) -> Scenario:
    """The row of the table, changed by the command line."""
    changes = {
        "clients": arguments.streams,
        "tokens": arguments.tokens,
        "step_s": arguments.step,
        "window_s": arguments.window,
        "requests": arguments.requests,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    names = arguments.scenario or ["relay"]
    if len(names) > 1:
        raise Unfit("argument --scenario: one at a time")
    row = SCENARIOS[names[0]]
    if unfit := given.keys() & {"window_s" if row.requests else "requests"}:
        option = "--window" if "window_s" in unfit else "--requests"
        kind = "a finite job" if row.requests else "a timed window"
        raise Unfit(f"argument {option}: {row.name} is {kind}")
    return replace(row, **given)


def run_compare(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    """Measure, show, keep."""
    from benchmarks.comparison import compare  # noqa: PLC0415 - as in `main`
    from benchmarks.reporting import report  # noqa: PLC0415

    # Wide enough that no column of the report is cut when the output goes to a file.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    names = list(dict.fromkeys(arguments.router or DEFAULT))
    scenario = scenario_of(arguments)
    if arguments.relative_to not in (None, *names):
        raise Unfit(f"argument --relative-to: {arguments.relative_to} is not among --router")
    if scenario.over_direct and "direct" not in names:
        raise Unfit(f"argument --router: {scenario.name} is measured against --router direct")
    asked, scenario = scenario.clients, limits.fit(scenario, limits.raise_files())
    if scenario.clients < asked:
        console.print(f"{scenario.clients} streams, not {asked}: open files (ulimit -n)")
    at = datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="pd-router-bench-") as logs:
        for name, reason in compare.missing(names, scenario).items():
            console.print(f"[red]{name} will not run:[/red] {reason}")
        result = compare.compare(
            scenario,
            names,
            compare.Effort(arguments.rounds, arguments.attempts, arguments.patience),
            Path(logs),
            lambda turn: console.print(report.progress_line(turn), highlight=False, markup=False),
            arguments.relative_to,
        )
    report.show(result, console)
    console.print(
        f"written to {report.save(report.document(result, command, at), arguments.results)}"
    )
    return 0 if result.sound else 1


def main(command: Sequence[str]) -> int:
    """Run one command and return the exit status. Imports locally, so that the
    many engine and generator processes need not wait for matplotlib."""
    if command and command[0] in OWN:
        run: Callable[[Sequence[str]], int] = pkgutil.resolve_name(OWN[command[0]])
        return run(command[1:])
    arguments = parser(*command[:1]).parse_args(command)
    match arguments.command:
        case "compare":
            try:
                return run_compare(arguments, command)
            except Unfit as error:
                Parser(prog=program("compare")).error(str(error))
        case "peers":
            from benchmarks.routers import peers  # noqa: PLC0415

            peers.install()
        case "results":
            from benchmarks.reporting import results  # noqa: PLC0415

            for path in results.write(RESULTS, RESULTS.parent):
                print(path)
        case "engine":
            from benchmarks.engines import engine  # noqa: PLC0415

            engine.run(engine.Plan.decode(arguments.plan))
        case "load":
            from benchmarks.loadgen import load, plan  # noqa: PLC0415

            load.run(plan.Plan.decode(arguments.plan))
        case "lockstep":
            from benchmarks.instructions import lockstep  # noqa: PLC0415

            lockstep.run(arguments.decode, arguments.prefill)
    return 0


def command_line() -> NoReturn:
    """`pd-bench`, and `python -m benchmarks`."""
    signals.interrupt()
    gc.set_threshold(YOUNG)
    is_gate = sys.argv[1:2] != [] and sys.argv[1] in GATED
    try:
        if is_gate:
            _need("matplotlib")  # imported after minutes of measurement, for the plots
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if (missing := _missing_extra(error)) is not None:
            print(f"pd-bench needs {missing}: pip install 'pd-router[bench]'", file=sys.stderr)
        elif is_gate:  # Python's own exit status would be 1: the deployment failed
            traceback.print_exc()
        else:
            raise
        sys.exit(3 if is_gate else 2)
    finally:
        gc.freeze()


def _need(module: str) -> None:
    """Raises ModuleNotFoundError if it is not installed."""
    if find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def _missing_extra(error: Exception) -> str | None:
    """The missing module of the extra `bench`, if that is the error."""
    name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    return name if name.partition(".")[0] in ("matplotlib", "numpy") else None


if __name__ == "__main__":
    command_line()
