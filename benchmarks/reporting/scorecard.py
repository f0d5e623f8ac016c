"""Which targets were reached: one row for each, from stored runs.

Pure. A pass needs enough rounds. An unmeasured stall is not a stall of 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.distributions import Summary
from benchmarks.reporting.stored import Stored, newest
from benchmarks.reporting.targets import ROUNDS, STALL_MS, STALL_SCENARIOS, TARGETS, Target

PASS, MISS, FEW, NOTHING = "pass", "**miss**", "too few rounds", "not measured"


@dataclass(frozen=True)
class Row:
    """One target and its measurement; without `run` there is none."""

    target: Target
    measured: Summary | None
    run: Stored | None
    verdict: str


def row(target: Target, runs: Sequence[Stored]) -> Row:
    """Judge one target."""
    # The direct connection is part of the scenario, not of the row.
    routers = [target.router, *([target.against] if target.against else [])]
    run = newest(runs, target.scenario, routers)
    if run is None:
        return Row(target, None, None, NOTHING)
    if target.against:
        measured = run.ratio(target.router, target.against, target.metric)
    else:
        measured = run.alone(target.router, target.metric)
    return Row(target, measured, run, judge(measured, target.limit))


def judge(measured: Summary | None, limit: float) -> str:
    """The verdict of a median over so many rounds."""
    if measured is None:
        return NOTHING
    if measured.median > limit:
        return MISS
    return PASS if measured.rounds >= ROUNDS else FEW


def rows(runs: Sequence[Stored]) -> list[Row]:
    """All targets that are figures of one scenario."""
    return [row(target, runs) for target in TARGETS]


@dataclass(frozen=True)
class Stalls:
    """The longest stall of our event loop by scenario; None: not measured."""

    longest_ms: dict[str, float | None]

    @property
    def verdict(self) -> str:
        """One stall is a miss, wherever; a pass takes all scenarios."""
        known = [value for value in self.longest_ms.values() if value is not None]
        if any(value > STALL_MS for value in known):
            return MISS
        if not known:
            return NOTHING
        return PASS if len(known) == len(self.longest_ms) else "in part"


def stalls(runs: Sequence[Stored]) -> Stalls:
    """The worst round of each scenario."""
    found: dict[str, float | None] = {}
    for name in STALL_SCENARIOS:
        run = newest(runs, name, ["ours"])
        worst = run.alone("ours", "stall_ms") if run else None
        found[name] = worst.high if worst else None
    return Stalls(found)
