"""pd-router simulate: the router's own policies on modelled engines, in virtual time."""

import gzip
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from router.commands.console import make_console
from router.commands.usage import UsageError
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

ENGINE_COLUMNS = (
    *("engine", "role", "served", "share", "in flight", "std/mean"),
    *("queued in vain", "longest", "starved", "longest", "misdirected"),
)

COLUMNS = (
    *("requests/s", "steady", "tokens/s", "TTFT p50", "p99", "e2e p50", "p99"),
    *("max/mean load", "slowest's share", "failed"),
)

THRESHOLD_COLUMNS = ("threshold", "remote", "TTFT mean", "ITL mean", "ITL p99")
"""Columns for runs in which prompts may be prefilled remotely."""

CACHE_COLUMNS = ("prefix hits", "TTFT mean", "max/mean served")
"""Columns for runs with prefix caches."""


def run(options: Mapping[str, Any]) -> int:
    """Run the simulations and print the results. Raises UsageError for invalid options."""
    console = make_console()
    if options["selection_cost"]:
        _print_costs(console)
        return 0
    results = _simulate(console, _scenarios(options), options["policy"], options["seed"])
    console.print(_table(results, is_terminal=console.is_terminal))
    if options["per_engine"]:
        console.print(_engine_table(results, is_terminal=console.is_terminal))
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
    thresholds = [_threshold(given) for given in options["routing_threshold"] or ()]
    if not thresholds:
        return made
    return [replace(one, threshold=threshold) for one in made for threshold in thresholds]


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


def _table(results: Sequence[Result], *, is_terminal: bool) -> Table:
    table = Table(
        title="Virtual time: modelled engines, the router's own fleet and policies",
        box=box.SIMPLE_HEAD if is_terminal else None,
        pad_edge=False,
    )
    table.add_column("scenario", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    has_caches = any(not math.isnan(result.prefix_hit_rate) for result in results)
    has_prefills = any(result.remote_share for result in results)
    columns = (*COLUMNS, *(THRESHOLD_COLUMNS if has_prefills else ()))
    for column in (*columns, *(CACHE_COLUMNS if has_caches else ())):
        table.add_column(column, justify="right")
    before = None
    for result in results:
        if before is not None and before != result.scenario:
            table.add_section()
        # In a pipe each line has the scenario, for grep.
        name = "" if is_terminal and before == result.scenario else result.scenario
        prefills = _threshold_cells(result) if has_prefills else ()
        caches = _cache_cells(result) if has_caches else ()
        table.add_row(name, result.policy, *_cells(result), *prefills, *caches)
        before = result.scenario
    return table


def _engine_table(results: Sequence[Result], *, is_terminal: bool) -> Table:
    """What each engine did in each run."""
    table = Table(box=box.SIMPLE_HEAD if is_terminal else None, pad_edge=False)
    table.add_column("scenario", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    for column in ENGINE_COLUMNS:
        table.add_column(column, justify="right")
    for result in results:
        for engine in result.engines:
            table.add_row(result.scenario, result.policy, *_engine_cells(engine))
        table.add_section()
    return table


def _engine_cells(engine: EngineResult) -> tuple[str, ...]:
    return (
        str(engine.place),
        engine.role,
        str(engine.served),
        f"{100 * engine.share:.1f} %",
        f"{engine.mean_in_flight:.1f}",
        "-" if math.isnan(engine.oscillation) else f"{engine.oscillation:.2f}",
        *(
            f"{seconds:.2f} s"
            for seconds in (
                engine.queueing_seconds,
                engine.longest_wait,
                engine.starved_seconds,
                engine.longest_starved,
            )
        ),
        str(engine.misdirected),
    )


def _cells(result: Result) -> tuple[str, ...]:
    return (
        f"{result.requests_per_second:.0f}",
        f"{result.steady_requests_per_second:.0f}",
        f"{result.tokens_per_second:.0f}",
        *map(_seconds, (result.ttft_p50, result.ttft_p99, result.e2e_p50, result.e2e_p99)),
        f"{result.max_over_mean_load:.2f}",
        f"{100 * result.slowest_share:.1f} %",
        str(result.failed),
    )


def _threshold_cells(result: Result) -> tuple[str, ...]:
    return (
        result.threshold or "-",
        f"{100 * result.remote_share:.0f} %",
        *map(_seconds, (result.ttft_mean, result.itl_mean, result.itl_p99)),
    )


def _cache_cells(result: Result) -> tuple[str, ...]:
    hits = result.prefix_hit_rate
    return (
        "-" if math.isnan(hits) else f"{100 * hits:.1f} %",
        _seconds(result.ttft_mean),
        f"{result.max_over_mean_served:.2f}",
    )


def _seconds(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"


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
    table = Table(
        title=f"{COST_POLICY}: CPU microseconds per choice and release",
        title_justify="left",
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        pad_edge=False,
        min_width=64,
    )
    for column in ("engines", "all alike", "an 8th slow"):
        table.add_column(column, justify="right", no_wrap=True)
    for engines in COST_ENGINES:
        costs = [
            selection_microseconds(engines, COST_POLICY, slow=slow) for slow in (0, engines // 8)
        ]
        table.add_row(str(engines), *(f"{cost:.1f}" for cost in costs))
    console.print(table)
