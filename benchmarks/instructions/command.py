"""`python -m benchmarks instructions`: counts, shows, keeps and compares.

Exit status: 0 counted and nothing has grown, 1 a figure has grown or a router failed, 2 bad usage
or nothing to count with.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks.instructions import baseline, report
from benchmarks.instructions.cost import Costs
from benchmarks.instructions.counters import missing
from benchmarks.instructions.load import GUARDED as GUARDED_UNITS
from benchmarks.instructions.load import UNITS, Unit
from benchmarks.instructions.measure import count, measure
from benchmarks.instructions.profile import Bytecodes
from benchmarks.routers.table import ROUTERS
from benchmarks.system.processes import StartError

DEFAULT = ("ours", "vllm-router", "nginx")
GUARDED = ("ours", "ours-sed", "ours-sed-no-continuation", "ours-sed-off")
# What a new user runs.
PROFILED = "ours-sed"
MAX_GROWTH = 0.03
GUARDS = ", ".join(GUARDED)
PREFIX = "pd-router-instructions-"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks instructions",
        description="Count user-space instructions and system calls per request and chunk.",
    )
    names = [name for name, router in ROUTERS.items() if router.command is not None]
    top.add_argument(
        "--router", choices=names, action="append", help=f"repeat; default: {', '.join(DEFAULT)}"
    )
    top.add_argument(
        "--unit",
        choices=UNITS,
        action="append",
        metavar="UNIT",
        help=f"of {', '.join(UNITS)}; repeat; default: the first {len(GUARDED_UNITS)}",
    )
    top.add_argument("--out", type=Path, metavar="FILE", help="write the figures there, as JSON")
    top.add_argument("--baseline", type=Path, metavar="FILE", help=f"stored figures of {GUARDS}")
    top.add_argument(
        "--max-growth",
        type=float,
        default=MAX_GROWTH,
        metavar="SHARE",
        help="of any figure over the baseline's (default: %(default)s); more is a failure",
    )
    top.add_argument(
        "--write-baseline", action="store_true", help="store the figures in --baseline's file"
    )
    top.add_argument(
        "--profile", action="store_true", help=f"instead: bytecodes by function of {PROFILED}"
    )
    return top


def main(command: Sequence[str]) -> int:
    """Run it; return the exit status."""
    arguments = _arguments(command)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    for program in ("gcc",) if arguments.profile else ("gcc", "valgrind"):
        if (advice := missing(program)) is not None:
            console.print(advice)
            return 2
    if arguments.profile:
        return _profile(arguments.unit, console)
    if (advice := missing("strace")) is not None:
        console.print(f"system calls are not counted: {advice}")
    at = datetime.now(UTC)
    costs = _count(arguments.router, arguments.unit, console)
    report.show(costs, console)
    if arguments.out is not None:
        report.save(costs, command, at, arguments.out)
    if len(costs) < len(arguments.router):
        return 1
    if arguments.baseline is None:
        return 0
    guarded = [name for name in GUARDED if name in costs]
    if arguments.write_baseline:
        for name in guarded:
            baseline.write(arguments.baseline, baseline.kind(name), costs[name])
            console.print(f"stored in {arguments.baseline}: {baseline.kind(name)}")
        return 0
    most = arguments.max_growth
    return max(compare(arguments.baseline, name, costs[name], most, console) for name in guarded)


def _arguments(command: Sequence[str]) -> argparse.Namespace:
    """The command line; what does not go together ends the process with 2."""
    arguments = parser().parse_args(command)
    arguments.router = list(dict.fromkeys(arguments.router or DEFAULT))
    arguments.unit = [
        UNITS[key] for key in dict.fromkeys(arguments.unit or [unit.key for unit in GUARDED_UNITS])
    ]
    if arguments.write_baseline and arguments.baseline is None:
        parser().error("argument --write-baseline: needs --baseline")
    if arguments.baseline is not None and not set(GUARDED) & set(arguments.router):
        parser().error(f"argument --baseline: none of {GUARDS} is among --router")
    return arguments


def _profile(units: Sequence[Unit], console: Console) -> int:
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        place = Path(name)
        report.show_profile(count(Bytecodes(place), ROUTERS[PROFILED], units, place), console)
    return 0


def _count(names: Sequence[str], units: Sequence[Unit], console: Console) -> dict[str, Costs]:
    """The costs of each router that could be counted."""
    costs: dict[str, Costs] = {}
    for name in names:
        router = ROUTERS[name]
        if router.peer is not None and not router.peer.installed():
            console.print(f"{name} did not run: {router.peer.advice}", markup=False)
            continue
        with tempfile.TemporaryDirectory(prefix=PREFIX) as place:
            try:
                costs[name] = measure(router, units, Path(place), console.print)
            except StartError as error:
                console.print(f"{name} did not run: {error}\n{error.log}", markup=False)
    return costs


def compare(path: Path, router: str, costs: Costs, most: float, console: Console) -> int:
    """Say what has changed since the baseline; 1 when something has grown by more than `most`."""
    kind = baseline.kind(router)
    stored = baseline.read(path, kind)
    if stored is None:
        console.print(
            f"not compared: {path} has no figures for {kind}; --write-baseline stores them"
        )
        return 0
    changes = list(baseline.changes(stored.figures, baseline.figures(costs)))
    grown = [each for each in changes if each.has_grown(most)]
    for each in grown:
        console.print(f"[red]GREW[/red] {router}, {each}: more than {most:.0%} over the baseline")
    if any(each.growth < -most for each in changes):
        console.print(f"{router} is cheaper than the baseline: store it with --write-baseline")
    if differing := baseline.other_versions(stored.versions):
        console.print(f"not as in the baseline: {'; '.join(differing)}")
    if not grown:
        console.print(f"{router}: no figure has grown by more than {most:.0%} over {path}")
    return 1 if grown else 0
