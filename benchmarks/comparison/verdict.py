"""When a turn does not count: the bench itself was the limit, or the load was another one.

Pure.
"""

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.comparison.measure import Reading
from benchmarks.comparison.scenarios import Scenario

# Engines and load generator are one thread each. Above this share of a core, queueing in them
# shows in the router's latencies.
CORE_LIMIT = 0.85
# Timers later than a decode step are not the requested cadence.
LATE_STEPS = 1.0
# Steps that were lost altogether: the offered load itself was smaller.
MISSED_LIMIT = 0.01
# Others on the machine take so much that hardly a core's tenth is left: then it is the machine that
# delays and coalesces, for each router by another amount.
OTHERS_LIMIT = 0.5
IDLE_LIMIT = 0.1
# Clients that reconnect, or have not started, are no load.
CONCURRENCY_LIMIT = 0.95
# To begin 2048 connections takes the client some 0.15 s; later, something else had its core.
BURST_LATE_S = 0.25


@dataclass(frozen=True)
class Guards:
    """How close the bench was to being the limit. CPU in cores, times in seconds."""

    engine_cores: float
    client_cores: float
    other_cores: float
    idle_cores: float
    engine_late_p99_s: float
    client_late_p99_s: float
    missed_steps: float
    concurrency: float
    running: float
    client_late_max_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the results file."""
        return asdict(self)


def guards(reading: Reading, scenario: Scenario, cores: int) -> Guards:
    """Take the guards from a reading on a machine of so many cores."""
    wall = reading.wall_s
    engine, client = reading.engines["lateness"], reading.load["lateness"]
    mine = (reading.router_cpu_s or 0.0) + reading.engine_cpu_s + reading.client_cpu_s
    return Guards(
        engine_cores=reading.engine_cpu_s / wall,
        client_cores=reading.client_cpu_s / wall,
        other_cores=max(reading.machine_busy_s - mine, 0.0) / wall,
        idle_cores=max(cores - reading.machine_busy_s / wall, 0.0),
        # Without a single tick the lag is unbounded.
        engine_late_p99_s=wall if engine["p99_s"] is None else engine["p99_s"],
        client_late_p99_s=wall if client["p99_s"] is None else client["p99_s"],
        missed_steps=engine["missed"] / max(engine["beats"] + engine["missed"], 1),
        concurrency=reading.load["active_mean"] / scenario.clients,
        running=reading.engines["running_mean"],
        client_late_max_s=client["max_s"],
    )


def reasons(guard: Guards, scenario: Scenario) -> list[str]:
    """Why the turn is void; empty when it counts. Where the machine is saturated on purpose, all of
    the bench is as late as the router, and only others on the machine spoil it."""
    late = LATE_STEPS * scenario.step_s if scenario.late_s is None else scenario.late_s
    away = guard.client_late_max_s or 0.0
    crowded = guard.other_cores > OTHERS_LIMIT and guard.idle_cores < IDLE_LIMIT
    others = f"others used {guard.other_cores:.2f} cores, {guard.idle_cores:.2f} were idle"
    if scenario.saturated:
        return [others] if crowded else []
    checks = (
        (guard.engine_cores > CORE_LIMIT, f"engines used {guard.engine_cores:.2f} of a core"),
        (guard.client_cores > CORE_LIMIT, f"client used {guard.client_cores:.2f} of a core"),
        (guard.engine_late_p99_s > late, f"engines late: p99 {_ms(guard.engine_late_p99_s)}"),
        (guard.client_late_p99_s > late, f"client late: p99 {_ms(guard.client_late_p99_s)}"),
        (scenario.burst and away > BURST_LATE_S, f"client away for {_ms(away)}"),
        (crowded, others),
        (guard.missed_steps > MISSED_LIMIT, f"{guard.missed_steps:.1%} of decode steps missed"),
        # A job's last answers leave most clients without work: that is a result.
        (
            not scenario.requests and guard.concurrency < CONCURRENCY_LIMIT,
            f"concurrency {guard.concurrency:.0%} of asked",
        ),
    )
    return [reason for failed, reason in checks if failed]


def wrong_legs(reading: Reading, scenario: Scenario, routed: bool) -> list[str]:
    """With prefill engines, every decode must come with a handover; else it was another load."""
    if not scenario.prefill_engines or not routed:
        return []
    seen = reading.engines["seen"]
    without, bad = seen.get("decodes without handover", 0), seen.get("bad handovers", 0)
    texts = ((without, "decode legs without a prefill"), (bad, "handovers that were changed"))
    return [f"{count} {text}" for count, text in texts if count]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
