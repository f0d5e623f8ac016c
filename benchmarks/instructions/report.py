"""How counts are shown and kept: rich tables on the terminal, JSON in a file."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.instructions import baseline
from benchmarks.instructions.cost import Cost, Costs
from benchmarks.instructions.load import UNITS
from benchmarks.instructions.profile import BYTECODES, CALLS
from benchmarks.system import machine

NOTHING = "–"
# A call that is made less often than once in so many units is in no list.
RARE = 20
# Functions of a profile's table.
FUNCTIONS = 30


def show(costs: Mapping[str, Costs], console: Console) -> None:
    """Print the tables, and which system calls they are."""
    if not costs:
        return
    console.print(table(costs, "user-space instructions per", lambda cost: cost.instructions, 0))
    console.print(table(costs, "system calls per", lambda cost: cost.all_calls, 1))
    for router, of_router in costs.items():
        for unit in UNITS.values():
            cost = of_router.get(unit.key)
            if cost is not None and cost.calls is not None:
                console.print(f"{router}, {unit.key}: {names(cost.calls)}", highlight=False)


def table(
    costs: Mapping[str, Costs], title: str, figure: Callable[[Cost], float | None], digits: int
) -> Table:
    """Units down, routers across, with the ratio to the first router."""
    first, *others = costs
    shown = Table(title)
    for router in costs:
        shown.add_column(router, justify="right")
    for router in others:
        shown.add_column(f"{first} / {router}", justify="right")
    for unit in UNITS.values():
        if not any(unit.key in of_router for of_router in costs.values()):
            continue
        found = {
            router: None if (cost := of_router.get(unit.key)) is None else figure(cost)
            for router, of_router in costs.items()
        }
        cells = [_number(value, digits) for value in found.values()]
        cells += [_ratio(found[first], found[other]) for other in others]
        shown.add_row(unit.title, *cells)
    return shown


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def _ratio(value: float | None, base: float | None) -> str:
    return NOTHING if value is None or not base else f"{value / base:.2f}"


def names(calls: Mapping[str, float]) -> str:
    """The system calls by name, the most frequent first."""
    ordered = sorted(calls.items(), key=lambda each: -each[1])
    return ", ".join(f"{name} {count:.1f}" for name, count in ordered if count * RARE >= 1)


def show_profile(counted: Mapping[str, Mapping[str, float]], console: Console) -> None:
    """Print a table for each unit: its functions, those with the most bytecodes first."""
    for key, found in counted.items():
        bytecodes = {
            name.removeprefix(BYTECODES): count
            for name, count in found.items()
            if name.startswith(BYTECODES)
        }
        whole = sum(bytecodes.values())
        shown = Table("function", title=f"{UNITS[key].title}: {whole:,.0f} bytecodes")
        for heading in ("bytecodes", "share", "calls"):
            shown.add_column(heading, justify="right")
        for name in sorted(bytecodes, key=lambda each: -bytecodes[each])[:FUNCTIONS]:
            count = bytecodes[name]
            calls = found[CALLS + name]
            shown.add_row(name, f"{count:,.0f}", f"{count / whole:.1%}", f"{calls:.2f}")
        console.print(shown)


def save(costs: Mapping[str, Costs], command: Sequence[str], at: datetime, path: Path) -> None:
    """Write everything that a reader needs to judge the figures or to count them again."""
    body = {
        "command": shlex.join(["python", "-m", "benchmarks", "instructions", *command]),
        "at": at.isoformat(timespec="seconds"),
        "kind": baseline.kind(),
        "machine": machine.machine(),
        "versions": machine.versions() | {"executable": sys.executable},
        "revision": machine.revision(),
        "units": [asdict(unit) for unit in UNITS.values()],
        "costs": {
            router: {key: asdict(cost) for key, cost in of_router.items()}
            for router, of_router in costs.items()
        },
    }
    path.write_bytes(orjson.dumps(body, option=orjson.OPT_INDENT_2) + b"\n")
