"""How a comparison is shown and kept: rich tables on the terminal, JSON in a file."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.comparison import stats
from benchmarks.comparison.bound import bound
from benchmarks.comparison.compare import Comparison, Turn
from benchmarks.distributions import Summary
from benchmarks.loadgen.spans import PERIOD_S
from benchmarks.system import machine

NOTHING = "–"
# From so many parts on, the last one of them not whole, a job is long.
LONG_PERIODS = 3
# Significant digits of stored figures: two more than tables show.
DIGITS = 6
# One line per finished turn.
TITLES = {metric.key: metric.title for metric in stats.METRICS + stats.JOB_METRICS}
SHOWN = ("cpu_us_per_chunk", "cpu_us_per_request", "requests_per_s", "middle_per_s",
         "whole_p99_ms", "ttft_p99_ms", "failures")  # fmt: skip


def cell(summary: Summary | None, digits: int) -> str:
    """A median with its range."""
    if summary is None:
        return NOTHING
    median = f"{summary.median:,.{digits}f}"
    if summary.low == summary.high:
        return median
    return f"{median} [{summary.low:,.{digits}f}–{summary.high:,.{digits}f}]"


def figures_table(comparison: Comparison) -> Table:
    """Metrics down, routers across, then each router's ratio to the base."""
    base, others = comparison.base, [r for r in comparison.routers if r != comparison.base]
    table = Table()
    table.add_column("")
    for router in comparison.routers:
        table.add_column(router, justify="right")
    for router in others:
        table.add_column(f"{router} / {base}", justify="right")
    summaries = [comparison.summaries(router) for router in comparison.routers]
    ratios = [comparison.ratios(router) for router in others]
    for metric in comparison.metrics:
        cells = [cell(each[metric.key], metric.digits) for each in summaries]
        cells += [cell(each[metric.key], 2) for each in ratios]
        table.add_row(metric.title, *cells)
    return table


def engines_table(comparison: Comparison) -> Table:
    """Who carried what: requests per engine, routers down."""
    scenario = comparison.scenario
    table = Table("requests per engine")
    for number in range(scenario.engines):
        role = "decode" if number < scenario.decode_engines else "prefill"
        table.add_column(f"{number} {role}", justify="right")
    for router in comparison.routers:
        table.add_row(router, *(f"{count:,.0f}" for count in comparison.carried(router)))
    return table


def periods_table(comparison: Comparison) -> Table | None:
    """A long job in parts: one row per turn and PERIOD_S; None for a short one."""
    table = Table(title=f"by {PERIOD_S:.0f} s; streams on the fullest and emptiest healthy engine")
    headings = ("round", "router", "from s", "requests/s", "TTFT p50, ms", "TTFT p99, ms",
                "fullest", "emptiest")  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for turn in sorted(comparison.turns, key=lambda each: each.round):
        sent = turn.reading.load["periods"] if turn.reading else []
        if len(sent) < LONG_PERIODS:
            continue
        # The last part is no whole one.
        held = turn.reading.engines["periods"] if turn.reading else []
        for number, (asked, engines) in enumerate(zip(sent[:-1], held, strict=False)):
            first = (_ms(asked["first_p50_s"]), _ms(asked["first_p99_s"]))
            extremes = [_streams(engines[key]) for key in ("fullest", "emptiest")]
            place = (str(turn.round + 1), turn.router, f"{number * PERIOD_S:.0f}")
            table.add_row(*place, f"{asked['requests'] / PERIOD_S:.0f}", *first, *extremes)
    return table if table.rows else None


def _ms(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{seconds * 1e3:.0f}"


def _streams(number: float | None) -> str:
    return NOTHING if number is None else f"{number:.1f}"


def title(comparison: Comparison) -> str:
    """The load in one line."""
    scenario = comparison.scenario
    engines = f"{scenario.decode_engines} decode"
    if scenario.prefill_engines:
        engines += f" + {scenario.prefill_engines} prefill"
    text = (
        f"{scenario.name}: {scenario.about}; {scenario.clients} clients x {scenario.tokens} tokens,"
        f" {engines} engines, {scenario.step_s * 1e3:.0f} ms per step"
    )
    if scenario.requests:
        text += f"; {scenario.requests} requests; bound {bound(scenario):.0f} requests/s"
    return text


def caption(comparison: Comparison) -> str:
    """How to read the figures."""
    if comparison.scenario.requests:
        return "median and range of valid rounds; from the first request to the last answer's end"
    text = f"median and range of valid rounds; windows of {comparison.scenario.window_s} s"
    if not comparison.scenario.stream:
        text += "; TTFT is the time to the whole answer"
    return text


def guards_table(comparison: Comparison) -> Table:
    """Whether the bench was the limit: one row per turn."""
    table = Table()
    headings = ("round", "router", "engine CPU", "client CPU", "others' CPU", "engine late p99 ms",
                "client late p99 ms", "missed", "clients busy", "running", "verdict")  # fmt: skip
    for heading in headings:
        table.add_column(heading)
    for turn in sorted(comparison.turns, key=lambda each: each.round):
        table.add_row(str(turn.round + 1), turn.router, *_guard_cells(turn), _verdict(turn))
    return table


def _guard_cells(turn: Turn) -> list[str]:
    guard = turn.guards
    if guard is None:
        return [NOTHING] * 8
    cores = (guard.engine_cores, guard.client_cores, guard.other_cores)
    late = (guard.engine_late_p99_s, guard.client_late_p99_s)
    return [
        *(f"{value:.2f}" for value in cores),
        *(f"{value * 1e3:.1f}" for value in late),
        f"{guard.missed_steps:.1%}",
        f"{guard.concurrency:.0%}",
        f"{guard.running:.0f}",
    ]


def _verdict(turn: Turn) -> str:
    return "[red]VOID" if turn.void else "valid"


def failures(comparison: Comparison) -> dict[str, dict[str, int]]:
    """What failed, by router and reason."""
    found: dict[str, dict[str, int]] = {}
    for turn in comparison.turns:
        for reason, count in (turn.reading.load["failures"] if turn.reading else {}).items():
            reasons = found.setdefault(turn.router, {})
            reasons[reason] = reasons.get(reason, 0) + count
    return found


def progress_line(turn: Turn) -> str:
    """One line per finished turn."""
    figures = turn.figures
    if figures is None:
        return f"round {turn.round + 1} {turn.router}: VOID: {'; '.join(turn.void)}"
    parts = (f"{TITLES[key]} {v:.1f}" for key in SHOWN if (v := figures.get(key)) is not None)
    return f"round {turn.round + 1} {turn.router}: " + ", ".join(parts)


def show(comparison: Comparison, console: Console) -> None:
    """Print the report."""
    if comparison.routers:
        console.print("was the bench the limit? (a void turn is in no median)")
        console.print(guards_table(comparison))
        console.print(title(comparison))
        console.print(figures_table(comparison))
        if comparison.scenario.requests:
            console.print(engines_table(comparison))
            if (periods := periods_table(comparison)) is not None:
                console.print(periods)
        console.print(caption(comparison))
    for turn in comparison.turns:
        if turn.log:
            console.print(f"{turn.router}: {turn.void[0]}\n{turn.log}", markup=False)
    for router, reasons in failures(comparison).items():
        console.print(f"[red]{router} failed:[/red] {reasons}")
    for router, reason in comparison.missing.items():
        console.print(f"[red]{router} did not run:[/red] {reason}")


def document(comparison: Comparison, command: Sequence[str], at: datetime) -> dict[str, Any]:
    """What a reader needs to judge the run or to repeat it; medians follow from the turns."""
    return {
        "command": shlex.join(["python", "-m", "benchmarks", *command]),
        "at": at.isoformat(timespec="seconds"),
        "machine": machine.machine(),
        "versions": machine.versions(),
        "revision": machine.revision(),
        "scenario": asdict(comparison.scenario),
        "routers": list(comparison.routers),
        "missing": comparison.missing,
        "turns": [turn.as_dict() for turn in comparison.turns],
    }


def save(body: dict[str, Any], directory: Path) -> Path:
    """Write the results file; its name has the scenario and the time."""
    directory.mkdir(parents=True, exist_ok=True)
    stamp = body["at"].replace(":", "").replace("+0000", "Z")
    path = directory / f"{body['scenario']['name']}-{stamp}.json"
    path.write_bytes(to_json(body))
    return path


def to_json(body: dict[str, Any]) -> bytes:
    """A line for each field and each turn; floats with DIGITS significant digits."""
    fields = _rounded(body)
    turns = b",\n".join(map(orjson.dumps, fields.pop("turns")))
    head = b"".join(orjson.dumps(name) + b": " + orjson.dumps(value) + b",\n"
                    for name, value in fields.items())  # fmt: skip
    return b"{\n" + head + b'"turns": [\n' + turns + b"\n]\n}\n"


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
    return value
