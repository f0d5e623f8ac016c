"""One turn: fresh engines, one fresh router, one load: a timed window or a finite job.

Returns raw readings; `stats` and `verdict` interpret them.
"""

import functools
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.comparison.bound import bound
from benchmarks.comparison.scenarios import Scenario
from benchmarks.engines import engine, speed
from benchmarks.loadgen.plan import Plan
from benchmarks.routers.fleet import Fleet
from benchmarks.routers.table import Router
from benchmarks.system import inside, procfs
from benchmarks.system.ports import free_port
from benchmarks.system.processes import Child, Process

READY_S = 60.0
DRAIN_S = 10.0
# Round robin in front of one engine of eight that is eight times slower needs two minutes.
JOB_S = 300.0
# Times the seconds at the bound: a longer job.
JOB_TIMES = 2.0
# Around the load's own times: interpreter start, a machine that others use as well.
SLACK_S = 30.0
# Time-out of a request for the router's event loop metrics.
Look = Callable[[], inside.Lag | None]


@dataclass(frozen=True)
class Reading:
    """Readings of a window or job. CPU and wall time in seconds; the rest as reported."""

    wall_s: float
    router_cpu_s: float | None
    router_rss_bytes: int | None
    engine_cpu_s: float
    client_cpu_s: float
    machine_busy_s: float
    load: dict[str, Any]
    engines: dict[str, Any]
    # The tree's resident size before the load, and at the window's two ends.
    router_rss_idle_bytes: int | None = None
    router_rss_open_bytes: int | None = None
    router_rss_close_bytes: int | None = None
    # The router's event loop metrics; None if it has none.
    stalls: inside.Stalls | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the results file."""
        return asdict(self)


@dataclass(frozen=True)
class _Snapshot:
    at: float
    router: float | None
    rss: int | None
    engine: float
    client: float
    machine: float


def turn(scenario: Scenario, router: Router, logs: Path) -> Reading:
    """Measure one router once."""
    with ExitStack() as stack:
        engines = stack.enter_context(_engines(scenario, logs))
        said = engines.expect("ready", READY_S)
        fleet = Fleet(said["decode"], said["prefill"])
        process, targets = _start(router, fleet, logs, stack)
        plan = _plan(scenario, targets)
        load = stack.enter_context(Child(["load", plan.encode()], logs / "load.log"))
        take = _job if plan.requests else _window
        idle = procfs.rss_bytes(process.pid) if process else None
        look = functools.partial(inside.look, targets[0]) if process else _nothing
        before = look()
        reading, after = take(plan, process, engines, load, look)
        return replace(reading, router_rss_idle_bytes=idle, stalls=inside.between(before, after))


def _nothing() -> None:
    """No router, no look inside."""


def _engines(scenario: Scenario, logs: Path) -> Child:
    plan = engine.Plan(**_common(scenario, engine.Plan))
    return Child(["engine", plan.encode()], logs / "engine.log")


def _common(scenario: Scenario, plan: type[engine.Plan | Plan]) -> dict[str, Any]:
    """The fields that a plan copies from the scenario's row."""
    return {
        field.name: getattr(scenario, field.name)
        for field in fields(plan)
        if hasattr(scenario, field.name)
    }


def _start(
    router: Router, fleet: Fleet, logs: Path, stack: ExitStack
) -> tuple[Process | None, list[str]]:
    if router.command is None:
        return None, list(fleet.decode)
    port = free_port()
    command = router.command(fleet, port, logs)
    process = stack.enter_context(Process(command, logs / f"{router.name}.log"))
    base = f"http://127.0.0.1:{port}"
    process.wait_ready(base + router.ready_path, READY_S)
    return process, [base]


def _plan(scenario: Scenario, targets: list[str]) -> Plan:
    return Plan(
        targets=[(urlsplit(url).hostname, urlsplit(url).port) for url in targets],
        drain_s=_job_s(scenario) if scenario.requests else DRAIN_S,
        frozen=speed.frozen(scenario.changes),
        **_common(scenario, Plan),
    )


def _job_s(scenario: Scenario) -> float:
    """The most that a job may take."""
    rate = bound(scenario)
    return max(JOB_S, JOB_TIMES * (scenario.requests or 0) / rate if rate else 0.0)


def _window(
    plan: Plan, router: Process | None, engines: Child, load: Child, look: Look
) -> tuple[Reading, inside.Lag | None]:
    load.expect("open", 2 * plan.ramp_s + SLACK_S)
    before = _snapshot(router, engines, load)
    engines.ask()
    load.expect("close", plan.window_s + SLACK_S)
    after, lag = _snapshot(router, engines, load), look()
    return _reading(plan, router, (before, after), engines, load), lag


def _job(
    plan: Plan, router: Process | None, engines: Child, load: Child, look: Look
) -> tuple[Reading, inside.Lag | None]:
    load.expect("open", (JOB_S if plan.warm_up_clients else 0.0) + SLACK_S)
    engines.ask()
    before = _snapshot(router, engines, load)
    load.tell("go")
    engines.tell(str(load.expect("begun", SLACK_S)["at"]))
    load.expect("close", plan.drain_s + SLACK_S)
    after, lag = _snapshot(router, engines, load), look()
    return _reading(plan, router, (before, after), engines, load), lag


def _reading(
    plan: Plan,
    router: Process | None,
    snapshots: tuple[_Snapshot, _Snapshot],
    engines: Child,
    load: Child,
) -> Reading:
    before, after = snapshots
    engine_figures = engines.ask()
    rss = procfs.peak_rss_bytes(router.pid) if router else None
    return Reading(
        wall_s=after.at - before.at,
        router_cpu_s=_difference(before.router, after.router),
        router_rss_bytes=rss,
        engine_cpu_s=after.engine - before.engine,
        client_cpu_s=after.client - before.client,
        machine_busy_s=after.machine - before.machine,
        load=load.expect("report", plan.drain_s + SLACK_S),
        engines=engine_figures,
        router_rss_open_bytes=before.rss,
        router_rss_close_bytes=after.rss,
    )


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _snapshot(router: Process | None, engines: Process, load: Process) -> _Snapshot:
    return _Snapshot(
        at=time.monotonic(),
        router=procfs.cpu_s(router.pid) if router else None,
        rss=procfs.rss_bytes(router.pid) if router else None,
        engine=procfs.cpu_s(engines.pid),
        client=procfs.cpu_s(load.pid),
        machine=procfs.machine_busy_s(),
    )
