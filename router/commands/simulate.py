"""pd-router simulate: the router's own policies on modelled engines, in virtual time."""

import gzip
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from router.commands.console import make_console, make_table
from router.commands.flags import UsageError
from router.simulator.virtual.cluster import selection_microseconds, simulate
from router.simulator.virtual.plots import PlotsUnavailable, plot
from router.simulator.virtual.policies import POLICY_NAMES, policies_for
from router.simulator.virtual.results import EngineResult, Result
from router.simulator.virtual.scenarios.catalogue import SCENARIOS, replayed, scenario
from router.simulator.virtual.scenarios.pools import Size
from router.simulator.virtual.scenarios.traces import TraceError, sessions
from router.simulator.virtual.values import AUTO, Scenario

__all__ = ["run"]

COST_POLICY = "shortest_expected_delay"
COST_ENGINES = (8, 100, 1000)


def _seconds(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


Columns = Sequence[tuple[str, Callable[[Result], str]]]
"""Titles, and what a result has there."""

COLUMNS: Columns = (
    ("requests/s", lambda result: f"{result.requests_per_second:.0f}"),
    ("steady", lambda result: f"{result.steady_requests_per_second:.0f}"),
    ("tokens/s", lambda result: f"{result.tokens_per_second:.0f}"),
    ("TTFT p50", lambda result: _seconds(result.ttft_p50)),
    ("p99", lambda result: _seconds(result.ttft_p99)),
    ("e2e p50", lambda result: _seconds(result.e2e_p50)),
    ("p99", lambda result: _seconds(result.e2e_p99)),
    ("max/mean load", lambda result: f"{result.max_over_mean_load:.2f}"),
    ("slowest's share", lambda result: _percent(result.slowest_share)),
    ("failed", lambda result: str(result.failed)),
)

THRESHOLD_COLUMNS: Columns = (
    ("threshold", lambda result: result.threshold or "-"),
    ("remote", lambda result: f"{100 * result.remote_share:.0f} %"),
    ("TTFT mean", lambda result: _seconds(result.ttft_mean)),
    ("ITL mean", lambda result: _seconds(result.itl_mean)),
    ("ITL p99", lambda result: _seconds(result.itl_p99)),
)
"""Columns for runs in which prompts may be prefilled remotely."""

ZONE_COLUMNS: Columns = (("crossing", lambda result: _percent(result.crossing_share)),)
"""Columns for runs with zones."""

CONTINUATION_COLUMNS: Columns = (
    ("continuation", lambda result: "on" if result.continues else "off"),
    ("continued", lambda result: str(result.continued)),
    ("longest pause", lambda result: _seconds(result.longest_pause)),
    ("slowest answer", lambda result: _seconds(result.e2e[-1] if result.e2e else math.nan)),
)
"""Columns for runs in which streams may go on with other engines."""

DEADLINE_COLUMNS: Columns = (
    ("deadlines", lambda result: "on" if result.has_deadlines else "off"),
    ("in time/s", lambda result: f"{result.in_time_per_second:.0f}"),
)
"""Columns for runs with a limit of TTFT."""

CACHE_COLUMNS: Columns = (
    ("prefix hits", lambda result: _percent(result.prefix_hit_rate)),
    ("TTFT mean", lambda result: _seconds(result.ttft_mean)),
    ("max/mean served", lambda result: f"{result.max_over_mean_served:.2f}"),
)
"""Columns for runs with prefix caches."""

ENGINE_COLUMNS: Sequence[tuple[str, Callable[[EngineResult], str]]] = (
    ("engine", lambda engine: str(engine.place)),
    ("role", lambda engine: engine.role),
    ("served", lambda engine: str(engine.served)),
    ("share", lambda engine: _percent(engine.share)),
    ("in flight", lambda engine: f"{engine.mean_in_flight:.1f}"),
    (
        "std/mean",
        lambda engine: "-" if math.isnan(engine.oscillation) else f"{engine.oscillation:.2f}",
    ),
    ("queued in vain", lambda engine: f"{engine.queueing_seconds:.2f} s"),
    ("longest", lambda engine: f"{engine.longest_wait:.2f} s"),
    ("starved", lambda engine: f"{engine.starved_seconds:.2f} s"),
    ("longest", lambda engine: f"{engine.longest_starved:.2f} s"),
    ("misdirected", lambda engine: str(engine.misdirected)),
)


def run(options: Mapping[str, Any]) -> int:
    """Run the simulations and print the results. Raises UsageError for invalid options."""
    console = make_console()
    if options["selection_cost"]:
        _print_costs(console)
        return 0
    results = _simulate(console, _scenarios(options), options["policy"], options["seed"])
    console.print(_table(console, results))
    if options["per_engine"]:
        console.print(_engine_table(console, results))
    if options["json"] is not None:
        _write(options["json"], results)
    if options["plot"] is not None:
        _plot(console, results, options["plot"])
    return 0


def _scenarios(options: Mapping[str, Any]) -> list[Scenario]:
    size = _size(options)
    names, path = options["scenario"], options["trace"]
    for name in names or ():
        if name not in SCENARIOS:
            known = ", ".join(SCENARIOS)
            raise UsageError(f"--scenario {name}: no such scenario; there are {known}")
    made = [scenario(name, size) for name in names or (() if path else SCENARIOS)]
    if path:
        made.append(_replayed(path, size, options["time_scale"]))
    workers = [one.name for one in made if one.has_workers]
    if names and workers and size.has_peers:
        raise UsageError(
            f"--peers: not with --scenario {workers[0]}, which is one router's workers"
        )
    if (impact := options["max_itl_impact"]) is not None:
        if impact < 0:
            raise UsageError(f"--max-itl-impact {impact:g}: must not be below 0")
        made = [replace(one, max_itl_impact=impact) for one in made]
    if given := options["stream_continuation"]:
        made = [replace(one, continues=each == "on") for one in made for each in given]
    made = _with_deadlines(made, options["slo_ttft"])
    thresholds = [_threshold(given) for given in options["routing_threshold"] or ()]
    if not thresholds:
        return made
    return [replace(one, threshold=threshold) for one in made for threshold in thresholds]


def _with_deadlines(made: list[Scenario], slo: float | None) -> list[Scenario]:
    if slo is None:
        return made
    if not slo > 0:
        raise UsageError(f"--slo-ttft {slo:g}: must be above 0")
    both = (False, True)
    return [replace(one, slo_ttft=slo, has_deadlines=each) for one in made for each in both]


def _threshold(given: str) -> int:
    if given == "auto":
        return AUTO
    if not given.isdecimal():
        raise UsageError(f"--routing-threshold {given}: must be a number of tokens, or auto")
    return int(given)


def _replayed(path: Path, size: Size, time_scale: float) -> Scenario:
    """A scenario from a trace, named after its file."""
    if not time_scale > 0:
        raise UsageError(f"--time-scale {time_scale:g}: must be above 0")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            requests = sessions(lines, time_scale=time_scale, limit=size.requests)
            return replayed(path.name.partition(".")[0], size, tuple(requests))
    except OSError as error:
        raise UsageError(f"--trace {path}: cannot be read: {error.strerror or error}") from None
    except (TraceError, ValueError, EOFError, zlib.error) as error:
        raise UsageError(f"--trace {path}: {error}") from None


def _size(options: Mapping[str, Any]) -> Size:
    for policy in options["policy"] or ():
        if policy not in POLICY_NAMES:
            raise UsageError(
                f"--policy {policy}: no such policy; there are {', '.join(POLICY_NAMES)}"
            )
    sizes = {name: options[name] for name in ("engines", "streams", "requests", "replicas")}
    for option, value in sizes.items():
        if value is not None and value < 1:
            raise UsageError(f"--{option} {value}: must be at least 1")
    return Size(**sizes, has_peers=options["peers"], seed=options["seed"])


def _simulate(
    console: Console, scenarios: Sequence[Scenario], policies: Sequence[str] | None, seed: int
) -> list[Result]:
    runs = [(one, policy) for one in scenarios for policy in policies or policies_for(one)]
    results = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("runs", total=len(runs))
        for one, policy in runs:
            progress.update(bar, description=f"{one.name}, {policy}")
            try:
                results.append(simulate(one, policy, seed=seed))
            except RuntimeError as error:
                raise UsageError(f"{one.name}: {error}; simulate less") from None
            progress.advance(bar)
    return results


def _table(console: Console, results: Sequence[Result]) -> Table:
    title = "Virtual time: modelled engines, the router's own fleet and policies"
    columns = [*COLUMNS]
    if any(result.continues for result in results):
        columns += CONTINUATION_COLUMNS
    if any(not math.isnan(result.in_time_per_second) for result in results):
        columns += DEADLINE_COLUMNS
    if any(result.remote_share for result in results):
        columns += THRESHOLD_COLUMNS
    if any(not math.isnan(result.crossing_share) for result in results):
        columns += ZONE_COLUMNS
    if any(not math.isnan(result.prefix_hit_rate) for result in results):
        columns += CACHE_COLUMNS
    table = _named_table(console, [column for column, _ in columns], title=title)
    before = None
    for result in results:
        if before is not None and before != result.scenario:
            table.add_section()
        # In a pipe each line has the scenario, for grep.
        name = "" if console.is_terminal and before == result.scenario else result.scenario
        table.add_row(name, result.policy, *(cell_of(result) for _, cell_of in columns))
        before = result.scenario
    return table


def _engine_table(console: Console, results: Sequence[Result]) -> Table:
    """What each engine did in each run."""
    table = _named_table(console, [column for column, _ in ENGINE_COLUMNS])
    for result in results:
        for engine in result.engines:
            cells = (cell_of(engine) for _, cell_of in ENGINE_COLUMNS)
            table.add_row(result.scenario, result.policy, *cells)
        table.add_section()
    return table


def _named_table(console: Console, columns: Sequence[str], title: str | None = None) -> Table:
    """A table whose rows begin with scenario and policy."""
    table = make_table(console, title=title)
    for name in ("scenario", "policy"):
        table.add_column(name, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _write(path: Path, results: Sequence[Result]) -> None:
    rows = [result.row() for result in results]
    try:
        path.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise UsageError(f"--json {path}: cannot be written: {error.strerror}") from None


def _plot(console: Console, results: Sequence[Result], folder: Path) -> None:
    try:
        paths = plot(results, folder)
    except PlotsUnavailable:
        console.print("No plots: matplotlib is missing; pip install 'pd-router[bench]'.")
        return
    except OSError as error:
        raise UsageError(f"--plot {folder}: cannot be written: {error.strerror}") from None
    for path in paths:
        console.print(str(path))


def _print_costs(console: Console) -> None:
    title = f"{COST_POLICY}: CPU microseconds per choice and release"
    table = make_table(console, title=title, title_justify="left", min_width=64)
    for column in ("engines", "all alike", "an 8th slow"):
        table.add_column(column, justify="right", no_wrap=True)
    for engines in COST_ENGINES:
        costs = [
            selection_microseconds(engines, COST_POLICY, slow=slow) for slow in (0, engines // 8)
        ]
        table.add_row(str(engines), *(f"{cost:.1f}" for cost in costs))
    console.print(table)
